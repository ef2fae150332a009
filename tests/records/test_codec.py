"""Records as lines of JSON that any parser takes: each survives, and the journal's form stays."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.base.strictjson import MAX_LINE_BYTES, MAX_TEXT_CHARACTERS, JsonError
from amptui.records import codec
from amptui.records.codec import MAX_STEPS
from amptui.records.run import FORM, Note, Printed, Record, RunStarted
from amptui.records.steps import Steps
from tests.builders import changed, in_one, make_started, make_step
from tests.checkout import ROOT
from tests.record_values import JSON_VALUES, RECORD_TYPES, records_of
from tests.telemetry.record_samples import steps

RUN = make_started(config={})
STEP = make_step(7, loss=0.25, precision="fp16")


def block(last: int = 3) -> Steps:
    return in_one(steps(1, last, time=1e6, loss=0.5))


def line_with(record: Record, **changes: Any) -> str:
    """The line of ``record``, with other values."""
    return json.dumps(json.loads(codec.dumps(record)) | changes)


def refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is not strict JSON")


@pytest.mark.parametrize("cls", RECORD_TYPES, ids=lambda cls: cls.__name__)
@given(data=st.data())
def test_every_record_survives_as_one_line_of_strict_ascii_json(cls: type[Any], data: st.DataObject) -> None:
    record = data.draw(records_of(cls))
    line = codec.dumps(record)
    # A column is a list once it was read; repr rather than ==, because NaN is a value here.
    assert repr(codec.loads(line)).translate(AS_LISTS) == repr(record).translate(AS_LISTS)
    assert codec.loads(line.encode()) is not None
    assert line.isascii()
    assert line.isprintable()
    parsed = json.loads(line, parse_constant=refuse_constant)
    assert [*parsed][:2] == ["type", "time"]
    assert parsed["type"] == type(record).__name__


AS_LISTS = str.maketrans("()", "[]", ",")


@given(data=st.data())
def test_a_field_of_any_other_json_type_never_breaks_the_reader(data: st.DataObject) -> None:
    cls = data.draw(st.sampled_from(RECORD_TYPES))
    fields = json.loads(codec.dumps(data.draw(records_of(cls))))
    fields[data.draw(st.sampled_from(sorted(fields.keys() - {"type"})))] = data.draw(JSON_VALUES)
    told = ""
    try:
        codec.loads(json.dumps(fields))
    except JsonError as error:
        told = str(error)
    assert "\n" not in told


@pytest.mark.parametrize(
    ("number", "text"), [(math.nan, '"nan"'), (math.inf, '"inf"'), (-math.inf, '"-inf"'), (None, "null")]
)
def test_nonfinite_numbers_are_strings_and_unmeasured_ones_null(number: float | None, text: str) -> None:
    for record, written in (
        (changed(STEP, loss=number), f'"loss":{text},'),
        (replace(block(), loss=[0.5, number, 1.0]), f'"loss":[0.5,{text},1.0]'),
        (replace(block(), losses={"a": [number] * 3}), f'"losses":{{"a":{text}}}'),
    ):
        line = codec.dumps(record)
        assert written in line
        assert codec.dumps(codec.loads(line)) == line
    note = Note(time=1.0, severity="info", text="nan")
    assert codec.loads(codec.dumps(note)) == note


@pytest.mark.parametrize("form", [None, FORM - 1, FORM + 1, "x"])
def test_a_run_in_another_form_is_refused_with_both_numbers(form: Any) -> None:
    fields = json.loads(codec.dumps(RUN)) | {"form": form}
    if form is None:
        del fields["form"]
    with pytest.raises(codec.OtherFormError, match=rf"form {form or 1}, and .* reads form {FORM}$"):
        codec.loads(json.dumps(fields))


def test_unknown_fields_are_ignored_absent_ones_take_their_defaults_and_integers_become_floats() -> None:
    loaded = codec.loads(line_with(STEP, headroom=4.5, loss_scale=65536))
    assert isinstance(loaded, Steps)
    assert isinstance(loaded.loss_scale[0], float)
    assert loaded == changed(STEP, loss_scale=65536.0)


_NOTE = '{{"type": "Note", "time": {}, "severity": "{}", "text": ""}}'


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"type": "Note", "time": 1.0}', "Note: missing severity, text"),
        (_NOTE.format(1.0, "shout"), "expected one of info, warning, error"),
        *((_NOTE.format(constant, "info"), "not strict JSON") for constant in ("NaN", "-Infinity", "1e400")),
        (_NOTE.format(1e20, "info"), "Note.time: not a time"),
        ('{"type":' + "[" * 100_000, "depth limit"),
        ("[" * (MAX_LINE_BYTES + 1), "longer than 16,777,216 bytes"),
        (line_with(RUN, parameters="7"), "RunStarted.parameters: expected int, not '7'"),
        (line_with(RUN, unsupported=[]), "RunStarted.unsupported: expected an object"),
        (line_with(block(), count=0), "Steps: 0 steps"),
        (line_with(block(), count=MAX_STEPS + 1), "Steps: 65,537 steps"),
        (line_with(block(), loss=[0.5, 0.5]), "Steps: loss: 2 values for 3 steps"),
        (line_with(block(), loss=[0.5, True, 0.5]), "Steps: loss: expected a number, not True"),
        (line_with(block(), samples=[1, None, 1]), "Steps: samples: not measured"),
        (line_with(block(), group_lrs={}), "Steps: expected columns"),
        ('{"type":"Steps","time":1.0,"first_step":1}', "Steps: missing count, data_seconds"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_line_that_is_no_record_says_why(line: str, told: str) -> None:
    with pytest.raises(JsonError, match=told):
        codec.loads(line)


def test_the_line_of_the_guide_is_one() -> None:
    guide = (ROOT / "demo" / "guide" / "runs.md").read_text()
    (line,) = (line for line in guide.splitlines() if line.startswith('{"type":"Steps",'))
    record = codec.loads(line)
    assert isinstance(record, Steps)
    assert (record.first_step, record.last_step) == (41, 43)
    assert codec.dumps(record) == line


def test_text_of_any_kind_and_length_is_written() -> None:
    long = Note(time=1.0, severity="error", text="x" * 2 * MAX_TEXT_CHARACTERS)
    assert codec.loads(codec.dumps(long)) == replace(long, text=f"{'x' * (MAX_TEXT_CHARACTERS - 1)}…")
    text = b"\x1b[31m\x00\x7f\xff\r\n\t".decode(errors="surrogateescape") + "\u2028\U0001f600"
    printed = Printed(time=1.0, text=text)
    assert codec.loads(codec.dumps(printed)) == replace(printed, text=text.replace("\udcff", "\\udcff"))
    parts = replace(block(), losses={"\ud83dhalf": [0.25, 0.5, 1.0]})
    assert codec.loads(codec.dumps(parts)) == replace(block(), losses={"\\ud83dhalf": [0.25, 0.5, 1.0]})


def test_a_configuration_may_hold_objects_that_json_does_not_know() -> None:
    config: dict[str, Any] = {
        "path": Path("a/b"),
        "n": np.int64(3),
        "x": np.float32(0.5),
        "bad": math.nan,
        "set": {1},
        "large": 2**64,
        "deep": json.loads("[" * 40 + "]" * 40),
    }
    loaded = codec.loads(codec.dumps(replace(RUN, config=config)))
    assert isinstance(loaded, RunStarted)
    assert str(loaded.config.pop("deep")).count("[") == 40  # type: ignore[attr-defined]  # a dict
    assert loaded.config == {
        "path": "a/b",
        "n": 3,
        "x": 0.5,
        "bad": "nan",
        "set": [1],
        "large": hex(2**64),
    }


# ------------------------------------------------------------------- stored lines, one of each type
LINES = (ROOT / "tests" / "journal_lines.jsonl").read_text(encoding="ascii").splitlines()


def test_there_is_a_line_of_each_type() -> None:
    written = [cls.__name__ for cls in get_args(Record)]
    assert [json.loads(line)["type"] for line in LINES] == written


@pytest.mark.parametrize("line", LINES, ids=lambda line: json.loads(line)["type"])
def test_a_stored_line_reads_and_writes_identically(line: str) -> None:
    record = codec.loads(line)
    assert record is not None
    assert codec.dumps(record) == line
