"""Records as lines: every record survives the journey, and every line is JSON that any parser takes."""

import dataclasses
import json
import math
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.base.strictjson import MAX_COUNT, MAX_ITEMS, MAX_LINE_BYTES, MAX_TEXT_CHARACTERS, JsonError
from amptui.records import codec
from amptui.records.run import Note, Printed, Record, RunStarted
from amptui.records.steps import StepRecord, Steps
from tests.builders import make_started, make_step
from tests.record_values import JSON_VALUES, RECORD_TYPES, loads, records_of, values_of
from tests.telemetry.record_samples import compared, layer, xray

RUN = make_started(config={})
STEP = make_step(7, loss=0.25, precision="fp16")


def refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is not strict JSON")


@pytest.mark.parametrize("cls", RECORD_TYPES, ids=lambda cls: cls.__name__)
@given(data=st.data())
def test_every_record_survives_as_one_line_of_strict_ascii_json(cls: type[Any], data: st.DataObject) -> None:
    record = data.draw(records_of(cls))
    line = codec.dumps(record)
    # repr rather than ==, because NaN is a value here and is not equal to itself.
    assert repr(loads(line)) == repr(record)
    assert line.isascii()
    assert min(line) >= " "
    parsed = json.loads(line, parse_constant=refuse_constant)
    names = [field.name for field in dataclasses.fields(cls)]
    # A block of steps leaves out what has its default.
    assert list(parsed) == ["type", *(name for name in names if cls is not Steps or name in parsed)]
    assert names[0] == "time"
    assert parsed["type"] == cls.__name__


@given(line=st.text() | JSON_VALUES.map(json.dumps))
def test_a_line_that_is_no_record_is_an_error(line: str) -> None:
    with pytest.raises(JsonError):
        codec.loads(line)


@given(data=st.data())
def test_a_torn_line_is_never_a_record(data: st.DataObject) -> None:
    line = codec.dumps(data.draw(values_of(StepRecord)))
    with pytest.raises(JsonError):
        codec.loads(line[: data.draw(st.integers(0, len(line) - 1))])


@given(data=st.data())
def test_a_field_of_any_other_json_type_never_breaks_the_reader(data: st.DataObject) -> None:
    cls = data.draw(st.sampled_from(RECORD_TYPES))
    fields = json.loads(codec.dumps(data.draw(records_of(cls))))
    name = data.draw(st.sampled_from(sorted(fields.keys() - {"type"})))
    fields[name] = data.draw(JSON_VALUES)
    try:
        record = loads(json.dumps(fields))
    except JsonError as error:
        told = str(error)
    else:
        told = ""
        assert type(record) is cls
    assert "\n" not in told


@pytest.mark.parametrize(
    ("number", "text"), [(math.nan, '"nan"'), (math.inf, '"inf"'), (-math.inf, '"-inf"'), (None, "null")]
)
def test_nonfinite_numbers_are_strings_and_unmeasured_ones_null(number: float | None, text: str) -> None:
    line = codec.dumps(replace(STEP, loss=number))
    assert f'"loss":{text},' in line
    assert repr(loads(line)) == repr(replace(STEP, loss=number))


def test_the_string_nan_is_a_number_in_the_part_of_a_loss_and_a_string_in_a_text_field() -> None:
    record = Note(time=1.0, severity="info", text="nan")
    assert loads(codec.dumps(record)) == record
    loaded = loads(codec.dumps(replace(STEP, losses={"a": math.nan, "b": 1.0})))
    assert isinstance(loaded, StepRecord)
    assert repr(loaded.losses) == repr({"a": math.nan, "b": 1.0})


def test_a_type_of_a_later_version_is_none() -> None:
    assert codec.loads('{"type": "HeadroomSample", "time": 1.0}') is None


