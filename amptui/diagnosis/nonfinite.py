"""NaN and Inf in plain English: where they are, what that means, and what to do."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from amptui.base import units
from amptui.records.run import NonFiniteKind
from amptui.telemetry.events import Storm

WORDS: Mapping[NonFiniteKind, str] = {"nan": "NaN", "inf": "Inf"}
"""How each kind is written."""

_PLACES = {"gradient": "the gradient of", "buffer": "the buffer", "activation": "the output of"}

_NAMED_RANKS = 4

LOSS_NOT_FINITE_EXPLAINED = (
    "The loss itself is NaN or Inf before any gradient was scaled, so no scale helps. A trace tells where "
    "that began: in the input, in the weights, or in a module's output. Run a module that exceeds float16's "
    "range in FP32 (with autocast disabled), or use bf16."
)


class _Meaning(NamedTuple):
    """What it means: a few words, and a sentence or two."""

    line: str
    explanation: str


_POISONED = _Meaning(
    "stays NaN or Inf in every precision: go back to a checkpoint",
    "The forward pass updates buffers such as BatchNorm's running statistics even in steps that the scaler "
    "skips, and the scaler does not check them. They stay NaN or Inf in FP32 too: go back to a checkpoint, "
    "or reset them.",
)

_IN_FLOAT16: Mapping[str, _Meaning] = {
    "loss": _Meaning("no loss scale helps: a trace tells where it began", LOSS_NOT_FINITE_EXPLAINED),
    "gradient": _Meaning(
        "the scaler skips such steps",
        "Multiplied by the loss scale, these gradients exceeded float16's range. The scaler skips such steps "
        "and halves its scale: nothing to do while that is rare.",
    ),
    "activation": _Meaning(
        "exceeds float16's range: run this layer in FP32 or use bf16",
        "float16 ends at 65,504, and this layer's output is larger. Run it in FP32 (with autocast disabled), "
        "or use bf16, which has FP32's range.",
    ),
    "buffer": _POISONED,
}

_OUTSIDE_FLOAT16: Mapping[str, _Meaning] = {
    "loss": _Meaning(
        "the step was applied: lower the learning rate, or go back to a checkpoint",
        "Outside float16 no scaler protects the weights: this step updated them. If the loss does not "
        "recover, lower the learning rate, clip gradients (--clip-norm), or go back to a checkpoint.",
    ),
    "gradient": _Meaning(
        "the step was applied and corrupted the weights: go back to a checkpoint",
        "Outside float16 no scaler protects the weights: a gradient that is not finite makes its weights NaN "
        "or Inf. Go back to a checkpoint, with a lower learning rate or clipped gradients (--clip-norm).",
    ),
    "activation": _Meaning(
        "check this layer and its inputs",
        "This is not a float16 problem: check this layer's weights and its inputs.",
    ),
    "buffer": _POISONED,
}


def _meaning(storm: Storm) -> _Meaning:
    return (_IN_FLOAT16 if storm.in_float16 else _OUTSIDE_FLOAT16)[storm.first.what]


def storm_text(storm: Storm) -> str:
    """``the loss is NaN, 100 times (612–711); ...``, ``NaN in the gradient of head.weight (+2); ...``."""
    first = storm.first
    text = f"{WORDS[first.kind]} in {_PLACES.get(first.what)} {first_and_more(first.names, first.count)}"
    if first.what == "loss":
        text = f"the loss is {WORDS[first.kind]}"
    text += on_ranks(first.ranks)
    if storm.times > 1:
        text += f", {units.count(storm.times)} times {span(first.step, storm.last.step)}"
    if first.ranks and not storm.in_float16:
        text += "; averaging spread it to all ranks"
    return f"{text}; {_meaning(storm).line}"


def storm_details(storm: Storm) -> list[str]:
    """An explanation, and what was found first and last."""
    lines = {_meaning(storm).explanation: None}
    for record in (storm.first, storm.last):
        names = by_module(record.names, record.kinds, record.count)
        if record.what == "activation":
            names = ", ".join(record.names)
        if names:
            lines[f"step {units.count(record.step)}: {names}"] = None
    return list(lines)


def on_ranks(ranks: Sequence[int]) -> str:
    """Whose own loss or gradients overflowed, where several ranks train: `` on rank 3``."""
    if not ranks:
        return ""
    more = " and others" if len(ranks) > _NAMED_RANKS else ""
    return f" on rank{'' if len(ranks) == 1 else 's'} {', '.join(map(str, ranks[:_NAMED_RANKS]))}{more}"


def span(first_step: int, last_step: int) -> str:
    """``(612–614)``."""
    return f"({units.count(first_step)}–{units.count(last_step)})"


def first_and_more(names: Sequence[str], count: int | None) -> str:
    """The worst of ``count`` names and how many more there are: ``features.13.conv.weight (+2)``."""
    if not names:
        return f"{units.count(count)} tensors"
    return f"{names[0]} (+{units.count(count - 1)})" if count is not None and count > 1 else names[0]


def by_module(names: Sequence[str], kinds: Sequence[NonFiniteKind], count: int | None) -> str:
    """Parameters or buffers by NaN or Inf and by module; empty without names.

    ``NaN in head (weight, bias); Inf in features.13.conv (weight); 3 more``. Names without a kind, as older
    journals have them, are ``NaN or Inf``. ``count`` is how many there are in all.
    """
    modules_by_kind: dict[str, dict[str, list[str]]] = {}
    for index, name in enumerate(names):
        module, _, last = name.rpartition(".")
        kind = WORDS[kinds[index]] if index < len(kinds) else "NaN or Inf"
        modules_by_kind.setdefault(kind, {}).setdefault(module or "the model", []).append(last)
    parts = [
        f"{kind} in " + ", ".join(f"{module} ({', '.join(last)})" for module, last in modules.items())
        for kind, modules in modules_by_kind.items()
    ]
    more = (count or 0) - len(names)
    if parts and more > 0:
        parts.append(f"{units.count(more)} more")
    return "; ".join(parts)
