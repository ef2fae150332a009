"""The words of every finding: by subject and state a long wording and a short one, with its numbers.

Each surface takes the long one where it fits, else the short one; nobody writes a third.
"""

import math
import re
from collections.abc import Callable, Mapping
from decimal import ROUND_DOWN, Decimal
from functools import cache
from typing import TypeAlias

from amptui.base import units
from amptui.diagnosis.labels import (
    family_label,
    layer_label,
    parallel_words,
    precision_label,
    short_label,
)
from amptui.records.run import COLLAPSE_SKIPS, FP8_PRECISIONS, base_precision
from amptui.telemetry.finding import Finding, Grade
from amptui.telemetry.health import LARGEST_FLOAT16

SIGNS: Mapping[Grade, str] = {"good": "✔", "neutral": "·", "warning": "⚠", "error": "✖", "unknown": "?"}

_NAMED_RANKS = 4
"""Ranks named in one line."""

MASKS_DIFFER = "dropout masks may differ"
"""Of an X-ray whose two passes drew random numbers."""

_Wording: TypeAlias = str | tuple[str, ...]
"""The long and the short one; one alone is both. A third explains the state where an event is opened.

What stands in [brackets] is left out where a number or a name in it is not known.
"""


def long_words(finding: Finding) -> str:
    """What was found, in a sentence without its label."""
    return _words(finding, 0)


def short_words(finding: Finding) -> str:
    """The same where room is scarce: ``1.65×``, ``worst 0.999 in features.12``."""
    return _words(finding, 1)


def explanation(finding: Finding) -> str:
    """A sentence or two on what it means and what to do; empty where the others say it all."""
    return _words(finding, 2)


def explained_words(finding: Finding) -> str:
    """The sentence and, behind it, what it follows from."""
    why = explanation(finding)
    return f"{long_words(finding)} ({why})" if why else long_words(finding)


def _words(finding: Finding, which: int) -> str:
    words = _WORDS[finding.subject].get(finding.state, units.NOT_MEASURED)
    words = (words, words) if isinstance(words, str) else words
    if which >= len(words):
        return ""
    fields, text = _Fields(finding), ""
    for part, is_optional, names in _parts(words[which]):
        if not is_optional or all(fields[name] not in units.EMPTY for name in names):
            text += part.format_map(fields)
    return text


@cache
def _parts(words: str) -> list[tuple[str, bool, list[str]]]:
    """The parts of a wording, whether each may be left out, and the names in it."""
    parts = enumerate(re.split(r"\[(.*?)\]", words))
    return [(part, i % 2 == 1, re.findall(r"{(\w+)}", part)) for i, part in parts]


class _Fields(dict[str, str]):
    """What the words name, made as they ask for it."""

    def __init__(self, finding: Finding) -> None:
        super().__init__()
        self._finding = finding

    def __missing__(self, name: str) -> str:
        finding = self._finding
        if name in _FIELDS:
            return _FIELDS[name](finding)
        return _NUMBERS[name](finding.numbers.get(name)) if name in _NUMBERS else finding.names.get(name, "")


# --------------------------------------------------------------------------------------- the words

_LEAVE_FLOAT16 = "switch to bf16 or FP32[; check {module}]"
_NO_SCALE_HELPS = "no loss scale helps"
_LOSS_ALONE = "the outputs of all modules are finite: look at the loss and the labels"
_GO_BACK = "go back to a checkpoint"
_LOSS_EXPLAINED = (
    "The loss itself is NaN or Inf before any gradient was scaled, so no scale helps. A trace tells where "
    "that began: in the input, in the weights, or in a module's output. Run a module that exceeds float16's "
    "range in FP32 (with autocast disabled), or use bf16."
)
_UNPROTECTED = "Outside float16 no scaler protects the weights: "

