"""Lines between a run and its screens: what is encoded is read back, and nothing else gets through."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.records import codec
from amptui.records.control import (
    CheckpointRequest,
    ComparisonRequest,
    HistogramRequest,
    PauseRequest,
    PrecisionRequest,
    StopRequest,
    TraceRequest,
    XRayRequest,
)
from amptui.records.run import PRECISIONS, Note
from amptui.runs import protocol
from amptui.runs.protocol import Ask, Hello, History, Leave, Lines, ProtocolError, RunError, RunHello

SEVERAL = st.lists(st.sampled_from(PRECISIONS), unique=True, max_size=5).filter(lambda some: len(some) != 1)

REQUESTS = st.one_of(
    st.builds(PrecisionRequest, st.sampled_from(PRECISIONS)),
    st.builds(PauseRequest, st.booleans()),
    st.just(XRayRequest()),
    st.just(TraceRequest()),
    st.just(HistogramRequest()),
    st.builds(ComparisonRequest, SEVERAL.map(tuple)),
    st.just(CheckpointRequest()),
    st.builds(StopRequest, st.text(max_size=200)),
)

SAID = st.one_of(
    st.builds(Hello, st.integers()),
    st.builds(Leave, st.sampled_from(["detached", "hung up"])),
    st.builds(Ask, st.integers(0, 2**48), REQUESTS),
)


@given(SAID)
def test_what_a_screen_says_is_one_ascii_line_that_is_read_back(said: Any) -> None:
    line = protocol.encode(said)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert line.isascii()
    assert protocol.parse(line[:-1]) == said


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\xff\xfe\x00",
        '{"request": "stop", "reason": "ü"}'.encode(),
        b'{"hello":' * 10_000,
        b"[]",
        b"{}",
        b'{"hello": {"protocol": "1"}}',
        b'{"hello": 1}',
        b'{"leave": "lost"}',
        b'{"request": ["precision"], "precision": "bf16"}',
        b'{"request": "precision", "number": 3, "precision": "fp4"}',
        b'{"request": "precision", "number": 3, "precision": NaN}',
        b'{"request": "pause", "number": 3, "paused": 1}',
        b'{"request": "x-ray"}',
        b'{"request": "x-ray", "number": -1}',
        b'{"request": "x-ray", "number": true}',
        b'{"request": "x-ray", "number": 9007199254740993}',
        b'{"request": "x-ray", "number": ' + b"9" * 5000 + b"}",
        b'{"request": "comparison", "number": 3, "precisions": "bf16"}',
        b'{"request": "comparison", "number": 3, "precisions": ["bf16"]}',
        b'{"request": "comparison", "number": 3, "precisions": ["bf16", "bf16"]}',
        b'{"request": "stop", "number": 3, "reason": null}',
        b'{"request": "stop", "number": 3, "reason": "' + b"x" * 201 + b'"}',
        b'{"request": "reboot"}',
    ],
    ids=lambda line: repr(line[:48]),
)
def test_everything_else_is_refused_in_one_short_line(line: bytes) -> None:
    with pytest.raises(ProtocolError) as refused:
        protocol.parse(line)
    text = str(refused.value)
    assert text.isprintable()
    assert 0 < len(text) < 100


def test_a_run_s_lines_are_read_back() -> None:
    told = {"version": "1.2", "pid": 7, "run_dir": "/kept/run"}
    hello = protocol.hello_line(told)
    assert json.loads(hello) == {"hello": {"protocol": 2, **told}}
    assert protocol.read(hello) == RunHello(2, "1.2", 7, "/kept/run")
    assert protocol.read(protocol.history_line('{"a":[1,2]}')) == History({"a": [1, 2]})
    assert protocol.read(protocol.error_line("two\nlines \x1b ")) == RunError("two lines \x1b")
    note = Note(time=1.0, severity="info", text="ü\n")
    assert protocol.read(codec.dumps(note).encode()) == note
    assert protocol.read(b' {"text": "x", "severity": "info", "time": 2.0, "type": "Note"}') == Note(
        time=2.0, severity="info", text="x"
    )
    assert protocol.read(b'{"type":"OfLater","time":1.0}') is None
    for line in (
        *(b'{"type":"Note"}', b'{"type": ["Note"]}', b'{"type":"Note","time":"soon"}', b'{"type":' * 50_000),
        *(b'{"type": 3}', b'{"hello": {"protocol": 1}}', b"\xff", b"x", b"{}", b"[1]"),
    ):
        with pytest.raises(ProtocolError):
            protocol.read(line)


@given(st.lists(st.binary(max_size=30).filter(lambda line: b"\n" not in line)), st.data())
def test_lines_are_the_same_in_whatever_pieces_they_come(lines: list[bytes], data: st.DataObject) -> None:
    text, taken = b"".join(line + b"\n" for line in lines), []
    assembler = Lines(30)
    while text:
        size = data.draw(st.integers(1, len(text)))
        taken += assembler.take(text[:size])
        text = text[size:]
    assert taken == lines


@given(st.lists(st.integers(1, 20), min_size=1))
def test_a_line_that_is_too_long_is_noticed_before_its_end(sizes: list[int]) -> None:
    assembler, total = Lines(30), 0
    for size in sizes:
        total += size
        if total > 30:
            with pytest.raises(ProtocolError, match="more than 30 bytes"):
                assembler.take(b"x" * size)
            return
        assert assembler.take(b"x" * size) == []
    assert assembler.take(b"\n") == [b"x" * total]
