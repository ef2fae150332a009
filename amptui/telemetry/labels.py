"""The names of precisions as people read them."""

from collections.abc import Mapping

_LABELS: Mapping[str, str] = {
    "fp32": "FP32",
    "ieee": "FP32 ieee",
    "tf32": "TF32",
    "fp16": "AMP fp16",
    "bf16": "AMP bf16",
}


def precision_label(name: str) -> str:
    """``fp16`` as ``AMP fp16``; a name that is not known here is shown as it is."""
    return _LABELS.get(name, name)
