"""What is asked of a run, in which order, and what ends it early; the losses from the same start."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import pytest

from amptui.records.answers import Answer, Refusal, RequestMade, RequestRefused, RequestTaken
from amptui.records.findings import MemoryKind
from amptui.records.run import PauseCause, PauseChanged
from amptui.reports.advise.advice import Evidence, candidates
from amptui.reports.advise.loss_race import LossRace, RaceTraining, race
from amptui.reports.advise.stages import Stages, progress_words
from amptui.telemetry.session import Session
from amptui.telemetry.view import SessionView
from tests.builders import fold, make_started, make_steps, make_switch
from tests.golden import Goldens
from tests.reports.advise.situations import row
from tests.telemetry import record_samples as samples

LOOKS = 400


@dataclass
class FakeRun:
    """Each look is ten steps later; ``step_seconds`` and ``refused`` are by precision."""

    step_seconds: Mapping[str, float] = field(default_factory=dict)
    refused: Mapping[str, tuple[Refusal, str]] = field(default_factory=dict)
    rounds_needed: int = 3
    weights_dtype: str = "float32"
    loss: float = 1.0
    asked: list[RequestMade] = field(default_factory=list)
    now: float = 0.0
    stop_reason: str | None = None
    precision: str = "fp32"
    session: Session = field(default_factory=lambda: fold([make_started()]))

    @property
    def view(self) -> SessionView:
        return self.session.view()

    def clock(self) -> float:
        return self.now

    def ask(self, request: RequestMade) -> int:
        self.asked.append(request)
        facts: dict[str, Any] = {"time": 0.0, "step": self.view.step, "request": request}
        answer: Answer = RequestTaken(**facts)
        match request:
            case RequestMade(kind="precision", precision=str(precision)) if precision in self.refused:
                reason, detail = self.refused[precision]
                answer = RequestRefused(**facts, reason=reason, detail=detail)
            case RequestMade(kind="precision", precision=str(precision)):
                self.session.fold([make_switch(self.view.step + 1, self.precision, precision)])
                self.precision = precision
                self._compare(())
            case RequestMade(kind="comparison", precisions=precisions):
                self._compare(precisions)
            case RequestMade(kind="x-ray"):
                self.session.fold([samples.xray(self.view.step, precision=self.precision)])
            case RequestMade(kind="pause", paused=bool(paused)):
                self.pause("", paused=paused)
        self.session.fold([answer])
        return request.number

    def pause(self, cause: PauseCause, *, paused: bool = True) -> None:
        self.session.fold([PauseChanged(time=0.0, step=self.view.step, paused=paused, cause=cause)])

    def advance(self) -> SessionView:
        """Make steps, unless paused, and return the new view."""
        self.now += 0.1
        if self.view.state != "paused":
            first, seconds = self.view.step + 1, self.step_seconds.get(self.precision, 0.01)
            facts = {"precision": self.precision, "loss": self.loss, "step_seconds": seconds}
            weights = (MemoryKind(kind="weights", dtype=self.weights_dtype, size_bytes=8),)
            memory = replace(samples.memory("fp32", step=first), kinds=weights)
            self.session.fold(make_steps(first, first + 9, grad_max=0.1, **facts))
            self.session.fold([samples.window(first), memory])
            if (last := self.view.compared) is not None and not last.over:
                self._compare([row.precision for row in last.rows], last.rounds + 1)
        return self.view

    def _compare(self, sides: Sequence[str], rounds: int = 0) -> None:
        """Without ``sides`` the comparison ends."""
        rows, over = [row(name, 1.5) for name in sides], not sides or rounds >= self.rounds_needed
        self.session.fold([samples.compared(self.view.step, rounds=rounds, rows=tuple(rows), over=over)])


def short(request: RequestMade) -> str:
    facts = request.precision, request.paused, request.precisions if request.kind == "comparison" else None
    return " ".join(map(str, (request.kind, *(fact for fact in facts if fact is not None))))


class Measured(NamedTuple):
    """A run, what it is asked to compare, and when it pauses by itself, of which cause."""

    run: FakeRun
    candidates: Sequence[str]
    seconds: float = 1000.0
    pauses: Callable[[Stages, SessionView], object] = lambda *_: False
    cause: PauseCause = ""


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
            f"asked: {'; '.join(map(short, run.asked))}",
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


@dataclass
class _Trainer:
    """Trains in no time, and remembers what it was asked for."""

    ends: Mapping[tuple[str, int], RaceTraining] = field(default_factory=dict)
    stops_at: int = 1000
    made: list[tuple[str, int, int]] = field(default_factory=list)

    def __call__(self, precision: str, seed: int, steps: int) -> RaceTraining:
        self.made.append((precision, seed, steps))
        if len(self.made) > self.stops_at:
            return RaceTraining(loss=None)
        return self.ends.get((precision, seed), RaceTraining(loss=1.0 + seed))


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
        excluded = candidates(Evidence(race=result), ("bf16", "fp16"))
        lines += [
            f"== {name}: {result.seeds} seeds; {result.why_not or 'all of it'}",
            f"trained: {'; '.join(f'{precision} {seed} {steps}' for precision, seed, steps in train.made)}",
            f"losses: {dict(result.finals)}; failed: {result.failed}",
            *(f"{one.precision}: {one.loss and one.loss.state}; {one.exclusion}" for one in excluded),
        ]
    goldens.check("reports/advise races", "\n".join(lines))