_BEGAN: Mapping[str, _Wording] = {
    "bad input": (
        "the model's input {place} is NaN or Inf already: look at the data",
        "the input is NaN or Inf: look at the data",
    ),
    "weights lost": (
        "the weights were already NaN or Inf: {lost}; no module caused it",
        "weights hold NaN or Inf[ in {layer}]",
        (
            f"Weights that are NaN or Inf stay so in every precision: {_GO_BACK}, with a lower learning rate "
            "or clipped gradients (--clip-norm)."
        ),
    ),
    "buffers lost": (
        "the buffers were already NaN or Inf: {lost}; no module caused it",
        "buffers hold NaN or Inf[ in {layer}]",
    ),
    "overflowed": (
        "the forward pass overflowed: {kind} in {output}; run it in FP32 (autocast disabled) or use bf16",
        "the forward pass overflowed[ in {layer}]",
        (
            "float16 ends at 65,504, and this layer's output is larger: no loss scale helps. Run it in FP32 "
            "(with autocast disabled), or use bf16, which has FP32's range."
        ),
    ),
    "not finite": (
        "{kind} in {output}: not a float16 problem, check this module and its inputs",
        "{kind}[ in {layer}]",
    ),
    "gradients not finite": (
        (
            "{kind} in {output}; [at scale {scale} ]the scaler skips such steps; "
            "if they persist, use bf16 or FP32"
        ),
        "{kind} in gradients[ in {layer}]",
    ),
    "cause unknown": (
        "NaN or Inf, cause unknown, because the model's {unseen} were not seen",
        "NaN or Inf, cause unknown",
    ),
}
"""Where NaN or Inf began."""

_SCALER: Mapping[str, _Wording] = {
    **_BEGAN,
    "none": (
        "no overflow in {steps} steps; the scaler does not notice underflow",
        "no overflow in {steps} steps",
    ),
    "none recently": (
        "no overflow in the last {recent} steps; the scaler does not notice underflow",
        "no overflow in {recent} steps",
    ),
    "occasional": (
        (
            "{recent_skips} of the last {recent} steps skipped: normal, "
            "the scaler finds its limit by occasional overflows"
        ),
        "{recent_skips} of {recent} skipped",
    ),
    "frequent": (
        "{recent_skips} of the last {recent} steps skipped: too many, lower the learning rate or use bf16",
        "{recent_skips} of {recent} skipped",
    ),
    "calibrating": (
        (
            "{recent_skips} skipped, calibrating: normal, "
            "the scale starts high on purpose and halves until the gradients fit"
        ),
        "{recent_skips} skipped, calibrating",
    ),
    "skipped mostly": (
        "{recent_skips} of {recent} fp16 steps skipped: lower the learning rate, or use bf16",
        "{recent_skips} of {recent} skipped",
    ),
    "collapsing": (
        f"{{in_a_row}} fp16 steps skipped in a row, the scale keeps falling: {_LEAVE_FLOAT16}",
        "{in_a_row} skipped in a row",
    ),
    "collapsed": (
        f"the loss scale has collapsed to {{scale}}: {_LEAVE_FLOAT16}",
        "scale collapsed: {scale}",
    ),
    "loss not finite": (
        f"the loss was NaN or Inf: {_NO_SCALE_HELPS}",
        "the loss was NaN or Inf",
        _LOSS_EXPLAINED,
    ),
    "loss alone not finite": (f"the loss was NaN or Inf, {_LOSS_ALONE}", "the loss was NaN or Inf"),
}
"""What a loss scaler did."""

_SKIPS: Mapping[str, _Wording] = {
    **_SCALER,
    "calibrating": (
        "calibration, normal",
        "calibration",
        (
            "The scaler starts with a high scale on purpose and halves it until the gradients fit into "
            "float16: the first few skipped steps are part of that. Nothing to do."
        ),
    ),
    "occasional": (
        "normal",
        "normal",
        (
            "At this scale a gradient exceeded float16's range: the scaler skipped the step and halved its "
            "scale, which it will double again later. An occasional skip is normal: nothing to do."
        ),
    ),
    "collapsing": (
        f"the scale keeps falling: {_LEAVE_FLOAT16}",
        "the scale keeps falling",
        (
            f"After {COLLAPSE_SKIPS} skips in a row another halving is unlikely to help, and the model is "
            "not learning. Switch to bf16 or FP32, then check the layer whose gradients are not finite."
        ),
    ),
    "collapsed": (
        f"the scale has collapsed: {_LEAVE_FLOAT16}",
        "the scale has collapsed",
        (
            "Below 1 the scaler shrinks gradients, the opposite of its purpose; at 0 the next step would "
            "turn every weight into NaN. Switch to bf16 or FP32, then check the layer whose gradients are "
            "not finite."
        ),
    ),
}
"""What skipped steps mean, beside which steps and scales they were."""

