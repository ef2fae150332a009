"""Texts that try to take over whatever shows them, records made of them, and what of them got through."""

import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping
from itertools import cycle
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from amptui.records.findings import UpdatesMeasured
from amptui.records.ranks import RanksOverflowed, RanksSampled, RanksStarted
from amptui.records.run import BlockFinished, PauseChanged, Record, RunFailed, RunStarted
from amptui.records.samples import DeviceSample, GpuSample
from tests.builders import in_one
from tests.telemetry.record_samples import resumed, steps
from tests.telemetry.whole_runs import ENDS, EVERYTHING

STEERING = (
    "\x1b[5;41mblink",
    "\x1b[2J\x1b[3Jerased",
    "\x1b]0;retitled\x07",
    "\x1b]8;;http://evil.example\x1b\\link\x1b]8;;\x1b\\",
    "\x1b]52;c;ZXZpbA==\x07clipboard",
    "\x1bP1$r0m\x1b\\string\x1b_G\x1b(0",
    "\x1bcreset",
    "\x9b5;41mblink",
    "\x85next line",
    "\x07\x08\x0b\x0c\x00\x0e\x7f\x1a",
    "tab\tbed",
    "over\rwritten",
    "\u202eright to left\u2066\u200f",
    "zero\u200b\u200c\u200d\u2060\ufeffwidth",
    "tag\U000e0041\U000e007f",
    "lines\u2028and\u2029more",
    "climbing a" + "\u0301\u0316\u0323" * 7,
    "\ud83dhalf",
    "filler\u3164\u115f",
)
"""Each means something to a terminal, or to the reading of what stands beside it."""

FORGED = "\nforged: a line that we never wrote"
"""A break, so that what follows looks like a line of ours."""

MARKUP = (
    "[bold red]bold[/]",
    "[link=http://evil.example]link[/link]",
    "[@click=app.quit]click[/]",
    "<script>window.owned=1</script>",
    '"><img src=x onerror=window.owned=1>',
    "=cmd|'/c calc'!A0",
    "%s%n{0.__class__}{view}",
    "漢字 🇫🇷 é e\u0301 ±",
)
"""Means something to others than terminals; a terminal shows it letter by letter."""


EVIL = (
    '</script></style></title>--><script>window.owned=1</script><img src=x onerror="window.owned=1">"\'`&lt;'
)
"""Would be markup and run in each place that a page has for text."""


def words() -> Iterator[str]:
    """Poison without end: all of it in each text, another piece in front each time."""
    pieces = [*STEERING, FORGED, *MARKUP]
    for first in cycle(range(len(pieces))):
        yield "·".join([*pieces[first:], *pieces[:first]])


_COLOUR = r"(?:3[0-7]|9[0-7]|38;5;\d{1,3})"
_SGR = rf"(?:0|1|{_COLOUR})?(?:;(?:1|{_COLOUR}))*m"
_MODES = r"\?(?:7|25|1000|1002|1003|1004|1006|1015|1049|2004|2026|2048)[hl]"
_QUERIES = r"(?:\?(?:2026|2048)\$p|c)"
_KEYBOARD = r"(?:>\d+|<)u"
_OUR_CONTROLS = re.compile(
    rf"\x1b\[(?:{_SGR}|{_MODES}|{_QUERIES}|{_KEYBOARD}|(?P<right>\d+)C|(?P<line>\d+);(?P<column>\d+)H)"
    r"|\x1b\[H\x1b\[2J"  # before the first frame, and never one without the other
    r"|\x1b\]11;\?\x1b\\"  # which background?
    r"|\x1b\]22;default\x07"  # Textual's wish for the pointer's shape
    r"|\x07\x1b\]9;amptui: [^\x00-\x1f\x7f-\x9f]{1,160}\x07"  # a bell and a notification
    r"|\r\n(?!forged)"
)

_CLIMBING = re.compile(r"[\u0300-\u036f]{4}")


def strange_on_terminal(written: bytes, size: tuple[int, int]) -> list[str]:
    """What a terminal of ``size`` (columns, lines) was sent beside plain signs and our screen's controls."""
    columns, lines = size
    text, at = written.decode("utf-8", "surrogateescape"), 0
    found = _CLIMBING.findall(text)
    while at < len(text):
        control = _OUR_CONTROLS.match(text, at)
        if control is None:
            found += [] if is_plain(text[at]) else [text[at : at + 20]]
            at += 1
            continue
        at = control.end()
        right, line, column = (int(number or 1) for number in control.group("right", "line", "column"))
        if right >= columns or line > lines or column > columns:
            found.append(control[0])
    return found


