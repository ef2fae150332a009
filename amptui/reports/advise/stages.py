"""The stages of a measurement: what is asked of a run, one request after the other, as its numbers arrive.

The run may be a training of a model here or a script with a loop of its own: both take the same requests.
"""

import math
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from types import MappingProxyType

from amptui.base import units
from amptui.diagnosis.activity import phase_words
from amptui.diagnosis.amp_answer import amp_answer
from amptui.diagnosis.amp_findings import has_failed_in_float16, precision_at
from amptui.diagnosis.labels import precision_label
from amptui.records.answers import Answer, RequestMade, RequestRefused
from amptui.records.control import Asker
from amptui.records.run import LOW_PRECISIONS
from amptui.reports.advise.advice import OTHER_WEIGHTS, Evidence, Exclusion, has_other_weights
from amptui.reports.bench.measure import Progress, comparison_parts
from amptui.telemetry.view import PrecisionStats, SessionView

BASELINE = "fp32"

TRIAL_STEPS = 10
"""Counted steps after the warm-up that end the trial of a precision."""

MAX_TRIAL_STEPS = 60
"""Steps that end it in any case: a scaler may skip them all."""

MIN_TRIAL_STEPS = 4
"""Steps in which a precision can show that it is far too slow; the first one loads kernels."""

NOTICED_STEPS = 20
"""Steps within which lost weights are noticed."""

FAR_SLOWER = 10.0
"""A precision whose steps take so many times as long as the baseline's is measured no further."""

TRIAL_SHARE, PROBE_SHARE = 0.15, 0.03
"""How long a trial takes at most, and how long a measurement that comes by itself is waited for, as fractions
of the time budget."""

COMPARISON_SHARE, PROBES_SHARE = 0.55, 0.7
"""By when, as fractions of the time budget, the comparison and the last probes are over."""

_Script = Generator[None, None, None]