_STORM: Mapping[str, _Wording] = {
    **_BEGAN,
    "loss not finite": (_NO_SCALE_HELPS, _NO_SCALE_HELPS, _LOSS_EXPLAINED),
    "loss alone not finite": (_LOSS_ALONE, "look at the loss and the labels"),
    "loss applied": (
        f"the step was applied: lower the learning rate, or {_GO_BACK}",
        "the step was applied",
        (
            f"{_UNPROTECTED}this step updated them. If the loss does not recover, lower the learning rate, "
            f"clip gradients (--clip-norm), or {_GO_BACK}."
        ),
    ),
    "gradients skipped": (
        "the scaler skips such steps",
        "skipped",
        (
            "Multiplied by the loss scale, these gradients exceeded float16's range. The scaler skips such "
            "steps and halves its scale: nothing to do while that is rare."
        ),
    ),
    "gradients applied": (
        f"the step was applied and corrupted the weights: {_GO_BACK}",
        "the weights are corrupted",
        (
            f"{_UNPROTECTED}a gradient that is not finite makes its weights NaN or Inf. Go back to a "
            "checkpoint, with a lower learning rate or clipped gradients (--clip-norm)."
        ),
    ),
    "buffers": (
        f"stays NaN or Inf in every precision: {_GO_BACK}",
        "stays NaN or Inf",
        (
            "The forward pass updates buffers such as BatchNorm's running statistics even in steps that the "
            "scaler skips, and the scaler does not check them. They stay NaN or Inf in FP32 too: go back to "
            "a checkpoint, or reset them."
        ),
    ),
}
"""What NaN or Inf means, beside where and how often it was."""

_KINDS = "weights, gradients, optimizer state and buffers"
_STORED = "{kinds} ({stored}) stay {dtype}"
_MOVED = "[; activations {activations_change}][; cast copies of weights {copies_change}]"
_BUSY = (
    "[the GPU is busy {busy} of the time]"
    "[the GPU takes {device_seconds}; launching takes the host {launching} of that]"
    "[the loop waits for data {waiting} of the step]"
)

_WORST = "worst {cosine}[ in {layer}][ ({reference}: {reference_cosine})]; losses {apart}"
_MOST_IN = "[; most in {place} ({worst_share})][; {zeros}]"
_SHARE, _AT_SCALE = "{share} of the gradient norm", "at loss scale {scale}[ ({overflowing_scale} overflows)]"

_SLOW = "{who}[ ({place})] is slow"
_WAIT = "{who} {makes} the others wait: {doing} for {duration}"

