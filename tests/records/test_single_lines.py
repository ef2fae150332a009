"""Lines of single steps: what is read quickly is what the codec reads."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from amptui.base import strictjson
from amptui.records import codec, single_lines
from amptui.records.codec import Codec
from amptui.records.steps import StepRecord, Steps
from tests.telemetry.record_samples import step, steps
from tests.telemetry.record_strategies import STEPS

SLOWLY = Codec[StepRecord](StepRecord)

ODD: list[Any] = [
    None,
    True,
    "",
    "nan",
    "x",
    -1,
    0,
    2**53 + 1,
    10**30,
    -0.5,
    1e300,
    [],
    {},
    [0.5],
    {"a": 0.5},
]


def agrees(line: str) -> bool:
    """Whether ``line`` is left to the codec, or read as the codec reads it."""
    quickly = single_lines.loads(line)
    return quickly is None or quickly == Steps.of(SLOWLY.read(strictjson.parse(line)))


@given(STEPS)
def test_a_step_is_read_as_the_codec_reads_it(record: StepRecord) -> None:
    assert agrees(codec.dumps(record))


@given(st.sampled_from([*json.loads(codec.dumps(step(1)))]), st.sampled_from(ODD))
def test_an_odd_value_is_left_to_the_codec(name: str, value: Any) -> None:
    line = json.dumps(json.loads(codec.dumps(step(1))) | {name: value}, separators=(",", ":"))
    assert agrees(line)


def test_usual_lines_are_read_quickly_also_those_of_the_first_versions() -> None:
    usual = [*steps(1, 3), step(4, precision="fp16", skipped=True), step(5, loss=None, grad_max=0.5)]
    assert [single_lines.loads(codec.dumps(record)) for record in usual] == [*map(Steps.of, usual)]
    fields = json.loads(codec.dumps(step(1)))
    for name in ("grad_max", "losses", "micro_batches", "group_lrs", "optimizer", "loss_form"):
        del fields[name]
    assert single_lines.loads(json.dumps(fields, separators=(",", ":"))) == Steps.of(step(1))
