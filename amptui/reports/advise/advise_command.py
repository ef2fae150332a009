"""The command: measures a model or a script, and prints or writes what to use."""

import sys
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from signal import SIGINT
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from amptui.base import strictjson
from amptui.base.errors import AmptuiError, DeviceLostError, UsageError
from amptui.base.prompt import complain, put, say
from amptui.process.plain_lines import stdout_of
from amptui.process.stop_signals import StopSignals
from amptui.process.training import leave_at_once
from amptui.recipe.request import AdviseRequest, parse_model
from amptui.records.control import Control
from amptui.reports.advise.advice_report import advice_page, report_json, report_lines
from amptui.reports.advise.evidence import Exclusion
from amptui.reports.advise.loss_race import MIN_LOSS_STEPS, LossRace
from amptui.reports.advise.measuring import Measurer, show_stages
from amptui.reports.advise.recommendation import Recommendation, candidate_names, recommendation
from amptui.reports.advise.stages import BASELINE
from amptui.reports.bench.measure import device_of, plan_precisions
from amptui.reports.bench.progress import Progress
from amptui.reports.export.exporting import refuse_own_files, refuse_unwritable, write_file

if TYPE_CHECKING:
    import torch


_INTERRUPTED = "interrupted before anything was measured"


def advise(request: AdviseRequest, *, json: bool) -> int:
    """Measure, print the recommendation, and return the exit status.

    0 if there is one, 1 if the model fails or nothing could be measured, 128 + the number of the signal that
    ended it. With ``json`` standard output is one JSON object, or nothing if the model fails. Raises
    ``UsageError`` for what is not there, and other ``AmptuiError`` for what cannot be done here.
    """
    _refuse_what_cannot_be(request)
    if request.script:
        from amptui.reports.advise.script_trial import advise_script

        measure = advise_script
    else:
        measure = advise_model
    stop = Control()
    with stdout_of(json=json) as out, StopSignals(stop.ask, closes=True) as signals:
        try:
            result, error, hangs = measure(request, stop)
        except KeyboardInterrupt:
            complain(_INTERRUPTED)
            return 128 + (signals.received or SIGINT)
        result = replace(result, interrupted=signals.received is not None)
        status = 0 if result.advice.precision is not None else 1
        if signals.received:
            status = 128 + signals.received
        elif error is not None:
            status = error.exit_status
            complain(str(error))
        view = result.evidence.view
        if view.step and (error is None or view.compared is not None):
            if json:
                put(strictjson.line(report_json(result)), out)
            else:
                say(*report_lines(result), out=out)
            if request.html is not None:
                write_file(request.html, advice_page(result))
        elif signals.received:
            complain(_INTERRUPTED)
    if hangs or isinstance(error, DeviceLostError):
        leave_at_once(status or 1)
    return status


def _refuse_what_cannot_be(request: AdviseRequest) -> None:
    """Raise UsageError for losses after too few steps, and for a page in place of a script or a model."""
    if 0 < request.loss_steps < MIN_LOSS_STEPS:
        few = "after so few steps, losses are still close to the first one"
        hint = f"use at least {MIN_LOSS_STEPS}, or 0 to leave them out"
        raise UsageError(f"--loss-steps {request.loss_steps}: {few}", hint=hint)
    if request.html is None:
        return
    source = request.script[0] if request.script else parse_model(request.training.model).path
    with suppress(OSError):
        if source is not None and request.html.samefile(source):
            what = f"--html {request.html} would overwrite the source being measured"
            raise UsageError(what, hint="choose another path")
    refuse_own_files([("--html", request.html)], [])
    refuse_unwritable(request.html)


def advise_model(request: AdviseRequest, stop: Control) -> tuple[Recommendation, AmptuiError | None, bool]:
    """Measure a model in this process: what was found, what ended it early, whether the trainer hangs."""
    training = request.training
    spec = parse_model(training.model)
    device = device_of(training)
    precisions, left_out = _plan(request, device)
    with TemporaryDirectory(prefix="amptui-advise-", ignore_cleanup_errors=True) as scratch:
        progress = Progress(sys.stderr)
        measurer = Measurer(
            training,
            spec,
            Path(scratch),
            request.minutes * 60,
            show=partial(show_stages, progress),
            is_stopped=lambda: stop.stop_reason is not None,
        )
        evidence, stages = measurer.measure(precisions)
        evidence = replace(evidence, exclusions={**left_out, **evidence.exclusions})
        error = measurer.error
        race = None
        if stop.stop_reason is not None:
            race = LossRace(steps=0, why_not="it was interrupted")
        elif error is None and not measurer.hangs:
            rest = [name for name in precisions if name not in evidence.exclusions]
            race = LossRace(steps=0, why_not="" if request.loss_steps else "--loss-steps 0 leaves it out")
            if rest and request.loss_steps:
                race = measurer.compare_losses(evidence, stages, rest, request.loss_steps)
            error = measurer.error
        progress.clear()
    result = recommendation(request, evidence, candidate_names(request), race, seconds=stages.seconds_spent)
    return result, error, measurer.hangs


def _plan(request: AdviseRequest, device: "torch.device") -> tuple[tuple[str, ...], dict[str, Exclusion]]:
    """The precisions to measure beside FP32, and why the others are left out."""
    names = candidate_names(request)
    try:
        plan = plan_precisions(None if request.precisions is None else (BASELINE, *names), device)
    except UsageError as error:
        raise AmptuiError(error.what) from error
    excluded = {name: Exclusion("not here", why) for name, why in plan.left_out.items() if name in names}
    return tuple(name for name in names if name in plan.precisions), excluded