def strange_in_lines(written: bytes) -> list[str]:
    """What a pipe was sent beside lines of plain signs that begin as lines of ours do."""
    text = written.decode("utf-8", "surrogateescape")
    found = [sign for sign in text if sign != "\n" and not is_plain(sign)]
    return found + _CLIMBING.findall(text) + re.findall(r"(?m)^forged", text)


def is_plain(sign: str) -> bool:
    """A letter, a sign or a blank, which no terminal takes for anything else."""
    return sign.isprintable() and sign not in "\u115f\u3164"


T = TypeVar("T")

PRECISION_FIELDS = frozenset({"precision", "previous", "current", "baseline", "amp_precision"})


def poisoned(record: T, texts: Iterator[str], *, keep: Collection[str] = ()) -> T:
    """``record`` with each text in it, at any depth, replaced by poison; fields named in ``keep`` stay.

    So does the empty name of a run's first optimizer.
    """
    hints = get_type_hints(type(record))
    changes = {
        field.name: _poisoned(getattr(record, field.name), hints[field.name], texts, keep)
        for field in dataclasses.fields(record)  # type: ignore[arg-type]
        if field.name not in keep and (field.name != "optimizer" or getattr(record, field.name))
    }
    return dataclasses.replace(record, **changes)  # type: ignore[type-var]


def _poisoned(value: Any, hint: Any, texts: Iterator[str], keep: Collection[str]) -> Any:
    if get_origin(hint) is Literal or value is None:
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return poisoned(value, texts, keep=keep)
    if isinstance(value, str):
        return next(texts)
    inner = [part for part in get_args(hint) if part not in (NoneType, Ellipsis)] or [Any]
    if isinstance(value, Mapping):
        return {next(texts): _poisoned(item, inner[-1], texts, keep) for item in value.values()}
    if isinstance(value, tuple | list):
        (part, *_) = get_args(inner[0]) if get_origin(inner[0]) is tuple else inner
        return type(value)(_poisoned(item, part, texts, keep) for item in value)
    return value


def records() -> Iterator[Record]:
    """A run with a record of every type and text in every field that may hold any, nothing yet poisoned."""
    for record in EVERYTHING:
        if isinstance(record, RunStarted):
            yield dataclasses.replace(
                record,
                unsupported={"tf32": "no such unit"},
                config={"a": "b", "c": {"d": ["e"]}},
                hardware={"cpu": "fast"},
                optimizer="generator",
                world_size=2,
                parallel="ddp",
            )
        elif isinstance(record, DeviceSample):
            gpu = GpuSample(uuid="GPU-1", name="NVIDIA H200", clocks_event_reasons=("hot",))
            yield dataclasses.replace(record, gpus=(*record.gpus, gpu), note="NVML said so")
        else:
            yield record
    yield BlockFinished(time=104.1, step=102, precision="fp32", steps=60, peak_allocated_bytes=1 << 30)
    yield UpdatesMeasured(time=104.3, step=102, ratios={"a": 0.001, "b": float("nan")})
    yield RanksOverflowed(time=104.3, step=91, ranks=(1,), count=1)
    finished, failed, paused = ENDS
    assert isinstance(paused, PauseChanged)
    assert isinstance(failed, RunFailed)
    yield from (paused, dataclasses.replace(paused, paused=False), finished, resumed(102, time=200.0))
    yield from (record for record in EVERYTHING if isinstance(record, RanksStarted | RanksSampled))
    yield in_one(steps(103, 123, time=201.0, precision="fp16", losses={"a": 1.0, "b": 2.0}))
    yield dataclasses.replace(failed, time=202.0, step=123)


def poisoned_records(*, keep: Collection[str] = PRECISION_FIELDS) -> list[Record]:
    """`records` with every text poisoned but those in fields that ``keep`` names."""
    texts = words()
    return [poisoned(record, texts, keep=keep) for record in records()]


def evil_records() -> list[Record]:
    """`records` in which each text is `EVIL`, a precision's name too; every second is it on two lines."""
    texts = cycle((EVIL, f"{EVIL}\n{EVIL}"))
    return [poisoned(record, texts, keep=()) for record in records()]
