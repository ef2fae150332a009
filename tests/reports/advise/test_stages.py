"""What is asked of a run, in which order, and what ends it early; the losses from the same start."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import pytest

from amptui.records.answers import Answer, Refusal, RequestRefused, RequestTaken
from amptui.records.control import (
    KINDS,
    ComparisonRequest,
    PauseRequest,
    PrecisionRequest,
    Request,
    XRayRequest,
    record_of,
)
from amptui.records.findings import MemoryKind
from amptui.reports.advise.evidence import Evidence, candidates
from amptui.reports.advise.loss_race import LossRace, RaceTraining, race
from amptui.reports.advise.measuring import progress_words
from amptui.reports.advise.stages import Stages
from amptui.telemetry.view import (
    EMPTY_VIEW,
    Comparison,
    NumericsView,
    PrecisionStats,
    PrecisionSwitch,
    SessionView,
)
from tests.golden import Goldens
from tests.reports.advise.situations import row
from tests.telemetry import record_samples as samples

LOOKS = 400


@dataclass
class FakeRun:
    """Each look is some steps later; ``step_seconds`` and ``refused`` are by precision."""

    step_seconds: Mapping[str, float] = field(default_factory=dict)
    refused: Mapping[str, tuple[Refusal, str]] = field(default_factory=dict)
    rounds_needed: int = 3
    weights_dtype: str = "float32"
    loss: float = 1.0
    asked: list[Request] = field(default_factory=list)
    now: float = 0.0
    stop_reason: str | None = None
    view: SessionView = EMPTY_VIEW
    _steps: dict[str, int] = field(default_factory=dict)
    _sides: tuple[str, ...] = ()
    _rounds: int = 0

    def clock(self) -> float:
        return self.now

    def ask(self, request: Request) -> int:
        self.asked.append(request)
        number = len(self.asked)
        result = record_of(request, number)
        answer: Answer = RequestTaken(time=time.time(), step=self.view.step, request=result)
        precision = request.precision if isinstance(request, PrecisionRequest) else ""
        if precision in self.refused:
            reason, detail = self.refused[precision]
            answer = RequestRefused(
                time=time.time(), step=self.view.step, request=result, reason=reason, detail=detail
            )
        elif precision:
            self._switch(precision)
        elif isinstance(request, ComparisonRequest):
            self._sides, self._rounds = request.precisions, 0
            self._compare()
        elif isinstance(request, XRayRequest):
            one_xray = samples.xray(self.view.step, precision="bf16")
            self.view = replace(self.view, numerics=replace(self.view.numerics, xray=one_xray))
        elif isinstance(request, PauseRequest):
            self.view = replace(self.view, state="running", pause_cause="")
        self.view = replace(self.view, answers=(*self.view.answers, answer))
        return number

    def pause(self, cause: Any) -> None:
        self.view = replace(self.view, state="paused", pause_cause=cause, pause_reason="the reason")

    def advance(self, steps: int = 10, seconds: float = 0.1) -> SessionView:
        """Make steps, unless paused, and return the new view."""
        self.now += seconds
        view = self.view
        if view.state == "paused":
            return view
        precision = view.precision or "fp32"
        if self._sides and view.compared is not None and not view.compared.over:
            self._rounds += 1
            self._compare()
        self._steps[precision] = self._steps.get(precision, 0) + steps
        step = view.step + steps
        weights = (MemoryKind(kind="weights", dtype=self.weights_dtype, size_bytes=8),)
        breakdown = replace(samples.memory("fp32"), step=step, kinds=weights)
        self.view = replace(
            self.view,
            state="running",
            precision=precision,
            step=step,
            switches=view.switches or (PrecisionSwitch(1, precision),),
            comparison=Comparison(rows=tuple(map(self._stats, self._steps))),
            numerics=NumericsView(measured_step=step, window=samples.window(1), xray=view.numerics.xray),
            memory=(breakdown,),
            last=samples.step(step, precision=precision, loss=self.loss, step_seconds=0.01),
        )
        return self.view

    def _switch(self, precision: str) -> None:
        switch = PrecisionSwitch(self.view.step + 1, precision)
        over = None if self.view.compared is None else replace(self.view.compared, over=True)
        self._sides = ()
        switches = (*self.view.switches, switch)
        self.view = replace(self.view, precision=precision, switches=switches, compared=over)

    def _compare(self) -> None:
        over = not self._sides or self._rounds >= self.rounds_needed
        rows = (row("fp32"), *(row(name, 1.5) for name in self._sides[1:]))
        compared = samples.compared(
            self.view.step,
            rounds=self._rounds,
            rows=rows if self._sides else () if self.view.compared is None else self.view.compared.rows,
            over=over,
            reason="narrow" if over else "running",
        )
        self.view = replace(self.view, compared=compared)

    def _stats(self, precision: str) -> PrecisionStats:
        return PrecisionStats(
            precision=precision,
            steps=self._steps[precision],
            warm_up_steps=0,
            median_step_seconds=self.step_seconds.get(precision, 0.01),
            samples_per_second=None,
            peak_allocated_bytes=None,
            last_loss=1.0,
            skipped=0,
        )


def short(request: Request) -> str:
    """What a request asks for, in a word or two."""
    match request:
        case PrecisionRequest(precision):
            return precision
        case ComparisonRequest(precisions):
            return "compare " + ",".join(precisions) if precisions else "end comparison"
        case PauseRequest(paused):
            return "pause" if paused else "resume"
    return KINDS[type(request)]


class Measured(NamedTuple):
    """A run, what it is asked to compare, and when it pauses by itself, of which cause."""

    run: FakeRun
    candidates: Sequence[str]
    seconds: float = 1000.0
    pauses: Callable[[Stages, SessionView], object] = lambda *_: False
    cause: str = ""


RUNS = {
    "two": Measured(FakeRun(), ("bf16", "fp16")),
    # Float8 has the factors of its products to be looked into, TF32 no autocast.
    "FP8": Measured(FakeRun(), ("fp8",)),
    "TF32": Measured(FakeRun(), ("tf32",)),
    "far slower": Measured(FakeRun(step_seconds={"fp32": 0.01, "fp16": 0.13}), ("fp16",)),
    "not here": Measured(FakeRun(refused={"bf16": ("unavailable", "no kernel")}), ("bf16", "fp16")),
    "failed": Measured(FakeRun(refused={"bf16": ("failed", "no kernel")}), ("bf16", "fp16")),
    "no time for all rounds": Measured(FakeRun(rounds_needed=10_000), ["bf16"], seconds=20.0),
    "a collapsed loss scale, and the others are compared again": Measured(
        FakeRun(rounds_needed=10),
        ("bf16", "fp16"),
        pauses=lambda stages, view: stages.doing == "alternating" and view.compared,
        cause="loss scale",
    ),
    "weights that bf16 lost": Measured(
        FakeRun(), ["bf16"], pauses=lambda _, view: view.precision == "bf16", cause="weights"
    ),
    "NaN in FP32": Measured(FakeRun(loss=math.nan), ["bf16"]),
    "Inf in FP32": Measured(FakeRun(loss=math.inf), ["bf16"]),
    "weights of another dtype": Measured(FakeRun(weights_dtype="float64"), ("bf16", "fp16")),
}


def test_each_precision_is_tried_then_compared_then_looked_into(goldens: Goldens) -> None:
    lines = []
    for name, (run, precisions, seconds, pauses, cause) in RUNS.items():
        stages, has_paused = Stages(precisions, seconds=seconds, clock=run.clock), False
        for _ in range(LOOKS):
            view = run.advance()
            if not has_paused and pauses(stages, view):
                run.pause(cause)
                has_paused = True
            stages.look(run.view, run)
            if stages.over:
                break
        assert stages.over
        assert stages.seconds_left() >= 0
        evidence = stages.evidence
        excluded = [
            f"{precision}: {one.kind} {one.detail or ''} {one.value or ''}".strip()
            for precision, one in evidence.exclusions.items()
        ]
        lines += [
            f"== {name}",
            f"asked: {'; '.join(short(request) for request in run.asked)}",
            f"looked into: {', '.join(evidence.numerics)}; window {bool(evidence.window)}",
            f"excluded: {'; '.join(excluded)}",
            f"missing: {evidence.missing}; lost in: {evidence.lost_in}",
        ]
    goldens.check("reports/advise stages", "\n".join(lines))


def test_progress_says_what_is_measured_and_how_long_it_takes_at_most() -> None:
    run = FakeRun(rounds_needed=10)
    stages = Stages(["bf16"], seconds=180.0, clock=run.clock)
    assert progress_words(stages, run.view) == ""
    stages.look(run.advance(), run)
    assert progress_words(stages, run.view) == "first steps in FP32, step 10, at most 3:00 left"
    while stages.doing != "alternating":
        stages.look(run.advance(), run)
    assert "alternating, round  1 of at most 24" in progress_words(stages, run.view)


# ------------------------------------------------------------------- the losses from the same start
NAN = math.nan


@pytest.mark.parametrize(
    ("baseline", "other", "state"),
    [
        ((1.0, 1.1, 0.9), (1.01, 1.08, 0.92), "same"),
        ((1.0, 1.01, 0.99), (2.0, 2.01, 1.99), "higher"),
        ((2.0, 2.01, 1.99), (1.0, 1.01, 0.99), "lower"),
        ((1.0, 1.0), (1.0, 1.0), "same"),
        ((1.0, 1.0), (1.5, 1.5), "higher"),
        ((1.0, 1.1), (1.0, NAN), "not finite"),
        ((1.0,), (math.inf,), "not finite"),
        ((1.0, NAN), (1.0, 1.0), None),
        ((1.0,), (1.0,), None),
        ((), (), None),
    ],
)
def test_losses_are_judged_by_the_noise_of_seeds(
    baseline: Sequence[float], other: Sequence[float], state: str | None
) -> None:
    finding = LossRace(steps=300, finals={"fp32": baseline, "bf16": other}).finding("bf16")
    assert (finding is None) == (state is None)
    if finding is not None:
        assert (finding.state, finding.about, finding.numbers["steps"]) == (state, "bf16", 300)


class _Trainer:
    """Trains in no time, and remembers what it was asked for."""

    def __init__(
        self, ends: Mapping[tuple[str, int], RaceTraining] | None = None, stops_at: int = 1000
    ) -> None:
        self.made: list[tuple[str, int, int]] = []
        self._ends, self._stops_at = ends or {}, stops_at

    def __call__(self, precision: str, seed: int, steps: int) -> RaceTraining:
        self.made.append((precision, seed, steps))
        if len(self.made) > self._stops_at:
            return RaceTraining(loss=None)
        return self._ends.get((precision, seed), RaceTraining(loss=1.0 + seed))


FAILS = {("fp16", 0): RaceTraining(loss=NAN), ("bf16", 1): RaceTraining(loss=None, error="no kernel")}

RACES: dict[str, tuple[_Trainer, float]] = {
    "each seed trains once in each precision": (_Trainer(), 60.0),
    "one that diverged or failed is trained no further": (_Trainer(FAILS), 60.0),
    "FP32 is not finite": (_Trainer({("fp32", 1): RaceTraining(loss=NAN)}), 60.0),
    "FP32 fails": (_Trainer({("fp32", 1): RaceTraining(loss=None, error="no memory")}), 60.0),
    "no time for another seed": (_Trainer(), 0.5),
    "interrupted": (_Trainer(stops_at=4), 60.0),
}
"""How precisions train, and the seconds that are left."""


def test_each_race_ends_as_approved(goldens: Goldens) -> None:
    lines = []
    for name, (train, seconds) in RACES.items():
        result = race(
            100,
            ("fp32", "bf16", "fp16"),
            train,
            round_seconds=0.001,
            seconds_left=partial(float, seconds),
            clock=partial(next, count(0.0)),
        )
        excluded = candidates(Evidence(view=EMPTY_VIEW), ("bf16", "fp16"), result)
        lines += [
            f"== {name}: {result.seeds} seeds; {result.why_not or 'all of it'}",
            f"trained: {'; '.join(f'{precision} {seed} {steps}' for precision, seed, steps in train.made)}",
            f"losses: {dict(result.finals)}; failed: {result.failed}",
            *(f"{one.precision}: {one.loss and one.loss.state}; {one.exclusion}" for one in excluded),
        ]
    goldens.check("reports/advise races", "\n".join(lines))
