"""NaN and Inf in plain English: where they are, what that means, and what to do."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from amptui.base import units
from amptui.records.run import NonFinite, NonFiniteKind
from amptui.telemetry.events import Storm

FORWARD_OVERFLOW = "the forward pass overflowed: scaling cannot help; use bf16 or FP32"

WORDS: Mapping[NonFiniteKind, str] = {"nan": "NaN", "inf": "Inf"}
"""How each kind is written."""


_NAMED_RANKS = 4

FORWARD_OVERFLOW_EXPLAINED = (
    "The loss itself is NaN or Inf: values exceeded float16's range before any gradient was scaled, so no "
    "scale helps. A trace names the first module: run it in FP32 (with autocast disabled), or use bf16."
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
    "loss": _Meaning(FORWARD_OVERFLOW, FORWARD_OVERFLOW_EXPLAINED),
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
    """``the loss is NaN, 100 times (612–711); the step was applied: ...``."""
    text = what_is_not_finite(storm.first) + on_ranks(storm.first.ranks)
    if storm.times > 1:
        text += f", {units.count(storm.times)} times {span(storm.first.step, storm.last.step)}"
    if storm.first.ranks and not storm.in_float16:
        text += "; the average gave it to all ranks"
    return f"{text}; {_meaning(storm).line}"


def storm_details(storm: Storm) -> list[str]:
    """An explanation, and what was found first and last."""
    found = (line for line in map(found_line, (storm.first, storm.last)) if line)
    return [_meaning(storm).explanation, *dict.fromkeys(found)]


def on_ranks(ranks: Sequence[int]) -> str:
    """Whose own loss or gradients overflowed, where several ranks train: `` on rank 3``."""
    if not ranks:
        return ""
    more = " and others" if len(ranks) > _NAMED_RANKS else ""
    return f" on rank{'' if len(ranks) == 1 else 's'} {', '.join(map(str, ranks[:_NAMED_RANKS]))}{more}"


def span(first_step: int, last_step: int) -> str:
    """``(612–614)``."""
    return f"({units.count(first_step)}–{units.count(last_step)})"


def what_is_not_finite(found: NonFinite) -> str:
    """``NaN in the gradient of features.13.conv.weight (+2)``."""
    kind = WORDS[found.kind]
    if found.what == "loss":
        return f"the loss is {kind}"
    place = {"gradient": "the gradient of", "buffer": "the buffer", "activation": "the output of"}[found.what]
    return f"{kind} in {place} {named(found.names, found.count)}"


def named(names: Sequence[str], count: int | None) -> str:
    """The worst of ``count`` names and how many more there are: ``features.13.conv.weight (+2)``."""
    if not names:
        return f"{units.count(count)} tensors"
    return f"{names[0]} (+{units.count(count - 1)})" if count is not None and count > 1 else names[0]


def by_module(names: Sequence[str], kinds: Sequence[NonFiniteKind], count: int | None) -> str:
    """Parameters or buffers by NaN or Inf and by module; empty without names.

    ``NaN in head (weight, bias); Inf in features.13.conv (weight); 3 more``. Names without a kind, as older
    journals have them, are ``NaN or Inf``. ``count`` is how many there are in all.
    """
    held: dict[str, dict[str, list[str]]] = {}
    for index, name in enumerate(names):
        module, _, last = name.rpartition(".")
        kind = WORDS[kinds[index]] if index < len(kinds) else "NaN or Inf"
        held.setdefault(kind, {}).setdefault(module or "the model", []).append(last)
    parts = [
        f"{kind} in " + ", ".join(f"{module} ({', '.join(last)})" for module, last in modules.items())
        for kind, modules in held.items()
    ]
    more = (count or 0) - len(names)
    if parts and more > 0:
        parts.append(f"{units.count(more)} more")
    return "; ".join(parts)


def found_line(found: NonFinite) -> str:
    """``step 612: NaN in bn1 (running_mean, running_var)``; empty without names."""
    if found.what == "activation":
        names = ", ".join(found.names)
    else:
        names = by_module(found.names, found.kinds, found.count)
    return f"step {units.count(found.step)}: {names}" if names else ""