def test_unknown_fields_are_ignored_absent_ones_take_their_defaults_and_integers_become_floats() -> None:
    fields = json.loads(codec.dumps(STEP))
    del fields["losses"]
    loaded = loads(json.dumps(fields | {"headroom": 4.5, "loss_scale": 65536}))
    assert isinstance(loaded, StepRecord)
    assert isinstance(loaded.loss_scale, float)
    assert loaded == STEP


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"type": "Note", "time": 1.0}', "Note: missing severity, text"),
        (
            '{"type": "Note", "time": 1.0, "severity": "shout", "text": ""}',
            "expected one of info, warning, error",
        ),
        *(
            (f'{{"type": "Note", "time": {constant}, "severity": "info", "text": ""}}', "not strict JSON")
            for constant in ("NaN", "Infinity", "-Infinity")
        ),
        ('{"type":' + "[" * 100_000, "maximum recursion depth"),
        ("[" * (MAX_LINE_BYTES + 1), "longer than 16,777,216 bytes"),
    ],
    ids=["absent field", "other word", "NaN", "Infinity", "-Infinity", "nested deeply", "too long"],
)
def test_a_line_that_is_no_record_says_why(line: str, told: str) -> None:
    with pytest.raises(JsonError, match=told):
        codec.loads(line)


@pytest.mark.parametrize(
    ("record", "change", "told"),
    [
        (STEP, {"step": "7"}, "StepRecord.step: expected int"),
        (STEP, {"step": True}, "StepRecord.step: expected int"),
        (STEP, {"loss": "0.25"}, "StepRecord.loss: expected a number"),
        (STEP, {"loss": 10**400}, "StepRecord.loss: a number out of float"),
        (STEP, {"skipped": 1}, "StepRecord.skipped: expected bool"),
        (STEP, {"losses": []}, "StepRecord.losses: expected an object"),
        (STEP, {"step": MAX_COUNT + 1}, "StepRecord.step: expected a number from 0 to 9.0072e"),
        (STEP, {"step": 10**4200}, "an integer of 4,201 digits"),
        (STEP, {"time": 1e20}, "StepRecord.time: expected a number from 0 to 3.25037e"),
        (STEP, {"step_seconds": "inf"}, "StepRecord.step_seconds: expected a number"),
        (compared(1), {"rows": []}, "PrecisionsCompared.rows: 0 items"),
        (
            xray(1),
            {"layers": [asdict(layer("a", -1.25))]},
            "LayerAgreement.cosine: expected a number from -1 to 1",
        ),
        (RUN, {"config": {"deep": json.loads("[" * 33 + "]" * 33)}}, "RunStarted.config: nested too deeply"),
        (RUN, {"config": {"large": 2**1024}}, "RunStarted.config: a number out of float"),
        (RUN, {"hardware": {"many": [1] * (MAX_ITEMS + 1)}}, "RunStarted.hardware: 131,073 items"),
        (RUN, {"model": "x" * (MAX_TEXT_CHARACTERS + 1)}, "RunStarted.model: a text of 262,145"),
    ],
    ids=lambda value: str(value)[:60] if value else "",
)
def test_values_of_a_wrong_type_or_out_of_bounds_are_refused_by_name(
    record: Record, change: dict[str, Any], told: str
) -> None:
    line = json.dumps(json.loads(codec.dumps(record)) | change)
    with pytest.raises(JsonError, match=told):
        codec.loads(line)


def test_long_text_is_truncated_instead_of_lost() -> None:
    long = Note(time=1.0, severity="error", text="x" * 2 * MAX_TEXT_CHARACTERS)
    loaded = loads(codec.dumps(long))
    assert isinstance(loaded, Note)
    assert loaded.text == f"{'x' * (MAX_TEXT_CHARACTERS - 1)}…"
    large = loads(codec.dumps(replace(RUN, config={"n": 2**1023, "m": [-(2**1024)]})))
    assert isinstance(large, RunStarted)
    assert large.config == {"n": hex(2**1023), "m": [hex(-(2**1024))]}


def test_printed_bytes_that_are_no_text_survive() -> None:
    text = b"\x1b[31m\x00\xff\r\n\t".decode(errors="surrogateescape") + "\u2028"
    record = Printed(time=1.0, stream="stderr", text=text)
    line = codec.dumps(record)
    assert min(line) >= " "
    assert codec.loads(line) == record


def test_a_configuration_may_hold_objects_that_json_does_not_know() -> None:
    record = replace(
        RUN, config={"path": Path("a/b"), "n": np.int64(3), "x": np.float32(0.5), "bad": math.nan, "set": {1}}
    )
    config = json.loads(codec.dumps(record), parse_constant=refuse_constant)["config"]
    assert config == {"path": "a/b", "n": 3, "x": 0.5, "bad": "nan", "set": [1]}


def test_the_codec_needs_neither_numpy_nor_torch() -> None:
    check = (
        "import sys, amptui.records.codec; sys.exit(bool({'numpy', 'torch', 'textual'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
