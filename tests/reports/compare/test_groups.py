"""Which runs are one group, and what sets groups apart."""

import math
from typing import Any

import pytest

from amptui.records.run import PrecisionChanged, Record
from amptui.reports.compare.groups import colours, differences, grouped, options
from tests.reports.compare.compared_runs import BF16, FP32, figures, started, trained, whole_run
from tests.reports.compare.compared_runs import SYNTHETIC as SYNTHETIC_DATA


def letters(*runs: list[Any], asked: list[dict[str, Any]] | None = None) -> list[str]:
    """The group of each run."""
    given = asked or [{}] * len(runs)
    found = [
        figures(records, name=str(number), asked=each)
        for number, (records, each) in enumerate(zip(runs, given, strict=True))
    ]
    groups = grouped(found)
    return [next(group.letter for group in groups if run in group.runs) for run in found]


def test_runs_that_differ_in_the_seed_are_one_group() -> None:
    assert letters(whole_run(seed=0), whole_run(seed=1), whole_run(seed=2, precision="bf16")) == [
        "A",
        "A",
        "B",
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"config": {"learning_rate": 0.2}},
        {"config": {"width": 3}},
        {"model": "other"},
        {"device_name": "NVIDIA A100"},
        {"data": SYNTHETIC_DATA},
        {"versions": {"torch": "2.10"}},
        {"hardware": {"threads": 3}},
        {"total_steps": 99},
        {"parameters": 3},
    ],
)
def test_whatever_else_differs_makes_another_group(changes: dict[str, Any]) -> None:
    assert letters(whole_run(), whole_run(**changes)) == ["A", "B"]


def test_options_that_only_run_json_has_count_if_they_change_the_training() -> None:
    runs = [whole_run()] * 4
    asked: list[dict[str, Any]] = [
        {},
        {"compiled": True, "seed": 1},
        {
            "compiled": False,
            "channels_last": None,
            "accumulate": 1,
            "save_weights": "/x/seed2.pt",
            "max_restarts": 3,
            "seed": 2,
        },
        {"accumulate": 4},
    ]
    assert letters(*runs, asked=asked) == ["A", "B", "A", "C"]


def test_a_journal_without_a_newer_option_is_one_of_the_group_that_does_not_use_it() -> None:
    newer = {"channels_last": False, "compile": None, "accumulate": 1}
    assert letters(whole_run(), whole_run(seed=1, config=newer)) == ["A", "A"]
    assert letters(whole_run(), whole_run(config={**newer, "accumulate": 2})) == ["A", "B"]


def test_an_option_that_one_run_did_not_use_has_its_recorded_value() -> None:
    first = figures(whole_run(config={"flag": True, "accumulate": 4, "newer": 3}))
    second = figures(whole_run(config={"flag": False, "accumulate": 1}))
    told = {each.name: each.values for each in differences([first, second])}
    assert told == {"flag": ("True", "False"), "accumulate": ("4", "1"), "newer": ("3", "")}


def test_a_switch_makes_another_group() -> None:
    switched: list[Record] = [
        started(),
        *trained([1.0] * 10),
        PrecisionChanged(time=111.0, step=11, previous="fp32", current="bf16"),
        *trained([1.0] * 10, first=11, precision="bf16"),
    ]
    assert letters(whole_run(steps=20), switched) == ["A", "B"]
    found = grouped([figures(switched)])[0]
    assert found.precision is None
    assert options(figures(switched))["precision"].count("11") == 1


def test_labels_tell_groups_apart() -> None:
    runs = [whole_run(precision="bf16"), whole_run(), whole_run(config={"learning_rate": 0.2})]
    labels = [group.label for group in grouped([figures(run) for run in runs])]
    assert labels[0] == "AMP bf16"
    assert labels[1].startswith("FP32 ")
    assert "0.1" in labels[1]
    assert "0.2" in labels[2]


def test_machines_are_in_a_label_only_where_nothing_else_differs() -> None:
    runs = [whole_run(), whole_run(versions={"torch": "2.10"})]
    assert "2.10" in grouped([figures(run) for run in runs])[1].label
    runs = [whole_run(), whole_run(versions={"torch": "2.10"}, config={"learning_rate": 0.2})]
    assert "2.10" not in grouped([figures(run) for run in runs])[1].label


def test_differences_are_the_options_that_are_not_the_same() -> None:
    runs = [figures(whole_run()), figures(whole_run(precision="bf16", config={"extra": 1}))]
    found = {each.name: each.values for each in differences(runs)}
    assert found == {"precision": ("FP32", "AMP bf16"), "extra": ("", "1")}


@pytest.mark.parametrize(
    ("precisions", "expected"),
    [
        (["bf16", "fp32"], ["bf16", "fp32"]),
        (["fp32", "fp32", "fp32"], ["fp32", "first", "second"]),
        ([None, "fp16", "odd"], ["first", "fp16", "second"]),
        (["fp32"] * 9, ["fp32", "first", "second", "third", "ieee", "tf32", "fp16", "bf16", ""]),
    ],
)
def test_colours_are_those_of_precisions_and_never_shared(
    precisions: list[str | None], expected: list[str]
) -> None:
    assert colours(precisions) == expected


def test_a_spread_has_mean_and_range() -> None:
    group = grouped([figures(whole_run(loss, seed=seed)) for seed, loss in enumerate((1.0, 2.0, 6.0))])[0]
    spread = group.spread(lambda run: run.final_training)
    assert spread is not None
    assert (spread.mean, spread.low, spread.high, spread.runs) == pytest.approx((3, 1, 6, 3))
    assert group.spread(lambda run: run.final_validation) is None


def test_nan_makes_a_spread_nan() -> None:
    group = grouped([figures(whole_run(loss, seed=seed)) for seed, loss in enumerate((1.0, math.nan))])[0]
    spread = group.spread(lambda run: run.final_training)
    assert spread is not None
    assert math.isnan(spread.mean)


def test_a_seed_that_ran_twice_counts_once() -> None:
    runs = [whole_run(loss, seed=seed) for loss, seed in ((1.0, 0), (3.0, 0), (7.0, 1))]
    group = grouped([figures(run) for run in runs])[0]
    assert group.seeds == (0, 1)
    assert group.by_seed(lambda run: run.final_training) == pytest.approx([2.0, 7.0])


def test_seeds_that_are_not_told_count_as_one() -> None:
    runs = [figures(whole_run(loss, seed=None)) for loss in (1.0, 3.0)]
    assert len(grouped(runs)[0].by_seed(lambda run: run.final_training)) == 1


def test_the_recorded_runs_are_two_groups_of_three() -> None:
    from amptui.reports.compare.following import read_all

    found = read_all([*FP32, *BF16], target=None)
    assert [group.seeds for group in found.groups] == [(0, 1, 2), (0, 1, 2)]
    assert [each.name for each in found.differences] == ["precision"]