_WORDS: Mapping[str, Mapping[str, _Wording]] = {
    "speed": {
        **dict.fromkeys(
            ("faster", "slower", "same"), ("{times} the speed of {than}[: {bound}-bound]", "{ratio}")
        ),
        "open": ("no clear difference from {than} yet", "{ratio}"),
        "first impression": ("{times} the speed of {than}, provisional", "{ratio} provisional"),
        "disturbed": ("step times too uneven", "uneven steps"),
        "never ran": "never tried here",
        "reference never ran": "never compared with {than}",
        "too few steps": "too few steps for a speed",
        "no steps": "no steps yet",
        "unsupported": "not supported here",
        "observed": ("needs watch() in the script", "needs watch()"),
        "emulated": ("says nothing about speed", "emulated"),
    },
    "memory": {
        **dict.fromkeys(("less", "more", "same"), ("{less_percent} peak memory", "{less_percent}")),
        "emulated": ("says nothing about memory", "emulated"),
    },
    "memory use": {
        "before AMP": f"AMP can shrink only activations, {{activations}} of {{peak}} here; {_STORED}",
        "no peak": f"{_STORED}{_MOVED}",
        "fell": f"peak fell by {{change}}{_MOVED}; {_STORED}",
        **{
            f"{state}{most}": f"peak {words}: {owner}{_MOVED}"
            for state, words in {"same": "barely changed", "rose": "rose by {change}"}.items()
            for most, owner in {
                "": _STORED,
                ", stored": "{stored} of {peak} are {kinds}, which stay {dtype}",
                ", other": "{other} of {peak} is other memory: data on the device, batches, workspaces",
            }.items()
        },
        "unknown": "most of the memory is probably weights, gradients and optimizer state, which stay FP32",
    },
    "saved for backward": {
        "sizes": (
            "saved for backward (X-ray): {saved_before} in FP32, {saved} in {precision} ({saved_change})"
            f"[, up to {{copies}} of it cast copies of weights], beside {{stored}} of {_KINDS}"
        ),
        "fixed": f"{{family}} cannot save much memory: {{stored}} of {{whole}} are {_KINDS}",
        "CPU": "activations and peak are not measured on a CPU",
    },
    "limit": {
        "emulated": (
            "says nothing about the limit",
            "emulated",
            "computed in float32: these times are not FP8's",
        ),
        "too few steps": "too few steps timed yet",
        "compute": (
            "compute-bound[: {can} {step_share} of the step][: at most {most}]",
            "compute-bound",
            _BUSY,
        ),
        "communication": (
            "compute- or communication-bound: passes and communication take {step_share} of the step",
            "compute- or communication-bound",
            _BUSY,
        ),
        "input": (
            (
                "input-bound: {step_share} of the step waits for data[ in any precision: at most {most}]; "
                "speed up data loading first"
            ),
            "input-bound: {step_share}",
            "[the GPU waits for data or copies it {waiting} of the step, the host waits {input_seconds}]",
        ),
        "launch": (
            "launch-bound: little to gain; use larger batches, CUDA graphs or torch.compile",
            "launch-bound",
            (
                "[the host takes {launch_seconds} to launch kernels that the GPU runs in {device_seconds}]"
                "[, idle {idle} of the time]"
                "[the GPU is busy {busy} of the time][, and {casts}'s casts add kernel launches]"
            ),
        ),
        "unknown": (
            "the GPU idles, cause unknown",
            "the GPU idles",
            "the GPU is idle {idle} of the time, which neither data nor the host explains",
        ),
    },
    "step time": {
        "longer": "{precision} took longer than {than}: {changes}",
        "not longer": "{precision}: {changes}",
        "gains nothing": "{precision} gains nothing",
    },
    "overflow": {
        **_SCALER,
        "finite": "no NaN or Inf",
        "not finite gradients": "NaN or Inf in {gradients} gradients",
        "never ran": "no {about} steps yet",
    },
    "forward": {
        **_BEGAN,
        "would overflow": (
            "would overflow float16: {output}, {distance}",
            "fp16 would overflow in {place}",
        ),
        "fits": (
            "nothing overflowed in {modules} modules; nearest: {output}, {distance}",
            "largest {largest} of 65,504",
        ),
        "unknown": ("nothing overflowed in {modules} modules", "nothing overflowed"),
    },
    "float16": {
        **_SCALER,
        **dict.fromkeys(
            ("survives", "outweighed", "kept"),
            (f"{_SHARE} underflows {_AT_SCALE}{_MOST_IN}", "{share} underflows"),
        ),
        "underflows": (
            f"{_SHARE} {{underflows}} {_AT_SCALE}: use bf16{_MOST_IN}",
            "{share} underflows: use bf16",
        ),
        "not finite": (
            "{gradients} gradients are NaN or Inf in {precision}: not a float16 problem",
            "NaN or Inf in {precision} already",
        ),
        "all zero": ("all gradients are zero{flushed}", "all gradients are zero"),
        "overflow": (
            "overflow in fp16 at {scale}: {gradients} gradients are NaN or Inf; the scaler skips this step",
            "overflow at {scale}",
        ),
        "empty": "no gradients",
    },
    "agreement": {
        "agree": (
            f"gradients agree in {{layers}}; {_WORST}",
            "worst {cosine}[ in {layer}]",
        ),
        **{
            state: (
                f"gradients {state} in {{layers}}[, more than in {{reference}}]; {_WORST}[; {{caution}}]",
                f"gradients {state}: {{cosine}}[ in {{layer}}]",
            )
            for state in ("differ", "disagree")
        },
        "as in reference": (
            f"gradients differ in {{layers}}, but in {{reference}} as much; {_WORST}[; {{caution}}]",
            "{cosine}[ in {layer}], no worse than {reference}",
        ),
        "FP32 loss not finite": (
            "the loss is {other_loss} even in FP32: not a problem of {precision}",
            "the loss is not finite in FP32 either",
        ),
        "AMP loss not finite": (
            (
                "the loss is {loss} in {precision} but {other_loss} in FP32"
                "[ and {reference_loss} in {reference}]{overflowed}"
            ),
            "the loss is finite in FP32 only",
        ),
        "overflow": (
            (
                "overflow at scale {scale}: the scaler would skip this step and halve its scale: "
                "NaN or Inf in {bad_layers}"
            ),
            "NaN or Inf[ in {layer}]",
        ),
        "not finite": ("{precision}: NaN or Inf in {bad_layers}{in_reference}", "NaN or Inf[ in {layer}]"),
        "nothing to compare": ("no layer has a gradient to compare", "no gradients to compare"),
    },
    "loss": {
        "not finite": ("the loss is {loss}[ in {precision}]", "{loss}[ in {precision}]"),
        "dropped": ("the loss of a batch was {loss}: no step was made of it", "{loss}, in no step"),
        "validation not finite": ("the validation loss is {loss}", "validation {loss}"),
        "mid-run": ("{other_loss} {than}, {loss} {family}", "{other_loss} → {short_family} {loss}"),
        "finite": "finite: {loss}",
        "same": ("{loss}, {than} {other_loss}: the same within noise", "same within noise"),
        **{
            state: (
                f"{{loss}}, {{than}} {{other_loss}}: {state} by more than the noise",
                "{loss}, not {other_loss}",
            )
            for state in ("higher", "lower")
        },
    },
    "final loss": {
        "differ": "{sides}: final {which} {difference} ({interval}). They differ by more than the seeds do",
        "not shown": (
            "{sides}: final {which} {difference} ({interval}). "
            "No difference shown: the seeds differ by as much"
            "[. With this spread between seeds, a difference of {detectable} would show 8 times in 10]"
        ),
        "diverged": "{sides}: the final {which} is NaN or Inf in {runs}",
        **{
            state: f"{{sides}}: {{no_verdict}}: {why}"
            for state, why in {
                "few seeds": "{few}; a verdict needs 2 or more in each group",
                "no spread": "all seeds of a group ended at the same loss",
                "no loss": "a run has no loss",
                "not comparable": "it was not the same training, see below",
                "running": "a run still trains",
                "reading": "not all journals are read yet",
            }.items()
        },
    },
    "skips": _SKIPS,
    "storm": _STORM,
    "growth": {
        "not measured": "",
        "fits": ("{doubles}, headroom then {headroom_then}", "headroom then {headroom_then}"),
        "overflows": (
            "{doubles} and will probably overflow: smallest headroom {headroom_now}",
            "will probably overflow",
        ),
        "overflowed": (
            "{doubles} and will probably overflow: {scale} overflowed at step {step}",
            "will probably overflow",
        ),
    },
    "pause": {
        "no checkpoint": "there is no checkpoint to go back to: quit and restart with a smaller --lr",
        "checkpoint": "to go back to {place}: quit, then amptui train --resume",
    },
    "weights": {
        **_BEGAN,
        "weights lost": "weights hold NaN or Inf[ in {layer}]",
        "buffers lost": "buffers hold NaN or Inf[ in {layer}]",
        "bad input": (
            "the model's input and its weights hold NaN or Inf: look at the data",
            "the input is NaN or Inf: look at the data",
        ),
        "ranks differ": ("the weights differ on {who}", "differ on {who}"),
        "finite": "finite",
    },
    "lost rank": {
        cause: f"{{who}}[ on {{host}}] {what}[: {{detail}}]"
        for cause, what in {
            "killed": "was killed",
            "hung": "hung",
            "out of memory": "ran out of memory",
            "failed": "failed",
        }.items()
    },
    "replicas": {
        "agree": "replicas agree again: {what}",
        **{
            state: (f"replicas disagree: {difference}", difference)
            for state, difference in {
                "weights": "the weights of {who} differ from the others'",
                "loss scale": "{who} {has} {rank_scale}, the others {usual}",
                "found Inf": "{who} found Inf and skipped a step that the others applied",
                "missed Inf": "{who} found no Inf and applied a step that the others skipped",
            }.items()
        },
    },
    "progress": {
        "awaited": _WAIT,
        "over": _WAIT,
        "stacks": ("no progress: stacks of {stacks}[; {silent} did not answer]", "no progress"),
    },
    "rank speed": {
        "input": (
            f"{_SLOW}: it waits {{seconds}} for data, the other ranks {{others_seconds}}",
            "{who} slow: data wait {seconds}, others {others_seconds}",
        ),
        "compute": (
            f"{_SLOW}: forward and backward take {{seconds}}, {{others_seconds}} on the other ranks",
            "{who} slow: compute {seconds}, others {others_seconds}",
        ),
        "clocks": (
            (
                f"{_SLOW}: clock held at {{held_clock}} of {{others_clock}} by {{reasons}}"
                "[; compute {seconds}, others {others_seconds}]"
            ),
            "{who} slow: clock {clock}, others {others_clock}",
        ),
        "equal": ("no rank is slower than the others", "equally fast"),
        "equal again": ("the ranks are equally fast again", "equally fast again"),
        "equal where measured": (
            "data wait and clocks are the same on all ranks; {parallel} hides which rank computes slowly",
            "equal data wait and clocks",
        ),
    },
}
"""By subject and state."""


