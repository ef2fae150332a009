"""The labels, glyphs and letters of the precisions, and the label of the data."""

from collections.abc import Mapping

from amptui.records import DataInfo

_LABELS: Mapping[str, str] = {
    "fp32": "FP32",
    "ieee": "FP32 ieee",
    "tf32": "TF32",
    "fp16": "AMP fp16",
    "bf16": "AMP bf16",
}

_GLYPHS: Mapping[str, str] = {"fp32": "■", "ieee": "□", "tf32": "◆", "fp16": "▲", "bf16": "●"}

_LETTERS: Mapping[str, str] = {"fp32": "F", "ieee": "I", "tf32": "T", "fp16": "A", "bf16": "B"}


def precision_label(name: str) -> str:
    """``fp16`` as ``AMP fp16``; an unknown name is returned unchanged."""
    return _LABELS.get(name, name)


def precision_glyph(name: str | None) -> str:
    """The glyph beside a precision's label."""
    return _GLYPHS.get(name or "", "?")


def precision_letter(name: str | None) -> str:
    """The one-cell letter for a precision."""
    return _LETTERS.get(name or "", "?")


def signed_label(name: str) -> str:
    """``▲ AMP fp16``."""
    return f"{precision_glyph(name)} {precision_label(name)}"


def data_label(data: DataInfo) -> str:
    """``MNIST``, or ``digits (synthetic data)``."""
    return data.name if data.real else f"{data.name} (synthetic data)"
