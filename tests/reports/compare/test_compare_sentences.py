"""The sentences of a comparison, each asserted here once."""

import math
from dataclasses import replace
from typing import get_args

import pytest

from amptui.base import units
from amptui.records.run import RunFailed
from amptui.reports.compare import sentences
from amptui.reports.compare.contrasts import Check, Kind, compared
from amptui.reports.compare.groups import Spread
from amptui.reports.compare.trace import RunFigures
from tests.reports.compare.compared_runs import figures, seeds, started, trained, whole_run

NEAR, FAR = [1.0, 1.1, 0.9], [2.0, 2.1, 1.9]
SIDES = "B AMP bf16 against A FP32"


def verdict(ours: list[RunFigures], theirs: list[RunFigures]) -> str:
    found = compared([*ours, *theirs])
    return sentences.verdict(found.contrasts[0], found)


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        (NEAR, FAR, "+1.00 (95% interval +0.773 to +1.23). They differ by more than the seeds do"),
        (
            NEAR,
            [1.05, 0.95, 1.06],
            (
                "+0.0200 (95% interval −0.195 to +0.235). No difference shown: the seeds differ by as much. "
                "With such seeds a difference of 0.340 would show 8 times in 10"
            ),
        ),
        (NEAR[:1], FAR[:1], "+1.00. No verdict: one seed each, and it takes 2 or more of each"),
        (NEAR, FAR[:1], "+1.00. No verdict: B AMP bf16 has one seed, and it takes 2 or more of each"),
        ([1.0, 1.0], [2.0, 2.0], "+1.00. No verdict: the seeds of each group ended at the same loss"),
    ],
)
def test_verdicts(ours: list[float], theirs: list[float], words: str) -> None:
    told = verdict(seeds(ours), seeds(theirs, precision="bf16"))
    assert told == f"{SIDES}: final training loss {words}"


def test_a_run_that_ended_at_nan_is_named() -> None:
    told = verdict(seeds(NEAR), seeds([2.0, math.nan], precision="bf16"))
    assert told == f"{SIDES}: the final training loss is NaN or Inf in bf16-1"


def test_verdicts_that_wait_or_cannot_be() -> None:
    ours, theirs = seeds(NEAR), seeds(FAR, precision="bf16")
    live = [replace(run, is_live=True) for run in theirs]
    assert verdict(ours, live).endswith("No verdict: a run still trains")
    partly = [replace(run, read_share=0.5) for run in theirs]
    assert verdict(ours, partly).endswith("No verdict: not all journals are read yet")
    longer = seeds(FAR, precision="bf16", steps=60)
    assert verdict(ours, longer).endswith("+1.00. No verdict: it was not the same training, see below")
    silent = [figures([started(precision="bf16"), *trained([None] * 30, precision="bf16")])]
    assert verdict(ours, silent) == f"{SIDES}: no verdict on the final training loss: a run has no loss"


def test_how_bad_a_verdict_is() -> None:
    found = compared([*seeds(NEAR), *seeds(FAR, precision="bf16"), *seeds([0.1, 0.2, 0.3], precision="fp16")])
    assert [sentences.severity(contrast) for contrast in found.contrasts] == ["warning", "info"]
    found = compared([*seeds(NEAR), *seeds([math.nan] * 2, precision="bf16"), *seeds(NEAR, precision="fp16")])
    assert [sentences.severity(contrast) for contrast in found.contrasts] == ["error", None]


@pytest.mark.parametrize("kind", get_args(Kind))
def test_every_check_has_a_sentence(kind: Kind) -> None:
    told = sentences.check(Check(kind=kind, groups=("one", "two"), values=("x", "y")))
    assert "one" in told
    assert "two" in told
    assert "{" not in told


def test_values_stand_beside_their_groups() -> None:
    told = sentences.check(Check(kind="samples", groups=("A", "B"), values=("3,840", "1,000 to 2,000")))
    assert "(A: 3,840; B: 1,000 to 2,000)" in told


@pytest.mark.parametrize(
    ("spread", "words"),
    [
        (Spread(mean=0.5, low=0.4, high=0.6, runs=3), "0.500 [0.400–0.600]"),
        (Spread(mean=0.5, low=0.5, high=0.5, runs=3), "0.500"),
        (Spread(mean=0.5, low=0.5, high=0.5, runs=1), "0.500"),
        (Spread(mean=math.nan, low=math.nan, high=math.nan, runs=2), "nan"),
        (None, units.NOT_AVAILABLE),
    ],
)
def test_spreads(spread: Spread | None, words: str) -> None:
    assert sentences.spread(spread, units.loss) == words


def test_a_unit_stands_once_where_both_ends_have_it() -> None:
    found = Spread(mean=2.0, low=0.5, high=3.0, runs=2)
    assert sentences.spread(found, units.milliseconds) == "2.00 s [500 ms–3.00 s]"
    found = Spread(mean=2.0, low=1.5, high=3.0, runs=2)
    assert sentences.spread(found, units.milliseconds) == "2.00 s [1.50–3.00 s]"
    assert sentences.spread(found, units.rate) == "2.00/s [1.50–3.00/s]"


def test_states() -> None:
    run = figures(whole_run())
    assert sentences.state(run) == "done"
    dead = figures(whole_run()[:-1])
    assert sentences.state(dead) == "unfinished"
    assert sentences.state(replace(dead, is_live=True)) == "running"
    assert sentences.state(replace(run, read_share=0.25)) == "reading 25%"
    failure = RunFailed(time=999.0, step=30, error="out of memory", traceback="")
    assert sentences.state(figures([*whole_run()[:-1], failure])) == "failed"


def test_differences_name_each_group() -> None:
    found = compared([*seeds(NEAR), *seeds(FAR, precision="bf16", config={"width": 3})])
    assert sentences.difference_lines(found) == [
        "precision: A FP32; B AMP bf16",
        "width: A none; B 3",
    ]


def test_the_heading_has_what_all_runs_share() -> None:
    runs = [*seeds(NEAR), *seeds(FAR, precision="bf16", device_name="NVIDIA A100")]
    assert sentences.heading(compared(runs)) == "6 runs in 2 groups: mnist-deep, MNIST"
    assert sentences.heading(compared([figures([]), figures([])])) == "2 runs in 1 group"


def test_a_ratio_of_speeds_has_its_range_if_it_has_one() -> None:
    one = compared([*seeds(NEAR[:1]), *seeds(FAR[:1], precision="bf16")]).contrasts[0]
    assert sentences.speed(one) == "B AMP bf16: 1.00× the speed of A FP32"
    assert one.speedup is not None
    several = replace(one, speedup=replace(one.speedup, low=0.5))
    assert sentences.speed(several).endswith("of A FP32, 0.50× to 1.00× from run to run")
    assert sentences.speed(replace(one, speedup=None)) == ""
