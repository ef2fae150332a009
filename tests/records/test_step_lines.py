"""Blocks of steps as lines: short where steps are alike, and refused where no run could have written them."""

import json
from typing import Any

import pytest

from amptui.base.strictjson import MAX_COUNT, JsonError
from amptui.records import codec
from amptui.records.step_lines import LINE_BEGINS, MAX_STEPS
from amptui.records.steps import Steps
from tests.builders import joined
from tests.checkout import ROOT
from tests.telemetry.record_samples import steps


def block(last: int = 3) -> Steps:
    return joined(steps(1, last, time=1e6, loss=0.5))


def line_with(**changes: Any) -> str:
    """The line of a block of three steps, with other values."""
    return json.dumps(json.loads(codec.dumps(block())) | changes)


def test_what_all_steps_have_in_common_is_written_once() -> None:
    short, long = codec.dumps(block(2)), codec.dumps(block(50))
    assert len(long) == len(short) + 1, "the count has a digit more"
    assert codec.loads(long) == block(50)


def test_the_name_of_a_part_of_the_loss_may_hold_half_of_a_surrogate_pair() -> None:
    record = joined(steps(1, 3, time=1e6, losses={"\ud83dhalf": 0.25}))
    assert codec.loads(codec.dumps(record)) == record


@pytest.mark.parametrize(
    "seconds", [[0.5, "nan", 0.5], ["nan", 0.5, 0.5], [0.5, 0.5, "nan"], [0.1, "inf", 1]]
)
def test_seconds_that_are_no_number_are_refused_wherever_they_stand(seconds: list[Any]) -> None:
    with pytest.raises(JsonError, match="_seconds: expected numbers from"):
        codec.loads(line_with(step_seconds=seconds))
    with pytest.raises(JsonError, match="_seconds: expected numbers from"):
        codec.loads(line_with(data_seconds=seconds))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"count": 0}, "expected an integer from 1 to"),
        ({"count": MAX_STEPS + 1}, "expected an integer from 1 to"),
        ({"first_step": MAX_COUNT}, "expected an integer from 0 to"),
        ({"loss": [0.5, 0.5]}, "loss: 2 values for 3 steps"),
        ({"loss": [0.5, True, 0.5]}, "loss: expected numbers"),
        ({"samples": [1, None, 1]}, "samples: not measured"),
        ({"growth_tracker": [1, -1, 1]}, "growth_tracker: expected numbers from 0 to"),
        ({"losses": {"ce": [1.0]}}, "losses: 1 values for 3 steps"),
        ({"losses": []}, "expected columns"),
        ({"group_lrs": {}}, "expected columns"),
    ],
)
def test_a_block_that_no_run_writes_is_refused_and_the_line_says_why(changes: Any, told: str) -> None:
    with pytest.raises(JsonError, match=f"^Steps: {told}"):
        codec.loads(line_with(**changes))


def test_the_line_of_the_guide_is_one() -> None:
    guide = (ROOT / "demo" / "guide" / "runs.md").read_text()
    (line,) = (line for line in guide.splitlines() if line.startswith(LINE_BEGINS))
    steps = codec.loads(line)
    assert isinstance(steps, Steps)
    assert (steps.first_step, steps.last_step) == (41, 43)
    assert codec.dumps(steps) == line


def test_what_a_line_of_a_block_lacks_is_named() -> None:
    fields = json.loads(codec.dumps(block()))
    del fields["loss"], fields["count"]
    with pytest.raises(JsonError, match="Steps: missing count, loss"):
        codec.loads(json.dumps(fields))