# ---------------------------------------------------------------------------- what the words name


def speed_words(speed: Finding, without: str = "") -> str:
    """``1.71× the speed of FP32 (1.68 to 1.74)``; ``without`` an interval other words stand there."""
    interval = interval_ends(speed.numbers.get("low"), speed.numbers.get("high"))
    return f"{long_words(speed)} {f'({interval})' if interval else without}".rstrip()


def times_speed(ratio: float | None, than: str) -> str:
    """``1.71× the speed of FP32``: the one phrase for it."""
    return f"{units.ratio(ratio)} the speed of {than}"


def interval_ends(low: float | None, high: float | None) -> str:
    """``1.68 to 1.74``; empty without an interval."""
    return " to ".join(units.ratio(end).removesuffix("×") for end in (low, high)) if low and high else ""


def ratio_words(value: float | None, low: float | None, high: float | None) -> str:
    """``1.61× (1.55 to 1.68)``; the ratio alone while there are too few blocks for an interval."""
    interval = interval_ends(low, high)
    return f"{units.ratio(value)} ({interval})" if interval else units.ratio(value)


def less_percent(saving: float) -> str:
    """``38% less``, ``12% more``, ``the same``."""
    amount = units.percent(abs(saving))
    return "the same" if amount == "0%" else f"{amount} {'less' if saving >= 0 else 'more'}"


