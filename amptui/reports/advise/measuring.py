"""Measures a model: one training that is asked for each stage, then the losses from the same start.

Nothing is kept: the folder of each training is a temporary one, and no weights leave this process.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from amptui.base import units
from amptui.base.errors import AmptuiError, DeviceLostError, ExperimentError
from amptui.diagnosis.activity import phase_words
from amptui.diagnosis.amp_answer import amp_answer
from amptui.diagnosis.labels import precision_label
from amptui.monitor.ab_test import MAX_ROUNDS
from amptui.process.training import Training, TrainingEnd, measure_training
from amptui.recipe.request import ModelSpec, TrainRequest
from amptui.records.control import StopRequest
from amptui.records.run import LOW_PRECISIONS, base_precision
from amptui.reports.advise.evidence import Evidence, Exclusion, step_seconds, view_of
from amptui.reports.advise.loss_race import LossRace, RaceTraining, race
from amptui.reports.advise.stages import BASELINE, Stages
from amptui.reports.bench.progress import Progress, comparison_parts
from amptui.reports.compare.trace import MEAN_STEPS
from amptui.telemetry.view import SessionView

_LOOK_SECONDS = 0.1

_MIN_STEPS = MAX_ROUNDS * 6 * 200
"""The training goes on for more steps than any measurement takes, so that a schedule does not end it."""


@dataclass(slots=True)
class Measurer:
    """One measurement of ``spec`` as ``request`` has it; ``scratch`` is a temporary folder."""

    request: TrainRequest
    spec: ModelSpec
    scratch: Path
    seconds: float
    show: Callable[[Stages, SessionView], object]
    """Gets each look, to show how far it is."""
    is_stopped: Callable[[], bool]
    error: AmptuiError | None = None
    """What ended the last training early."""
    hangs: bool = False
    _count: int = field(default=0, init=False)

    def measure(self, precisions: Sequence[str]) -> tuple[Evidence, Stages]:
        """Measure FP32 beside ``precisions``; once more without one that ends the training."""
        remaining, excluded = list(precisions), dict[str, Exclusion]()
        request = replace(self.request, precision=BASELINE, min_steps=_MIN_STEPS, interactive=True)
        while True:
            stages = Stages(remaining, seconds=self.seconds)
            end = self._train(request, partial(self._poll, stages))
            evidence = stages.evidence
            evidence = replace(evidence, exclusions={**excluded, **evidence.exclusions})
            # The precision without which the measurement can be made again, if it need be and can be.
            culprit = evidence.lost_in
            if not culprit and end.error is not None:
                is_over = end.hangs or isinstance(end.error, DeviceLostError)
                culprit = "" if is_over else base_precision(end.view.precision or "")
            if culprit not in remaining or self.is_stopped():
                self.error = self.error or failure(evidence)
                return evidence, stages
            why = Exclusion("failed", detail=str(end.error))
            if evidence.lost_in == culprit:
                why = Exclusion("weights lost")
            excluded = {**evidence.exclusions, culprit: why}
            remaining = [name for name in remaining if name not in excluded]
            self.error = None

    def _poll(self, stages: Stages, training: Training) -> None:
        view = training.view()
        stages.look(view, training.control)
        self.show(stages, view)
        if stages.over or self.is_stopped():
            training.control.ask(StopRequest("measured"))

    def _train(self, request: TrainRequest, poll: Callable[[Training], object]) -> TrainingEnd:
        self._count += 1
        end = measure_training(
            replace(request, validation=False),
            self.spec,
            self.scratch / str(self._count),
            poll=poll,
            hurried=self.is_stopped,
            poll_seconds=_LOOK_SECONDS,
        )
        self.error, self.hangs = end.error, self.hangs or end.hangs
        return end

    # ------------------------------------------------------------------------------ the losses

    def compare_losses(
        self, evidence: Evidence, stages: Stages, precisions: Sequence[str], steps: int
    ) -> LossRace:
        """Train FP32 and ``precisions`` from the same start, with one seed after the other."""
        names = (BASELINE, *precisions)
        round_seconds = sum(step_seconds(view_of(evidence, name), name) or 0.0 for name in names)
        train = partial(self._final_loss, stages)
        return race(steps, names, train, round_seconds=round_seconds, seconds_left=stages.seconds_left)

    def _final_loss(self, stages: Stages, precision: str, seed: int, steps: int) -> RaceTraining:
        stages.doing = f"loss from the same start, seed {seed + 1} in {precision_label(precision)}"
        request = replace(
            self.request,
            precision=precision,
            seed=self.request.seed + seed,
            steps=steps,
            compile_mode=None,
            interactive=False,
        )

        def poll(training: Training) -> None:
            self.show(stages, training.view())
            if self.is_stopped():
                training.control.ask(StopRequest("interrupted"))

        end = self._train(request, poll)
        if self.is_stopped() or end.hangs or isinstance(end.error, DeviceLostError):
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
    """Rewrite the line on a terminal; elsewhere write only what the run warns of before its steps."""
    if view.step == 0 and not stages.over:
        progress.tell_warnings(view)
    if progress.on_terminal:
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