class Stages:
    """Drives one measurement; :meth:`look` is called with the newest view now and then.

    ``seconds`` are the budget from the first step on, of which the last part is left for the losses;
    ``slow_on_cpu`` is what a CPU leaves out, and why; ``excluded`` what an earlier attempt left out.
    """

    def __init__(
        self,
        precisions: Sequence[str],
        *,
        seconds: float,
        slow_on_cpu: Mapping[str, str] = MappingProxyType({}),
        excluded: Mapping[str, Exclusion] = MappingProxyType({}),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._precisions, self._slow_on_cpu = precisions, slow_on_cpu
        self._seconds, self._clock = seconds, clock
        self._began: float | None = None
        self._asker: Asker | None = None
        self._paused_at = -1
        self._script: _Script = self._run()
        self.evidence = Evidence(exclusions=dict(excluded))
        """What is measured so far."""
        self.doing = ""
        """What is measured now, for people; empty before the first step."""
        self.over = False
        """Whether there is nothing more to ask."""

    @property
    def _candidates(self) -> list[str]:
        return [name for name in self._precisions if name not in self.evidence.exclusions]

    @property
    def _view(self) -> SessionView:
        return self.evidence.view

    def seconds_left(self, share: float = 1.0) -> float:
        """Until that part of the budget is used up, which begins at the first step."""
        return self._seconds * share - (0.0 if self._began is None else self._clock() - self._began)

    def look(self, view: SessionView, asker: Asker) -> None:
        """Note what is known now, and ask for what comes next."""
        self.evidence.view, self._asker = view, asker
        window = view.numerics.window
        if window is not None and window.hypothetical:
            self.evidence.window = window
        if view.step and self._began is None:
            self._began = self._clock()
        if self._handle_pause() or self.over:
            return
        self.over = next(self._script, self) is self

    # ------------------------------------------------------------------------------- the stages

    def _run(self) -> _Script:
        while not self._view.step:
            yield
        run = self._view.run
        if run is not None:
            slow = self._slow_on_cpu if run.device == "cpu" else {}
            for precision, why in {**slow, **run.unsupported}.items():
                self._exclude(precision, Exclusion("not here", why))
        yield from self._first_steps()
        if self.evidence.lost_in:
            return
        for precision in self._precisions:
            yield from self._trial(precision)
        yield from self._compare()
        yield from self._probe_all()

    def _first_steps(self) -> _Script:
        self.doing = f"first steps in {precision_label(BASELINE)}"
        if self._view.precision != BASELINE:
            yield from self._ask(RequestMade("precision", precision=BASELINE))
        yield from self._until(lambda: self._has_trial_steps(BASELINE), within=TRIAL_SHARE)
        yield from self._ask(RequestMade("trace"))
        yield from self._until(lambda: self.evidence.window is not None, within=PROBE_SHARE)
        self._keep(BASELINE)
        # FP32 alone may have led to a loss or to weights that are not finite.
        last, trace = self._view.last, self._view.numerics.trace
        loss_lost = last is not None and not math.isfinite(last.loss[0] or 0.0)
        if loss_lost or (trace is not None and trace.lost_count > 0):
            self.evidence.lost_in = BASELINE
        if has_other_weights(self._view):
            for precision in self._precisions:
                self._exclude(precision, Exclusion("not here", OTHER_WEIGHTS))

    def _trial(self, precision: str) -> _Script:
        """Run some steps in it: what fails, or is hopeless, is excluded."""
        if precision not in self._candidates:
            return
        self.doing = f"first steps in {precision_label(precision)}"
        answer = yield from self._ask(RequestMade("precision", precision=precision))
        if isinstance(answer, RequestRefused):
            is_there = answer.reason != "unavailable"
            self._exclude(precision, Exclusion("failed" if is_there else "not here", detail=answer.detail))
            return
        yield from self._until(
            lambda: self._has_trial_steps(precision) or self._is_hopeless(precision), within=TRIAL_SHARE
        )
        if not self._is_hopeless(precision) and precision in LOW_PRECISIONS:
            yield from self._probe(precision)
        if (slowdown := self._slowdown(precision)) >= FAR_SLOWER:
            self._exclude(precision, Exclusion("slow", value=slowdown))
        elif self._fails(precision):
            yield from self._ask(RequestMade("trace"))
            self._keep(precision)
            self._exclude(precision, Exclusion("trouble"))
        yield from self._ask(RequestMade("precision", precision=BASELINE))

    def _compare(self) -> _Script:
        """Alternate until the intervals decide or the time is up; again if the loss scale collapsed."""
        self.doing = "alternating"
        while (sides := [BASELINE, *self._candidates])[1:] and "comparison" in self._view.accepts:
            answer = yield from self._ask(RequestMade("comparison", precisions=tuple(sides)))
            if isinstance(answer, RequestRefused):
                self.evidence.missing.setdefault("comparison", answer.detail)
                return

            def is_over() -> bool:
                compared = self._view.compared
                return compared is None or compared.over or self.seconds_left(COMPARISON_SHARE) <= 0

            yield from self._until(is_over)
            compared = self._view.compared
            if compared is not None and not compared.over:
                yield from self._ask(RequestMade("comparison"))
            for name, why in (compared.failed if compared is not None else {}).items():
                failed = Exclusion("failed", detail=f"its first step failed: {why}")
                self._exclude(name, failed)
            if sides == [BASELINE, *self._candidates]:
                return

    def _probe_all(self) -> _Script:
        """Measure each precision once more, on what the comparison has trained."""
        for precision in self._candidates:
            if precision not in LOW_PRECISIONS or self.seconds_left(PROBES_SHARE) <= 0:
                continue
            self.doing = f"measuring gradients in {precision_label(precision)}"
            yield from self._ask(RequestMade("precision", precision=precision))
            yield from self._until(lambda: False, steps=MIN_TRIAL_STEPS)
            yield from self._probe(precision)
        yield from self._ask(RequestMade("precision", precision=BASELINE))

    def _probe(self, precision: str) -> _Script:
        """X-ray, trace, and the gradients of a step in ``precision``; the factors of its products in FP8."""
        yield from self._ask(RequestMade("x-ray"))
        yield from self._ask(RequestMade("trace"))
        if precision == "fp8":
            yield from self._ask(RequestMade("histogram"))

        def is_measured() -> bool:
            step = self._view.numerics.measured_step
            return step is not None and precision_at(self._view, step) == precision

        yield from self._until(is_measured, within=PROBE_SHARE)
        self._keep(precision)

    # ------------------------------------------------------------------------ asking and waiting

    def _ask(self, request: RequestMade) -> Generator[None, None, Answer | None]:
        """Ask, and wait for the answer; None if the run does not take such requests, or the time is up."""
        kind = request.kind
        if kind not in self._view.accepts or self._asker is None:
            why = "" if self._view.run is None else self._view.run.refuses.get(kind, "")
            if why:
                self.evidence.missing.setdefault(kind, why)
            return None
        number = self._asker.ask(request)
        while (
            answer := next((one for one in self._view.answers if one.request.number == number), None)
        ) is None:
            yield
        if isinstance(answer, RequestRefused) and kind in ("x-ray", "trace"):
            self.evidence.missing.setdefault(kind, answer.detail)
        return answer

    def _until(self, holds: Callable[[], bool], *, within: float = 1.0, steps: int | None = None) -> _Script:
        """Wait until that ``holds``, for that share of the budget, and so many ``steps``, at most.

        Some steps are waited for however long they take.
        """
        first_step, began = self._view.step, self._clock()
        while not holds():
            steps_since = self._view.step - first_step
            is_late = self._clock() - began > within * self._seconds
            if (steps is not None and steps_since >= steps) or (is_late and steps_since >= MIN_TRIAL_STEPS):
                return
            yield

    def _handle_pause(self) -> bool:
        """Go on in FP32 after a collapsed loss scale, end with lost weights; whether it was paused."""
        view, asker = self._view, self._asker
        if view.state != "paused" or asker is None:
            return False
        if view.step != self._paused_at and view.pause_cause:
            self._paused_at = view.step
            weights_lost = view.pause_cause == "weights"
            precision = "fp16"
            if weights_lost:
                # It is noticed some steps later: what the first of the newest with NaN or Inf ran in.
                bad = [one.step for one in view.events if one.kind == "nonfinite" and one.step is not None]
                recent = [step for step in bad if step > view.step - NOTICED_STEPS]
                precision = precision_at(view, min(recent)) if recent else view.precision or ""
            self._keep(precision)
            self._exclude(precision, Exclusion("weights lost" if weights_lost else "trouble"))
            if weights_lost:
                self.evidence.lost_in = precision
                self.over = True
                return True
            asker.ask(RequestMade("precision", precision=BASELINE))
            asker.ask(RequestMade("pause", paused=False))
        return True

    # ---------------------------------------------------------------------------- what is known

    def _row(self, precision: str) -> PrecisionStats | None:
        rows = self._view.comparison.rows
        return next((row for row in rows if row.precision == precision), None)

    def _has_trial_steps(self, precision: str) -> bool:
        row = self._row(precision)
        return row is not None and (row.steps >= TRIAL_STEPS or row.steps_made >= MAX_TRIAL_STEPS)

    def _slowdown(self, precision: str) -> float:
        """Its median step by the baseline's, as far as both are known; 0 before."""
        row, baseline = self._row(precision), self._row(BASELINE)
        if row is None or baseline is None or row.steps_made < MIN_TRIAL_STEPS:
            return 0.0
        return (row.median_step_seconds or 0.0) / (baseline.median_step_seconds or float("inf"))

    def _is_hopeless(self, precision: str) -> bool:
        row = self._row(precision)
        enough = row is not None and row.steps_made >= MAX_TRIAL_STEPS // 2
        return self._slowdown(precision) >= FAR_SLOWER or (enough and self._fails(precision))

    def _fails(self, precision: str) -> bool:
        """Whether float16 failed, by the answer's own judgement."""
        if precision != "fp16":
            return False
        return has_failed_in_float16(amp_answer(self._view, precision).of("overflow"))

    def _keep(self, precision: str) -> None:
        """Keep what was measured in ``precision``: later measurements are of others."""
        self.evidence.numerics[precision] = self._view.numerics

    def _exclude(self, precision: str, why: Exclusion) -> None:
        if precision in self._precisions:
            self.evidence.exclusions.setdefault(precision, why)


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
