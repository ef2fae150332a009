"""Measures a model: one training that is asked for each stage, then the losses from the same start.

Nothing is kept: the folder of each training is a temporary one, and no weights leave this process.
"""

import math
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from amptui.base import units
from amptui.base.errors import AmptuiError, DeviceLostError, ExperimentError
from amptui.diagnosis.activity import phase_words
from amptui.diagnosis.amp_answer import amp_answer
from amptui.diagnosis.labels import precision_label
from amptui.monitor.ab_test import MAX_ROUNDS
from amptui.process.training import Training, TrainingEnd, measure_training
from amptui.recipe.request import AdviseRequest, TrainRequest, parse_model
from amptui.records.answers import RequestMade
from amptui.records.control import Control
from amptui.records.run import LOW_PRECISIONS, base_precision
from amptui.reports.advise.evidence import CANDIDATES, Evidence, Exclusion, step_seconds, view_of
from amptui.reports.advise.loss_race import LossRace, RaceTraining, race
from amptui.reports.advise.stages import BASELINE, Stages
from amptui.reports.bench.measure import device_of, slow_on_cpu
from amptui.reports.bench.progress import Progress, comparison_parts
from amptui.reports.compare.trace import MEAN_STEPS
from amptui.telemetry.view import SessionView

_LOOK_SECONDS = 0.1

_MIN_STEPS = MAX_ROUNDS * 6 * 200
"""The training goes on for more steps than any measurement takes, so that a schedule does not end it."""


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
        remaining, excluded = list(self._request.precisions or CANDIDATES), dict[str, Exclusion]()
        is_on_cpu = device_of(self._request.training).type == "cpu"
        slow = slow_on_cpu() if is_on_cpu and self._request.precisions is None else {}
        training = replace(self._request.training, precision=BASELINE, min_steps=_MIN_STEPS, interactive=True)
        while True:
            stages = Stages(remaining, seconds=self._request.minutes * 60, slow_on_cpu=slow)
            end = self._train(training, stages)
            evidence = stages.evidence
            evidence = replace(evidence, exclusions={**excluded, **evidence.exclusions})
            # The precision without which the measurement can be made again, if it need be and can be.
            culprit = evidence.lost_in
            if not culprit and end.error is not None:
                is_over = end.hangs or isinstance(end.error, DeviceLostError)
                culprit = "" if is_over else base_precision(end.view.precision or "")
            if culprit not in remaining or self._stop.stop_reason:
                self.error = self.error or failure(evidence)
                break
            why = Exclusion("failed", detail=str(end.error))
            if evidence.lost_in == culprit:
                why = Exclusion("weights lost")
            excluded = {**evidence.exclusions, culprit: why}
            remaining = [name for name in remaining if name not in excluded]
        if self._stop.stop_reason:
            evidence = replace(evidence, race=LossRace(steps=0, why_not="it was interrupted"))
        elif self.error is None and not self.hangs:
            evidence = replace(evidence, race=self._compare_losses(evidence, stages))
        self._progress.clear()
        return evidence

    def _train(self, request: TrainRequest, stages: Stages, *, asks: bool = True) -> TrainingEnd:
        """Train until the ``stages`` are over, or with ``asks`` unset to its end; or until it is stopped."""

        def poll(training: Training) -> None:
            view = training.view()
            if asks:
                stages.look(view, training.control)
            show_stages(self._progress, stages, view)
            if (asks and stages.over) or self._stop.stop_reason:
                training.control.ask(RequestMade("stop", reason="measured"))

        self._count += 1
        end = measure_training(
            replace(request, validation=False),
            parse_model(request.model),
            self._scratch / str(self._count),
            poll=poll,
            hurried=lambda: self._stop.stop_reason is not None,
            poll_seconds=_LOOK_SECONDS,
        )
        self.error, self.hangs = end.error, self.hangs or end.hangs
        return end

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
        end = self._train(request, stages, asks=False)
        if self._stop.stop_reason or end.hangs or isinstance(end.error, DeviceLostError):
            return RaceTraining(loss=None)
        newest, is_bad = (
            values[-MEAN_STEPS:] for values in (end.view.loss.recent, end.view.loss.recent_nonfinite)
        )
        newest = newest[np.isfinite(newest) | is_bad]
        self.error, final = None, float(newest.mean()) if len(newest) else None
        if final is None or (end.error is not None and math.isfinite(final)):
            return RaceTraining(loss=None, error=str(end.error or "it made no step"))
        trouble = None
        if precision in LOW_PRECISIONS:  # what went wrong in its steps, but for the loss
            answer = amp_answer(end.view, precision)
            findings = map(answer.of, ("weights", "forward", "overflow"))
            trouble = next((one for one in findings if one.happened and one.is_trouble), None)
        return RaceTraining(loss=final, trouble=trouble)


def failure(evidence: Evidence) -> AmptuiError | None:
    """That the weights were lost in FP32, which no choice of a precision repairs; None if they were not."""
    if evidence.lost_in != BASELINE:
        return None
    reason = evidence.view.pause_reason or "the loss is not finite"
    return ExperimentError(f"in FP32, {reason}", hint="use a smaller learning rate")


# ------------------------------------------------------------------------------ how far it is


def show_stages(progress: Progress, stages: Stages, view: SessionView) -> None:
    """Show how far it is, and what the run warns of before its steps."""
    if view.step == 0 and not stages.over:
        progress.warn(view)
    progress.show(progress_words(stages, view))


def progress_words(stages: Stages, view: SessionView) -> str:
    """``alternating, round  3 of at most 24, AMP bf16 1.61× (1.55 to 1.68), at most 2:10 left``."""
    if not stages.doing:
        return phase_words(view.phase)
    parts, compared = [stages.doing], view.compared
    if compared is not None and not compared.over:
        parts += comparison_parts(compared)
    else:
        parts.append(f"step {units.count(view.step)}")
    return ", ".join([*parts, f"at most {units.duration(max(0.0, stages.seconds_left()))} left"])