def signed_bytes(change: float | None) -> str:
    """``-744 MiB``, ``+28.1 MiB``, ``the same``; empty if not measured."""
    if not change:
        return "" if change is None else "the same"
    return f"{'+' if change > 0 else ''}{units.number_of_bytes(round(change))}"


def _bytes(size: float | None) -> str:
    return units.number_of_bytes(None if size is None else round(size))


def _changes(finding: Finding) -> str:
    """``forward 185 ms instead of 366 ms, backward 1.66 s instead of 977 ms``."""
    numbers = finding.numbers
    before = {name: numbers[f"{name} before"] for name in numbers if f"{name} before" in numbers}
    return ", ".join(
        f"{name} {units.milliseconds(numbers[name])} instead of "
        + ("nothing" if seconds is None else units.milliseconds(seconds))
        for name, seconds in before.items()
    )


def _most(finding: Finding) -> str:
    """``2.6×``, or ``1.7× more`` where it runs already; empty while unknown."""
    most = finding.numbers.get("most")
    more = " more" if finding.precision == finding.about and finding.state != "input" else ""
    return "" if most is None else f"{most:.1f}×{more}"


def _can_speed_up(finding: Finding) -> str:
    if finding.precision == finding.about:
        return "forward and backward still take"
    most = " at most" if finding.about in FP8_PRECISIONS else ""  # FP8 has Linear layers only
    return f"{family_label(finding.about)} can speed up{most}"


def cosine_words(cosine: float | None, digits: int = 3) -> str:
    """``0.999``, cut rather than rounded: 0.99896 is below 0.999."""
    if cosine is None or not abs(cosine) <= 1:
        return units.loss(cosine)
    return str(Decimal(str(cosine)).quantize(Decimal(10) ** -digits, ROUND_DOWN))


def losses_apart(loss: float | None, other: float | None) -> str:
    """``0.024% apart``, relative to ``other``; both where that is no number."""
    difference = math.nan if loss is None or other is None else abs(loss - other)
    if not difference:
        return "equal"
    if not other or not math.isfinite(difference):
        return f"{units.loss(other)} and {units.loss(loss)}"
    share = units.share(difference, abs(other))
    return f"{units.percent(difference / abs(other)) if share == '100%' else share} apart"


def _signed_loss(value: float | None) -> str:
    return "" if value is None else f"{'−' if value < 0 else '+'}{units.loss(abs(value))}"


def _interval(finding: Finding) -> str:
    """``95% interval −0.11 to +0.10``; of several intervals with a digit more."""
    confidence, low, high = (finding.numbers.get(name) or 0.0 for name in ("confidence", "low", "high"))
    percent = units.percent(confidence, 0 if math.isclose(confidence, round(confidence, 2)) else 1)
    return f"{percent} interval {_signed_loss(low)} to {_signed_loss(high)}"


def _no_verdict(finding: Finding) -> str:
    if finding.numbers.get("difference") is None:
        return f"no verdict on the final {finding.names['loss']}"
    return f"final {finding.names['loss']} {_signed_loss(finding.numbers['difference'])}. No verdict"


def distance_words(largest: float) -> str:
    """``41,200, 0.7 doublings below 65,504``; only the value where it is zero or not finite."""
    if not 0 < largest < math.inf:
        return units.loss(largest)
    room = math.log2(LARGEST_FLOAT16) - math.log2(largest)
    side = "above" if room < 0 else "below"
    return f"{units.loss(largest)}, {units.doublings(abs(room))} doublings {side} 65,504"


def output_words(way: str, place: str, kind: str, dtype: str) -> str:
    """``the output of features.12.conv (Conv2d, float16)``, or its output gradient."""
    side = "the output of" if way == "forward" else "the output gradient of"
    return f"{side} {place} ({kind}, {dtype})"


