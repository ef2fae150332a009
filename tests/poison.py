"""Texts that try to take over whatever shows them, records made of them, and what of them got through."""

import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping
from itertools import cycle
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from amptui.records.answers import RequestMade, RequestRefused, RequestTaken
from amptui.records.findings import (
    Float8Layers,
    LayerLeftOut,
    MemoryBreakdown,
    MemoryKind,
    ModelCompiled,
    OperatorCount,
    PhaseSeconds,
    StepTimed,
    UpdatesMeasured,
)
from amptui.records.keeping import CheckpointWritten, KeepingChanged, ViewersChanged, WeightsSaved
from amptui.records.ranks import (
    RankLost,
    RankPlace,
    RanksAwaited,
    RanksDisagree,
    RanksOverflowed,
    RanksSampled,
    RanksStarted,
    RankStack,
    RankValue,
    StacksTaken,
)
from amptui.records.run import (
    BlockFinished,
    DataInfo,
    EpochFinished,
    Note,
    PauseChanged,
    PhaseChanged,
    PrecisionChanged,
    Printed,
    Record,
    RunFailed,
    RunFinished,
    RunResumed,
    Validated,
    Validation,
)
from amptui.records.samples import GpuSample
from tests.single_steps import joined
from tests.telemetry import record_samples as samples

STEERING = (
    "\x1b[5;41mblink",
    "\x1b[777;888Hmoved",
    "\x1b[2J\x1b[3Jerased",
    "\x1b]0;retitled\x07",
    "\x1b]8;;http://evil.example\x1b\\link\x1b]8;;\x1b\\",
    "\x1b]52;c;ZXZpbA==\x07clipboard",
    "\x1bP1$r0m\x1b\\string",
    "\x1b_Gq=1;AAAA\x1b\\",
    "\x1b^private\x1b\\",
    "\x1bcreset",
    "\x1b#8",
    "\x1b(0lqk",
    "\x1b[?1047h",
    "\x1b[21t",
    "\x1b[5n",
    "\x1b[8mhidden",
    "\x9b5;41mblink",
    "\x9d0;retitled\x9c",
    "\x90string\x9c",
    "\x85next line",
    "\x0eshifted\x0f",
    "\x07\x08\x0b\x0c\x00\x7f\x1a",
    "tab\tbed",
    "over\rwritten",
    "\u202eright to left",
    "\u202a\u202b\u202c\u202d",
    "\u2066\u2067\u2068\u2069isolated",
    "\u200e\u200f\u061cmarks",
    "zero\u200b\u200c\u200d\u2060\ufeffwidth",
    "soft\u00adhyphen",
    "tag\U000e0041\U000e007f",
    "lines\u2028and\u2029more",
    "climbing a" + "\u0301\u0316\u0323" * 7,
    "\ud83dhalf",
    "filler\u3164\u115f",
    "private\ue000\U000f0000",
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
    "$(id)`id`;id",
    "漢字 🇫🇷 é e\u0301 ±",
)
"""Means something to others than terminals; a terminal shows it letter by letter."""


def words() -> Iterator[str]:
    """Poison without end: all of it in each text, another piece in front each time."""
    pieces = [*STEERING, FORGED, *MARKUP]
    for first in cycle(range(len(pieces))):
        yield "·".join([*pieces[first:], *pieces[:first]])


# ------------------------------------------------------------------------------ what got through

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


# ------------------------------------------------------------------------------------- records

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


def _rank_records() -> Iterator[Record]:
    places = [RankPlace(rank=rank, host="node-1", device=f"cuda:{rank}") for rank in range(2)]
    yield RanksStarted(time=100.2, ranks=tuple(places))
    yield RanksSampled(
        time=100.2,
        step=120,
        steps=100,
        world_size=2,
        ranks=(0, 1),
        data_seconds=(0.1, 0.1),
        sm_clock_mhz=(1980.0, 900.0),
        throttled={"thermal": (1,)},
    )
    differs = RankValue(rank=1, value=3.0)
    yield RanksDisagree(time=100.2, step=120, what="weights", count=1, most=2.0, others=(differs,))
    yield RanksOverflowed(time=100.2, step=91, ranks=(1,), count=1)
    yield RanksAwaited(time=100.2, step=120, ranks=(1,), count=1, phase="loading", seconds=34.0)
    stack = RankStack(rank=1, phase="loading", step=120, stack="File 'data.py', line 3\n  read()\n")
    yield StacksTaken(time=100.2, step=120, stacks=(stack,), silent=(0,))
    yield RankLost(time=100.2, step=120, rank=1, host="node-1", cause="killed", detail="signal 9")


def _second_optimizer() -> Iterator[Record]:
    yield samples.followed("discriminator")
    yield samples.followed("", replaces="SGD")
    yield from samples.steps(1, 3, optimizer="discriminator")
    yield samples.dropped(3, optimizer="discriminator")
    yield samples.skip(3, optimizer="discriminator")


def _of_float8() -> Iterator[Record]:
    yield Float8Layers(
        time=100.3,
        step=122,
        precision="fp8",
        recipe="tensorwise",
        emulated=False,
        layers=1,
        names=("a",),
        parameters=9,
        left_out=(LayerLeftOut(name="b", kind="Linear", why="size", shape=(10, 64)),),
        left_out_count=1,
    )
    yield samples.float8_window(122, channel_error=0.9)


