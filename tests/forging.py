"""Journals as somebody may forge them: real lines with something in them that no run would write."""

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from amptui.records import codec
from amptui.records.run import Record
from amptui.records.steps import Steps
from tests.builders import in_one
from tests.telemetry.record_samples import resumed, steps
from tests.telemetry.whole_runs import ENDS, EVERYTHING

_KEPT_STEPS = {*range(1, 8), *range(58, 68), *range(88, 104)}

REAL: tuple[Record, ...] = (
    *(each for each in EVERYTHING if not isinstance(each, Steps) or each.step in _KEPT_STEPS),
    ENDS[1],
    resumed(90, time=200.0),
    in_one(steps(91, 95, time=201.0)),
    ENDS[0],
)
"""A run that has a record of every kind, with steps one by one and in a block."""

LINES = tuple(codec.dumps(record) for record in REAL)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


HOSTILE: tuple[Any, ...] = (
    *(0, 1, 0.5, "nan", "inf", "-inf", True, None, "", "x" * 100_000, "9" * 5000, "\x1b[2J", [], {}),
    *(nested(40), nested(600), {"a": nested(600)}, {"": 1}, {"x" * 5000: 0.5}),
)
"""What a run would not write there: values of other types, and texts and lists of any length."""


@st.composite
def forged_values(draw: st.DrawFn, value: Any) -> Any:
    if isinstance(value, dict | list) and value and draw(st.integers(0, 9)):
        places = [*value] if isinstance(value, dict) else [*range(len(value))]
        place = draw(st.sampled_from(places))
        changed = value.copy()
        changed[place] = draw(forged_values(value[place]))
        return changed
    return draw(st.sampled_from(HOSTILE))


@st.composite
def forged_lines(draw: st.DrawFn, lines: Sequence[str] = LINES) -> bytes:
    """A line of ``lines`` with a value replaced, or with its bytes cut, doubled or exchanged."""
    line = draw(st.sampled_from(lines))
    if draw(st.integers(0, 3)):
        fields = json.loads(line)
        name = draw(st.sampled_from([*fields][1:]))
        return json.dumps(fields | {name: draw(forged_values(fields[name]))}).encode()
    data = line.encode()
    start, end = sorted(draw(st.tuples(*[st.integers(0, len(data))] * 2)))
    piece = draw(
        st.sampled_from([b"", data[start:end] * 2, b"9" * 50, b"e400", b"[" * 2000]) | st.binary(max_size=4)
    )
    return data[:start] + piece + data[end:]


@st.composite
def forged_journals(draw: st.DrawFn, most_forged: int = 8) -> bytes:
    """A whole run's journal in which some lines are forged, or stand where they should not."""
    lines = [line.encode() for line in LINES]
    for _ in range(draw(st.integers(1, most_forged))):
        place = draw(st.integers(0, len(lines) - 1))
        forged = draw(forged_lines())
        if draw(st.booleans()):
            lines[place] = forged
        else:
            lines.insert(place, forged)
    return b"\n".join(lines) + b"\n"