def _output(finding: Finding) -> str:
    names = finding.names
    if "kind" not in names:
        return "the model"  # a journal that names no module
    return output_words(names["way"], finding.place, names["kind"], names["dtype"])


def _in_reference(finding: Finding) -> str:
    """Whether the first layer with NaN or Inf has one in the third precision, too."""
    reference, cosine = finding.names.get("reference"), finding.numbers.get("reference_cosine")
    if not reference:
        return ""
    return f", in {reference} too" if cosine is None or math.isnan(cosine) else f", not in {reference}"


def _layers(finding: Finding) -> str:
    """``all 43 layers``, ``3 of 43 layers``."""
    count, layers = finding.numbers.get("count") or 0, finding.numbers.get("layers") or 0
    part = f"all {layers:.0f}" if count == layers > 1 else f"{count:.0f} of {layers:.0f}"
    return f"{part} layers"


def _lost_names(finding: Finding) -> str:
    """``head.weight (+8)``."""
    more = (finding.numbers.get("lost") or 1) - 1
    return f"{finding.place} (+{units.count(more)})" if more else finding.place


def _ratio(finding: Finding, about: str) -> str:
    """``1.65×``; with what says so of a ratio without an interval."""
    ratio = finding.numbers.get("ratio")
    return units.ratio(ratio) if finding.numbers.get("high") else f"{about}{units.about_ratio(ratio)}"


def _zeros(finding: Finding) -> str:
    share = finding.numbers.get("zero_share")
    if not share:
        return "" if share is None else "no zeros, so nothing was flushed"
    return f"{units.share(share, 1)} zeros (true zeros or flushed)"


def _kind_of_nonfinite(finding: Finding) -> str:
    largest = finding.numbers.get("largest")
    return "NaN" if largest is not None and math.isnan(largest) else "Inf"


_NUMBERS: Mapping[str, Callable[[float | None], str]] = {
    **dict.fromkeys(("steps", "recent", "recent_skips", "in_a_row"), units.count),
    **dict.fromkeys(("gradients", "modules", "scale"), units.count),
    **dict.fromkeys(("loss", "other_loss", "reference_loss", "detectable"), units.loss),
    **dict.fromkeys(("headroom_now", "headroom_then"), units.doublings),
    **dict.fromkeys(("cosine", "reference_cosine"), cosine_words),
    "difference": _signed_loss,
    "largest": units.short_count,
    "share": lambda share: "an unknown share" if share is None else units.share(share, 1),
    "worst_share": lambda share: "" if share is None else units.share(share, 1),
    **dict.fromkeys(("step_share", "waiting", "launching", "busy", "idle"), units.percent),
    **dict.fromkeys(("input_seconds", "launch_seconds", "device_seconds"), units.milliseconds),
    **dict.fromkeys(("stored", "other", "peak", "activations"), _bytes),
    **dict.fromkeys(("change", "saved", "saved_before", "copies", "whole"), _bytes),
    **dict.fromkeys(("activations_change", "copies_change"), signed_bytes),
    **dict.fromkeys(("seconds", "others_seconds"), units.milliseconds),
    **dict.fromkeys(("clock", "others_clock"), units.megahertz),
    "usual": units.count,
}
"""Numbers with their units. What is in neither mapping is a name of the finding."""


def _who(finding: Finding) -> str:
    """``rank 3``, ``ranks 1, 2`` or ``12 ranks (1, 2, 5, 6, ...)``."""
    ranks, count = finding.ranks, round(finding.numbers.get("count") or 0)
    if count == 1 and ranks:
        return f"rank {ranks[0]}"
    first_ranks = ", ".join(map(str, ranks[:_NAMED_RANKS]))
    if count <= min(len(ranks), _NAMED_RANKS):
        return f"ranks {first_ranks}"
    return f"{units.count(count)} ranks ({first_ranks}, ...)"


