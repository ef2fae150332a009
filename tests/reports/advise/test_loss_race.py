"""The losses from the same start: what is trained, and what follows from it."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import count

import pytest

from amptui.reports.advise.evidence import Evidence, candidates
from amptui.reports.advise.loss_race import (
    LossRace,
    Outcome,
    RaceTraining,
    race,
)
from amptui.telemetry.view import EMPTY_VIEW
from tests.golden import Goldens

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
        assert (finding.state, finding.about, finding.numbers["steps"]) == (outcome, "bf16", 300)


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
            *(
                f"{one.precision}: {result.compared(one.precision).outcome}; {one.exclusion}"
                for one in excluded
            ),
        ]
    goldens.check("reports/advise races", "\n".join(lines))
