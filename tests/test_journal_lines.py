"""The journal keeps its format: stored lines, one of each type of record, read and write identically."""

import json
from pathlib import Path
from typing import get_args

import pytest

from amptui.records import codec
from amptui.records.run import Record
from amptui.records.steps import Steps

LINES = (Path(__file__).parent / "journal_lines.jsonl").read_text(encoding="ascii").splitlines()


def test_there_is_a_line_of_each_type() -> None:
    assert [json.loads(line)["type"] for line in LINES] == [cls.__name__ for cls in get_args(Record)]


@pytest.mark.parametrize("line", LINES, ids=lambda line: json.loads(line)["type"])
def test_a_stored_line_reads_and_writes_identically(line: str) -> None:
    record = codec.loads(line)
    assert record is not None
    if "StepRecord" in line:  # of versions that wrote a line for each step
        assert isinstance(record, Steps)
        record = record.one(0)
    assert codec.dumps(record) == line


NEW_FIELDS = {
    "RunStarted": ("optimizer",),
    "Steps": ("optimizer", "loss_form"),
    "StepRecord": ("optimizer", "loss_form"),
    "PrecisionChanged": ("optimizer",),
    "LossScaleChanged": ("optimizer",),
    "StepSkipped": ("optimizer",),
    "NonFinite": ("optimizer",),
    "GradientsDropped": ("optimizer",),
    "UpdatesMeasured": ("optimizer",),
}
"""Fields that journals had not before a run could have several optimizers."""


@pytest.mark.parametrize("line", LINES, ids=lambda line: json.loads(line)["type"])
def test_a_line_without_an_optimizer_is_of_the_first(line: str) -> None:
    fields = json.loads(line)
    names = NEW_FIELDS.get(fields["type"], ())
    record = codec.loads(json.dumps({name: value for name, value in fields.items() if name not in names}))
    assert record is not None
    assert [getattr(record, name) for name in names] == [""] * len(names)


@pytest.mark.parametrize(
    ("kind", "part", "names"),
    [
        ("Float16Window", "worst", ("squares", "flushed_squares", "subnormal_squares")),
        ("XRayTaken", "layers", ("norm", "underflowing")),
        ("XRayTaken", "layers", ("in_float8", "reference")),
    ],
)
def test_a_line_from_before_norms_were_measured_has_none(
    kind: str, part: str, names: tuple[str, ...]
) -> None:
    fields = next(fields for line in LINES if (fields := json.loads(line))["type"] == kind)
    for holder in (fields, *fields[part]):
        for name in names:
            holder.pop(name, None)
    record = codec.loads(json.dumps(fields))
    assert [getattr(item, name) for item in getattr(record, part) for name in names] == [None] * (
        len(names) * len(getattr(record, part))
    )