_FIELDS: Mapping[str, Callable[[Finding], str]] = {
    "distance": lambda finding: distance_words(finding.numbers.get("largest") or 0.0),
    "ratio": lambda finding: _ratio(finding, "~"),
    "times": lambda finding: _ratio(finding, "about "),
    "can": _can_speed_up,
    "most": _most,
    "changes": _changes,
    "saved_change": lambda finding: less_percent(
        1 - (finding.numbers["saved"] or 0) / (finding.numbers["saved_before"] or 1)
    ),
    "less_percent": lambda finding: less_percent(1 - (finding.numbers.get("memory_ratio") or 0.0)),
    "apart": lambda finding: losses_apart(finding.numbers.get("loss"), finding.numbers.get("other_loss")),
    "layers": _layers,
    "bad_layers": lambda finding: f"{_layers(finding)}' gradients, first {layer_label(finding.place)}",
    "lost": _lost_names,
    "doubles": lambda finding: (
        f"the scale doubles in {units.counted(round(finding.numbers.get('steps') or 0), 'step')}"
    ),
    "step": lambda finding: units.count(finding.step),
    "overflowing_scale": lambda finding: (  # of the histogram, which was at another one
        units.count(measured)
        if (measured := finding.numbers.get("measured_scale")) and measured != finding.loss_scale
        else ""
    ),
    "zeros": _zeros,
    "stacks": lambda finding: units.counted(round(finding.numbers.get("stacks") or 0), "rank"),
    "duration": lambda finding: units.duration(finding.numbers.get("seconds")),
    "held_clock": lambda finding: units.count(round(finding.numbers.get("clock") or 0)),
    "rank_scale": lambda finding: (
        "other loss scales"
        if (scale := finding.numbers.get("value")) is None
        else f"loss scale {units.count(scale)}"
    ),
    # Names.
    "which": lambda finding: finding.names["loss"],
    "interval": _interval,
    "no_verdict": _no_verdict,
    "layer": lambda finding: layer_label(finding.place) if finding.place else "",
    "module": lambda finding: (
        f"{finding.place} ({finding.names['kind']}, {finding.names['dtype']})"
        if finding.names.get("kind")
        else finding.place
    ),
    "output": _output,
    "kind": _kind_of_nonfinite,
    "underflows": lambda finding: (
        "underflows" if base_precision(finding.precision) == "fp16" else "would underflow"
    ),
    "than": lambda finding: precision_label(finding.names.get("than", "fp32")),
    "precision": lambda finding: precision_label(finding.precision) if finding.precision else "",
    "about": lambda finding: short_label(finding.about),
    "family": lambda finding: family_label(finding.about),
    "short_family": lambda finding: (
        "FP8" if base_precision(finding.about) in FP8_PRECISIONS else family_label(finding.about)
    ),
    "who": _who,
    "silent": lambda finding: _who(finding) if finding.ranks else "",
    "parallel": lambda finding: parallel_words(finding.names["parallel"]),
    "has": lambda finding: "has" if finding.numbers.get("count") == 1 else "have",
    "makes": lambda finding: (
        "made" if finding.state == "over" else "makes" if finding.numbers.get("count") == 1 else "make"
    ),
    # What is added where it holds.
    "in_reference": _in_reference,
    "overflowed": lambda finding: (
        "; the forward pass overflowed: use bf16 or FP32" if finding.precision == "fp16" else ""
    ),
    "caution": lambda finding: MASKS_DIFFER if finding.numbers.get("random") else "",
    "flushed": lambda finding: ": true zeros or flushed" if finding.happened else "",
}


# ------------------------------------------------------------------------------- what it is from


def measured_at(finding: Finding) -> str:
    """``step 1,204 in AMP fp16 at loss scale 65,536``: what a measurement of one step is of."""
    if finding.step is None:
        return ""
    where = f" in {precision_label(finding.precision)}" if finding.precision else ""
    # The words on underflow name the scale themselves.
    scale = None if finding.subject == "float16" else finding.loss_scale
    at = "" if scale is None else f" at loss scale {units.count(scale)}"
    return f"step {units.count(finding.step)}{where}{at}"


def age_words(steps: int) -> str:
    """``old: 300 steps ago``."""
    return f"old: {units.counted(steps, 'step')} ago"


def evidence_words(finding: Finding) -> str:
    """What it is from, and its age if it is old."""
    age = age_words(finding.age_steps or 0) if finding.freshness == "old" else ""
    why = explanation(finding) if finding.subject == "limit" else ""
    return "; ".join(filter(None, (why, measured_at(finding), age)))


def short_evidence(finding: Finding) -> tuple[str, ...]:
    """What a finding of one step is from, the longest first: ``step 1,204 fp16 at scale 65,536`` to its step.

    Empty of others: they are of many steps.
    """
    single = finding.subject in ("float16", "agreement", "forward")
    lasting = finding.subject in ("loss", "weights") and finding.is_trouble
    if not (single or lasting) or finding.step is None or not finding.precision:
        return ()
    step, precision = f"step {units.count(finding.step)}", short_label(finding.precision)
    scale = "" if finding.loss_scale is None else f" at scale {units.count(finding.loss_scale)}"
    return f"{step} {precision}{scale}", f"{step} {precision}", step
