"""What float8 does to a run, in words: which layers multiply in it, and what emulation means."""

import math
from collections.abc import Mapping

from amptui.base import units
from amptui.diagnosis.activity import newest
from amptui.diagnosis.answer_words import age_words
from amptui.diagnosis.float16_verdicts import MEASURING
from amptui.diagnosis.labels import operand_label, precision_label
from amptui.records.findings import (
    Float8Layers,
    Float8Operand,
    Float8Window,
    FloatHindrance,
    LayerLeftOut,
    is_old,
)
from amptui.telemetry.float8 import Float8Seen, LayerOperand, is_zero
from amptui.telemetry.view import SessionView

_HINDRANCES: Mapping[FloatHindrance, str] = {
    "size": "not divisible by 16",
    "kind": "not an nn.Linear",
    "subclass": "a subclass of nn.Linear",
    "forward": "its forward() was replaced",
    "attribute": "an attribute has the name of one that torchao's layers have",
    "weight": "its weight is not a plain parameter in float32, bfloat16 or float16",
}


def layers_event(record: Float8Layers) -> str:
    """``FP8 emulated, tensorwise: 16 of 17 layers in float8, computed in float32``."""
    layers = units.counted(record.layers + record.left_out_count, "layer")
    what = f"{units.count(record.layers)} of {layers} in float8"
    emulated = ", computed in float32" if record.emulated else ""
    return f"{precision_label(record.precision)}, {record.recipe}: {what}{emulated}"


def layer_details(record: Float8Layers) -> list[str]:
    """One line for each layer that does not multiply in float8, then the names of those that do."""
    names = ", ".join(name or "the model" for name in record.names)
    more = record.layers - len(record.names)
    other_left_out = record.left_out_count - len(record.left_out)
    return [
        *(_left_out(layer) for layer in record.left_out),
        *([f"and {units.count(other_left_out)} more in bfloat16"] if other_left_out else []),
        f"in float8: {names}" + (f" and {units.count(more)} more" if more else ""),
    ]


def _left_out(layer: LayerLeftOut) -> str:
    """``head in bfloat16: Linear 104×256, not divisible by 16``."""
    shape = "×".join(map(str, layer.shape))
    return f"{layer.name or 'the model'} in bfloat16: {layer.kind} {shape}, {_HINDRANCES[layer.why]}"


def window_event(seen: Float8Seen) -> str:
    """``FP8 loses most of the input of mlp.fc: channel 17 is 1e+05 times the median one``.

    No channel where only rows show it: ``some rows (tokens or samples) are far above the others``.

    Without a loss ``FP8 keeps all 24 operands; worst for its format: 3.1% off in the input of mlp.fc``.
    """
    label, worst = precision_label(seen.precision), seen.worst[0]
    if not seen.lossy:
        off = units.percent(worst.operand.judged_error, 1)
        all_operands = units.counted(seen.operands, "operand")
        if is_zero(worst.operand):
            return f"{label} keeps all {all_operands}: all are zero"
        return f"{label} keeps all {all_operands}; worst for its format: {off} off in {_of(worst)}"
    more = f" and {units.counted(seen.lossy - 1, 'other operand')}" if seen.lossy > 1 else ""
    operand = worst.operand
    if math.isnan(operand.judged_error):
        return f"{label} computes with NaN or Inf: {_of(worst)}{more}"
    why = f"channel {operand.channel} is {units.short_count(operand.channel_excess)} times the median one"
    if worst.is_lossy_by_rows:
        rows = "input features" if operand.role == "weight" else "tokens or samples"
        why = f"some rows ({rows}) are far above the others"
    return f"{label} loses most of {_of(worst)}{more}: {why}"


def judged_words(operand: Float8Operand) -> str:
    """What the error of an operand that judges it is of."""
    return "median row" if operand.is_judged_by_rows else "median channel"


def window_details(seen: Float8Seen) -> list[str]:
    """One line for each of the worst operands."""
    return [_operand_words(one) for one in seen.worst]


def _operand_words(one: LayerOperand) -> str:
    """``mlp.fc input E4M3: 3.1% off in the median channel, flushed 0%, subnormal 1.2%, saturated 0%``."""
    operand = one.operand
    shares = {"flushed": operand.flushed, "subnormal": operand.subnormal, "saturated": operand.saturated}
    parts = [f"{name} {units.share(share, 1)}" for name, share in shares.items()]
    off = f"{units.percent(operand.judged_error, 1)} off in the {judged_words(operand)}"
    if is_zero(operand):
        off = "all zero"
    where = f"{one.layer or 'the model'} {operand.role} {format_words(operand)}"
    return f"{where}: {', '.join([off, *parts])}, scale {scale_words(operand)}"


def _of(one: LayerOperand) -> str:
    return f"the {operand_label(one.operand.role, one.layer)}"


# ------------------------------------------------------------------------- the page of all operands

BESIDE_FLOAT16 = (
    "These are the operands of float8's products, each multiplied by a scale of its own. float16's histogram "
    "is of the weights' gradients, at one loss scale, which FP8 does not need."
)

BESIDE_FLOAT16_IN_SHORT = "h: float16's histogram, of the weights' gradients at one loss scale"

OPERANDS_LEGEND = (
    "median: rounding error of the median channel or row, whichever is larger (of a gradient the channel); "
    "whole: of all elements, both by norm; flushed to zero, subnormal (fewer bits) and saturated are shares "
    "of all elements; top channel: the one with the largest value, and by how much that exceeds the median "
    "channel's"
)


def window_missing(view: SessionView) -> str:
    """Why no operands can be shown yet."""
    if newest(view, "histogram") is not None:
        return MEASURING
    why = view.run.refuses.get("histogram") if view.run is not None else None
    return f"float8's operands: not measured, {why}" if why else "float8's operands: not measured yet"


def window_title(window: Float8Window, view: SessionView) -> str:
    """``float8 operands of step 1,204 (old: 300 steps ago): FP8 emulated, tensorwise``."""
    age = ""
    if newest(view, "histogram") is not None:
        age = f" ({MEASURING})"
    elif is_old(window.step, None, now=view.step, scale_now=None):
        age = f" ({age_words(view.step - window.step)})"
    what = f"{precision_label(window.precision)}, {window.recipe}"
    return f"float8 operands of step {window.step:,}{age}: {what}"


def scale_words(operand: Float8Operand) -> str:
    """``124``, or ``12.0 to 3.20 k`` of several."""
    ends = dict.fromkeys(units.short_count(scale) for scale in (operand.scale_low, operand.scale_high))
    return " to ".join(ends)


def operand_title(one: LayerOperand) -> str:
    """``the output gradient of mlp.fc in E5M2: 4,096 elements``."""
    elements = units.counted(one.operand.elements, "element")
    return f"{_of(one)} in {format_words(one.operand)}: {elements}"


def format_words(operand: Float8Operand) -> str:
    """``E4M3``."""
    return operand.format.upper()


def counts_missing(operand: Float8Operand) -> str:
    """Why an operand has no histogram; empty if it has one."""
    if operand.first_exponent is None:
        return "no counts by exponent were recorded"
    return "" if operand.counts else "all elements are zero or not finite"