def records() -> Iterator[Record]:
    """A run with a record of every type, nothing in it poisoned yet."""
    yield PhaseChanged(time=99.0, phase="importing", detail="importing torch")
    yield samples.run(
        unsupported={"tf32": "no such unit"},
        config={"a": "b", "c": {"d": ["e"]}},
        versions={"torch": "2.11"},
        hardware={"cpu": "fast"},
        data=DataInfo(name="MNIST", real=False, samples=3),
        world_size=2,
        parallel="ddp",
        optimizer="generator",
    )
    yield from samples.steps(1, 60, losses={"a": 1.0, "b": 2.0}, grad_max=0.1)
    yield from _second_optimizer()
    yield BlockFinished(time=100.1, step=60, precision="fp32", steps=60, peak_allocated_bytes=1 << 30)
    yield PrecisionChanged(time=100.1, step=61, previous="fp32", current="fp16")
    yield joined(samples.steps(61, 120, precision="fp16", losses={"a": 1.0, "b": 2.0}, grad_max=0.1))
    gpu = GpuSample(
        uuid="GPU-1", name="NVIDIA H200", clocks_event_reasons=("hot",), memory_used_bytes=1 << 30
    )
    sample = samples.device(100.2, "fp16", 1, 50.0)
    yield dataclasses.replace(sample, gpus=(*sample.gpus, gpu), note="NVML said so")
    yield samples.skip(120)
    yield samples.backoff(120, 65536.0)
    yield samples.nonfinite(121, what="activation", names=("a", "b"), kinds=("nan", "inf"))
    worst = samples.parameter("a", flushed=9, subnormal=4)
    yield from (
        samples.window(121, precision="fp16", hypothetical=False, flushed=500, worst=(worst,)),
        UpdatesMeasured(time=100.3, step=121, ratios={"a": 0.001, "b": float("nan")}, sampled=("a",)),
    )
    module = samples.module(largest=float("inf"))
    yield samples.traced(121, first=module, nearest=(module,))
    operators = (OperatorCount(name="convolution", dtype="float16", count=3),)
    layers = (samples.layer("a", 0.5), samples.layer("b", 0.99))
    dtypes = {"a": "float16", "b": "float32"}
    yield samples.xray(122, layers=layers, operators=operators, output_dtypes=dtypes)
    yield from (*_of_float8(), samples.compared(122, pairs=(samples.pair(),)))
    for precision in ("fp32", "fp16"):
        phase = PhaseSeconds(name="forward", host_seconds=0.1, device_seconds=None)
        yield StepTimed(time=100.3, step=122, precision=precision, settling=False, phases=(phase,))
        yield ModelCompiled(
            time=100.3,
            step=122,
            precision=precision,
            training=True,
            seconds=9.5,
            what="again",
            reason="size mismatch",
        )
        kind = MemoryKind(kind="weights", dtype="float32", size_bytes=5)
        yield MemoryBreakdown(
            time=100.3, step=122, precision=precision, kinds=(kind,), peak_allocated_bytes=7
        )
    yield samples.flops("fp16", unaligned_flops=10**9, unaligned=(samples.product("a"),), uncounted=("b",))
    validation = Validation(loss=0.5, accuracy=0.9, samples=10, metrics={"top5": 0.1})
    yield EpochFinished(time=100.4, step=122, epoch=1, seconds=1.0, mean_loss=0.4, validation=validation)
    yield Validated(time=100.45, step=122, epoch=2, validation=validation)
    yield PauseChanged(time=100.5, step=122, paused=True, reason="the scale falls")
    yield PauseChanged(time=100.6, step=122, paused=False)
    yield Note(time=100.6, severity="warning", text="something")
    yield Printed(time=100.6, stream="stdout", text="something")
    yield ViewersChanged(time=100.7, viewers=1, change="refused", detail="why")
    yield KeepingChanged(time=100.8, what="journal", trouble="why")
    stop = RequestMade(time=100.8, number=1, kind="stop", reason="why")
    switch = RequestMade(time=100.8, number=2, kind="precision", precision="fp32", precisions=("fp32",))
    yield from (
        stop,
        switch,
        dataclasses.replace(switch, number=3),
        dataclasses.replace(switch, number=4, kind="x-ray"),
    )
    yield RequestTaken(time=100.8, step=122, request=switch)
    yield RequestRefused(
        time=100.8, step=122, request=dataclasses.replace(switch, number=3), reason="failed", detail="why"
    )
    yield CheckpointWritten(
        time=100.7, step=122, name="a.pt", size_bytes=9, reason="asked", blocked_seconds=0.1, seconds=0.2
    )
    yield WeightsSaved(time=100.75, step=122, path="/home/me/a.pt", averaged=False)
    yield RunFinished(time=100.8, steps=122, seconds=1.0, reason="stopped")
    yield RunResumed(
        time=100.9,
        step=122,
        checkpoint="a.pt",
        device="cuda:0",
        device_name="NVIDIA H200",
        gpu_uuid="GPU-1",
        precision="fp16",
        versions={"torch": "2.11"},
    )
    yield from _rank_records()
    yield samples.step(123, precision="fp16", losses={"a": 1.0, "b": 2.0})
    yield RunFailed(time=101.0, step=123, error="wrong", traceback="Traceback:\n  File\nwrong")


def poisoned_records(*, keep: Collection[str] = PRECISION_FIELDS) -> list[Record]:
    """`records` with every text poisoned but those in fields that ``keep`` names."""
    texts = words()
    return [poisoned(record, texts, keep=keep) for record in records()]
