"""The command: measures a model or a script, and prints what to use."""

from signal import SIGINT

from amptui.base import strictjson
from amptui.base.errors import DeviceLostError
from amptui.base.prompt import complain, put, say
from amptui.process.plain_lines import stdout_of
from amptui.process.stop_signals import StopSignals
from amptui.process.training import leave_at_once
from amptui.recipe.request import AdviseRequest
from amptui.records.control import Control
from amptui.reports.advise.advice_report import recommendation, report_json, report_lines
from amptui.reports.advise.measuring import measure_model

_INTERRUPTED = "interrupted before anything was measured"


def advise(request: AdviseRequest, *, json: bool) -> int:
    """Measure, print the recommendation, and return the exit status.

    0 if there is one, 1 if the model fails or nothing could be measured, 128 + the number of the signal that
    ended it. With ``json`` standard output is one JSON object, or nothing if the model fails. Raises
    ``UsageError`` for what is not there, and other ``AmptuiError`` for what cannot be done here.
    """
    measure = measure_model
    if request.script:
        from amptui.reports.advise.script_trial import measure_script as measure
    stop = Control()
    with stdout_of(json=json) as out, StopSignals(stop.ask, closes=True) as signals:
        try:
            evidence, error, hangs = measure(request, stop)
        except KeyboardInterrupt:
            complain(_INTERRUPTED)
            return 128 + (signals.received or SIGINT)
        result = recommendation(request, evidence, interrupted=signals.received is not None)
        status = 0 if result.advice.precision is not None else 1
        if signals.received:
            status = 128 + signals.received
        elif error is not None:
            status = error.exit_status
            complain(str(error))
        if evidence.view.step and (error is None or evidence.view.compared is not None):
            if json:
                put(strictjson.line(report_json(result)), out)
            else:
                say(*report_lines(result), out=out)
        elif signals.received:
            complain(_INTERRUPTED)
    if hangs or isinstance(error, DeviceLostError):
        leave_at_once(status or 1)
    return status
