"""What DDP and FSDP2 say of a model that they cannot train, in words that name what to change."""

from amptui.base.errors import ExperimentError

_UNUSED = "Expected to have finished reduction in the prior iteration"
"""How DDP tells that a gradient is missing (``torch/csrc/distributed/c10d/reducer.cpp``)."""

_MIXED = "got mixed torch.Tensor and DTensor"
"""How torch tells that weights are not gathered (``torch/distributed/tensor/_dispatch.py``)."""

_NO_STRATEGY = "does not have a sharding strategy registered"
"""How torch tells that an operator takes no DTensor, such as that of a fused SGD (there)."""


def unfit_model(text: str, doing: str) -> ExperimentError | None:
    """The error whose ``text`` torch gave while ``doing`` something, if it is one of these."""
    if _UNUSED in text:
        what = f"a parameter of the model took no part in loss() ({doing})"
        return ExperimentError(what, hint="remove it, or set its requires_grad to False")
    if _MIXED in text:
        what = f"loss() used the weights of a block outside its forward() ({doing})"
        return ExperimentError(what, hint="call the block itself, or train without --fsdp")
    if _NO_STRATEGY in text:
        operator = text.partition(_NO_STRATEGY)[0].removeprefix("Operator ").strip()
        what = f"{operator} does not work on sharded weights ({doing})"
        unfused = "build the optimizer without fused=True, or " if "_fused_" in operator else ""
        return ExperimentError(what, hint=f"{unfused}train without --fsdp")
    return None
