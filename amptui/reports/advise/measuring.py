"""The command: measures a model or a script, and prints what to use.

A model is measured in one training that is asked for each stage, then in the losses from the same start.
Nothing is kept: the folder of each training is a temporary one, and no weights leave this process.
"""

import math
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from signal import SIGINT
from tempfile import TemporaryDirectory

import numpy as np

from amptui.base import strictjson
from amptui.base.errors import AmptuiError, DeviceLostError
from amptui.base.prompt import complain, put, say
from amptui.diagnosis.amp_answer import amp_answer
from amptui.diagnosis.labels import precision_label
from amptui.monitor.ab_test import MAX_ROUNDS
from amptui.process.plain_lines import stdout_of
from amptui.process.stop_signals import StopSignals
from amptui.process.training import Training, leave_at_once, measure_training
from amptui.recipe.request import AdviseRequest, TrainRequest, parse_model
from amptui.records.answers import RequestMade
from amptui.records.control import Control
from amptui.records.run import LOW_PRECISIONS
from amptui.reports.advise.advice import CANDIDATES, Evidence, Exclusion, step_seconds, view_of
from amptui.reports.advise.advice_report import recommendation, report_json, report_lines
from amptui.reports.advise.loss_race import LossRace, RaceTraining, race
from amptui.reports.advise.stages import BASELINE, Stages, show_stages
from amptui.reports.bench.measure import Progress, device_of, slow_on_cpu
from amptui.reports.compare.trace import MEAN_STEPS
from amptui.telemetry.view import SessionView

_LOOK_SECONDS = 0.1

_MIN_STEPS = MAX_ROUNDS * 6 * 200
"""The training goes on for more steps than any measurement takes, so that a schedule does not end it."""


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


def measure_model(request: AdviseRequest, stop: Control) -> tuple[Evidence, AmptuiError | None, bool]:
    """Measure a model in this process: what was found, what ended it early, whether the trainer hangs."""
    parse_model(request.training.model)  # before anything is measured
    with TemporaryDirectory(prefix="amptui-advise-", ignore_cleanup_errors=True) as scratch:
        measurer = _Measurer(request, stop, Path(scratch))
        evidence = measurer.measure()
        return evidence, measurer.error, measurer.hangs


class _Measurer:
    """Trains a model again and again in this process."""

    def __init__(self, request: AdviseRequest, stop: Control, scratch: Path) -> None:
        self._request, self._stop, self._scratch = request, stop, scratch
        self._progress = Progress(sys.stderr)
        self._count = 0
        self.error: AmptuiError | None = None
        """What ended the last training early."""
        self.hangs = False

    def measure(self) -> Evidence:
        """Measure FP32 beside the others, once more without one that ends the training; then the losses."""
        precisions, excluded = self._request.precisions or CANDIDATES, dict[str, Exclusion]()
        is_on_cpu = device_of(self._request.training.device).type == "cpu"
        slow = slow_on_cpu() if is_on_cpu and self._request.precisions is None else {}
        training = replace(self._request.training, precision=BASELINE, min_steps=_MIN_STEPS, interactive=True)
        while True:
            seconds = self._request.minutes * 60
            stages = Stages(precisions, seconds=seconds, slow_on_cpu=slow, excluded=excluded)
            view = self._train(training, stages)
            evidence = stages.evidence
            # The precision without which the measurement can be made again, if it need be and can be.
            culprit = evidence.lost_in
            if not culprit and self.error is not None and not self._cannot_train:
                culprit = view.precision or ""
            if culprit not in precisions or culprit in excluded or self._stop.stop_reason:
                self.error = self.error or evidence.failure
                break
            why = Exclusion("failed", detail=str(self.error))
            if evidence.lost_in == culprit:
                why = Exclusion("weights lost")
            excluded = {**evidence.exclusions, culprit: why}
        if self._stop.stop_reason:
            evidence.race = LossRace(steps=0, why_not="it was interrupted")
        elif self.error is None and not self.hangs:
            evidence.race = self._compare_losses(evidence, stages)
        self._progress.clear()
        return evidence

    @property
    def _cannot_train(self) -> bool:
        return self.hangs or isinstance(self.error, DeviceLostError)

    def _train(self, request: TrainRequest, stages: Stages, *, asks: bool = True) -> SessionView:
        """Train until the ``stages`` are over, or with ``asks`` unset to its end; or until it is stopped."""

        def poll(training: Training) -> None:
            view = training.view()
            if asks:
                stages.look(view, training.control)
            show_stages(self._progress, stages, view)
            if (asks and stages.over) or self._stop.stop_reason:
                training.control.ask(RequestMade("stop", reason="measured"))

        self._count += 1
        view, self.error, self.hangs = measure_training(
            replace(request, validation=False),
            self._scratch / str(self._count),
            poll=poll,
            hurried=lambda: self._stop.stop_reason is not None,
            poll_seconds=_LOOK_SECONDS,
        )
        return view

    # ------------------------------------------------------------------------------ the losses

    def _compare_losses(self, evidence: Evidence, stages: Stages) -> LossRace | None:
        """Train FP32 and what is not excluded from the same start, with one seed after the other."""
        steps, candidates = self._request.loss_steps, self._request.precisions or CANDIDATES
        names = [BASELINE, *(name for name in candidates if name not in evidence.exclusions)]
        if not steps:
            return LossRace(steps=0, why_not="--loss-steps 0 leaves it out")
        if len(names) == 1:
            return LossRace(steps=0)
        round_seconds = sum(step_seconds(view_of(evidence, name), name) or 0.0 for name in names)
        train = partial(self._final_loss, stages)
        return race(steps, names, train, round_seconds=round_seconds, seconds_left=stages.seconds_left)

    def _final_loss(self, stages: Stages, precision: str, seed: int, steps: int) -> RaceTraining:
        stages.doing = f"loss from the same start, seed {seed + 1} in {precision_label(precision)}"
        training = self._request.training
        request = replace(
            training,
            precision=precision,
            seed=training.seed + seed,
            steps=steps,
            compile_mode=None,
            interactive=False,
        )
        view = self._train(request, stages, asks=False)
        if self._stop.stop_reason or self._cannot_train:
            return RaceTraining(loss=None)
        newest, is_bad = (values[-MEAN_STEPS:] for values in (view.loss.recent, view.loss.recent_nonfinite))
        newest = newest[np.isfinite(newest) | is_bad]
        error, self.error = self.error, None
        final = float(newest.mean()) if len(newest) else None
        if final is None or (error is not None and math.isfinite(final)):
            return RaceTraining(loss=None, error=str(error or "it made no step"))
        trouble = None
        if precision in LOW_PRECISIONS:  # what went wrong in its steps, but for the loss
            answer = amp_answer(view, precision)
            findings = map(answer.of, ("weights", "forward", "overflow"))
            trouble = next((one for one in findings if one.happened and one.is_trouble), None)
        return RaceTraining(loss=final, trouble=trouble)
