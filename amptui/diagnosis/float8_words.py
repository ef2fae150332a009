"""What float8 does to a run, in words: which layers multiply in it, and what emulation means."""

from collections.abc import Mapping

from amptui.base import units
from amptui.diagnosis.labels import precision_label
from amptui.records.findings import Float8Layers, FloatHindrance, LayerLeftOut

_HINDRANCES: Mapping[FloatHindrance, str] = {
    "size": "not divisible by 16",
    "kind": "no nn.Linear",
    "subclass": "a subclass of nn.Linear",
    "forward": "its forward() was replaced",
}


def layers_event(record: Float8Layers) -> str:
    """``FP8 emulated, tensorwise: 16 of 17 layers in float8, emulated in float32``."""
    layers = units.counted(record.layers + record.left_out_count, "layer")
    what = f"{units.count(record.layers)} of {layers} in float8"
    emulated = ", emulated in float32" if record.emulated else ""
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
