"""The losses from the same start: what is trained, and what follows from it."""

import math
from collections.abc import Mapping, Sequence

import pytest

from amptui.diagnosis.amp_finding import Finding
from amptui.reports.advise.advice import is_safe
from amptui.reports.advise.evidence import Evidence, Exclusion, candidates
from amptui.reports.advise.loss_race import (
    MAX_SEEDS,
    MIN_LOSS_STEPS,
    LossRace,
    Outcome,
    RacePlan,
    RaceTraining,
    plan_race,
    race,
)
from amptui.telemetry.session import Session
from amptui.telemetry.view import EMPTY_VIEW
from tests.diagnosis.amp_records import both

NAN = math.nan


@pytest.mark.parametrize(
    ("baseline", "other", "outcome"),
    [
        ((1.0, 1.1, 0.9), (1.01, 1.08, 0.92), "same"),
        ((1.0, 1.01, 0.99), (2.0, 2.01, 1.99), "higher"),
        ((2.0, 2.01, 1.99), (1.0, 1.01, 0.99), "lower"),
        ((1.0, 1.0), (1.0, 1.0), "same"),
        ((1.0, 1.0), (1.5, 1.5), "higher"),
        ((1.0, 1.1), (1.0, NAN), "not finite"),
        ((1.0,), (math.inf,), "not finite"),
        ((1.0, NAN), (1.0, 1.0), "not measured"),
        ((1.0,), (1.0,), "not measured"),
        ((), (), "not measured"),
    ],
)
def test_losses_are_judged_by_the_noise_of_seeds(
    baseline: Sequence[float], other: Sequence[float], outcome: Outcome
) -> None:
    value = LossRace(steps=300, finals={"fp32": baseline, "bf16": other})
    assert value.compared("bf16").outcome == outcome
    finding = value.finding("bf16")
    assert (finding is None) == (outcome == "not measured")
    if finding is not None:
        assert (finding.state, finding.about, finding.whole) == (outcome, "bf16", 300)


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


def test_each_seed_trains_once_in_each_precision() -> None:
    train = _Trainer()
    result = race(plan_race(100, 0.001, 60.0), ("fp32", "bf16"), train, seconds_left=lambda: 60.0)
    assert train.made == [(name, seed, 100) for seed in range(MAX_SEEDS) for name in ("fp32", "bf16")]
    assert (result.seeds, result.why_not) == (MAX_SEEDS, "")


def test_a_precision_that_diverged_or_failed_is_trained_no_further_and_its_error_is_kept() -> None:
    train = _Trainer(
        {("fp16", 0): RaceTraining(loss=NAN), ("bf16", 1): RaceTraining(loss=None, error="no kernel")}
    )
    result = race(plan_race(100, 0.001, 60.0), ("fp32", "bf16", "fp16"), train, seconds_left=lambda: 60.0)
    assert [[name for name, *_ in train.made].count(each) for each in ("bf16", "fp16")] == [2, 1]
    assert result.compared("fp16").outcome == "not finite"
    assert (result.seeds, result.failed, result.why_not) == (MAX_SEEDS, {"bf16": "no kernel"}, "")
    (candidate,) = candidates(Evidence(view=EMPTY_VIEW), ("bf16",), result)
    assert candidate.exclusion == Exclusion("failed", "no kernel")


@pytest.mark.parametrize("end", [RaceTraining(loss=NAN), RaceTraining(loss=None, error="no memory")])
def test_nothing_is_compared_with_an_fp32_that_fails(end: RaceTraining) -> None:
    train = _Trainer({("fp32", 1): end})
    result = race(plan_race(100, 0.001, 60.0), ("fp32", "bf16"), train, seconds_left=lambda: 60.0)
    assert len(train.made) == 3
    assert result.seeds == 1, "whose loss counts"
    assert result.compared("bf16").outcome == "not measured"
    assert (end.error or "not finite") in result.why_not


def test_what_went_wrong_in_the_steps_is_the_answers_finding() -> None:
    session = Session()
    session.fold(both())
    place = Finding(subject="forward", state="overflowed", grade="error", about="fp16", place="norm")
    train = _Trainer({("fp16", 1): RaceTraining(loss=1.0, trouble=place)})
    result = race(plan_race(100, 0.001, 60.0), ("fp32", "fp16"), train, seconds_left=lambda: 60.0)
    (candidate,) = candidates(Evidence(view=session.view()), ("fp16",), result)
    assert candidate.answer is not None
    assert candidate.answer.cause == place
    assert not is_safe(candidate)


def test_it_ends_when_there_is_no_time_for_another_seed() -> None:
    ticks = iter(range(1000))
    result = race(
        plan_race(100, 0.001, 60.0),
        ("fp32", "bf16"),
        _Trainer(),
        seconds_left=lambda: 0.5,
        clock=lambda: float(next(ticks)),
    )
    assert result.seeds == 3


def test_an_interrupted_race_keeps_what_it_has() -> None:
    result = race(plan_race(9, 0.0, 60.0), ("fp32", "bf16"), _Trainer(stops_at=3), seconds_left=lambda: 60.0)
    assert (result.seeds, result.why_not) == (2, "it was interrupted")
    assert len(result.finals["bf16"]) == 1


def test_fewer_steps_are_made_where_time_is_short_and_none_where_they_would_say_nothing() -> None:
    assert plan_race(300, 0.1, 90.0) == RacePlan(steps=300, seeds=3)
    assert plan_race(300, 0.1, 60.0) == RacePlan(steps=200, seeds=3)
    assert plan_race(300, 0.6, 60.0) == RacePlan(steps=50, seeds=2)
    assert plan_race(300, 0.001, 60.0).steps == 300
    too_slow = plan_race(300, 2.0, 60.0)
    assert too_slow.steps == 0
    assert f"{2 * MIN_LOSS_STEPS * 2 - 60} s more" in too_slow.why_not
    assert plan_race(10, 0.1, 60.0).steps == 10
