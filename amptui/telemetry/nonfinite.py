"""NaN and Inf in plain words: what holds them, what that means, and what to do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from amptui import units
from amptui.records import NonFinite, NonFiniteKind
from amptui.telemetry.view import Verdict

FORWARD_OVERFLOW = "the forward pass overflowed: scaling cannot help; use bf16 or FP32"

WORDS: Mapping[NonFiniteKind, str] = {"nan": "NaN", "inf": "Inf"}
"""How each kind is written."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict in a line's few words, and the sentence or two that explain it and say what to do."""

    verdict: Verdict
    explanation: str


FORWARD_OVERFLOW_EXPLAINED = (
    "The loss itself is NaN or Inf: numbers left float16's range before any gradient was scaled, so that no "
    "scale helps. A trace names the first module: keep it in FP32 (autocast off around it), or use bf16."
)

_POISONED = Judgement(
    Verdict("error", "poisoned for good in every precision: go back to a checkpoint"),
    "The forward pass writes buffers such as BatchNorm's running statistics: a step that the scaler skips "
    "has changed them all the same, and the scaler never looks there. They stay NaN or Inf in FP32 too: go "
    "back to a checkpoint, or reset them.",
)

_IN_FP16: Mapping[str, Judgement] = {
    "loss": Judgement(Verdict("warning", FORWARD_OVERFLOW), FORWARD_OVERFLOW_EXPLAINED),
    "gradient": Judgement(
        Verdict("warning", "the scaler skips such steps"),
        "Multiplied by the loss scale these gradients left float16's range. The scaler drops such steps and "
        "halves its scale: nothing to do while that is rare.",
    ),
    "activation": Judgement(
        Verdict("warning", "this layer leaves float16's range: keep it in FP32, or use bf16"),
        "float16 ends at 65,504 and this layer puts out more. Keep it in FP32 (autocast off around it), or "
        "use bf16, which reaches as far as FP32.",
    ),
}

_OUTSIDE_FP16: Mapping[str, Judgement] = {
    "loss": Judgement(
        Verdict("error", "no scaler skips this step: lower the learning rate, or go back to a checkpoint"),
        "Outside of float16 nothing guards the weights: they have taken this step. If the loss does not come "
        "back, lower the learning rate, clip gradients (--clip-norm), or go back to a checkpoint.",
    ),
    "gradient": Judgement(
        Verdict("error", "no scaler skips this step: it spoils the weights; go back to a checkpoint"),
        "Outside of float16 nothing guards the weights: what is not finite here is not finite there after "
        "the step. Go back to a checkpoint, with a lower learning rate or clipped gradients (--clip-norm).",
    ),
    "activation": Judgement(
        Verdict("error", "look at this layer and at what it is fed"),
        "This is no matter of float16: look at this layer's weights and at what it is fed.",
    ),
}


def judge_nonfinite(found: NonFinite, precision: str | None) -> Judgement:
    """What NaN or Inf means in a step that ran in ``precision``, None when that is not known."""
    if found.what == "buffer":
        return _POISONED
    return (_IN_FP16 if precision == "fp16" else _OUTSIDE_FP16)[found.what]


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
    """Parameters or buffers by what they hold and by the module they belong to; empty without names.

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
    """``step 612: NaN in bn1 (running_mean, running_var)``; empty where there are no names."""
    if found.what == "activation":
        names = ", ".join(found.names)
    else:
        names = by_module(found.names, found.kinds, found.count)
    return f"step {units.count(found.step)}: {names}" if names else ""
