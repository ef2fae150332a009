"""Which runs are one group, and what sets groups apart."""

from typing import Any

import pytest

from amptui.records.run import PrecisionChanged, Record
from amptui.reports.compare.groups import grouped, options
from tests.reports.compare.compared_runs import SYNTHETIC as SYNTHETIC_DATA
from tests.reports.compare.compared_runs import figures, started, trained, whole_run


def letters(*runs: list[Any]) -> list[str]:
    """The group of each run."""
    result = [figures(records, name=str(number)) for number, records in enumerate(runs)]
    groups = grouped(result)
    return [next(group.letter for group in groups if run in group.runs) for run in result]


@pytest.mark.parametrize(
    ("changes", "other_group"),
    [
        ({"seed": 1}, False),
        ({"precision": "bf16", "seed": 1}, True),
        ({"config": {"learning_rate": 0.2}}, True),
        ({"config": {"width": 3}}, True),
        ({"model": "other"}, True),
        ({"device_name": "NVIDIA A100"}, True),
        ({"data": SYNTHETIC_DATA}, True),
        ({"versions": {"torch": "2.10"}}, True),
        ({"hardware": {"threads": 3}}, True),
        ({"total_steps": 99}, True),
        ({"world_size": 2}, True),
        ({"parameters": 3}, True),
        # What a journal does not have is not used.
        ({"seed": 1, "config": {"channels_last": False, "compile": None, "accumulate": 1}}, False),
        ({"config": {"channels_last": False, "compile": None, "accumulate": 2}}, True),
    ],
)
def test_whatever_differs_but_the_seed_makes_another_group(
    changes: dict[str, Any], other_group: bool
) -> None:
    first, second = letters(whole_run(), whole_run(**changes))
    assert (first != second) == other_group


def test_groups_have_the_letters_of_their_precisions_where_each_has_one_of_its_own() -> None:
    in_three = [whole_run(precision=precision) for precision in ("fp32", "fp16", "bf16")]
    assert letters(*in_three) == ["F", "H", "B"]
    assert letters(*in_three, whole_run(parameters=3)) == ["A", "B", "C", "D"]


def test_a_switch_makes_another_group() -> None:
    switched: list[Record] = [
        started(),
        *trained([1.0] * 10),
        PrecisionChanged(time=111.0, step=11, previous="fp32", current="bf16"),
        *trained([1.0] * 10, first=11, precision="bf16"),
    ]
    assert letters(whole_run(steps=20), switched) == ["A", "B"]
    result = grouped([figures(switched)])[0]
    assert result.precision is None
    assert options(figures(switched))["precision"].count("11") == 1
