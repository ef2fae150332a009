"""A model that is divided among processes, each of which holds a part of its parameters."""

from typing import Any, cast

import torch
from torch import Tensor, nn


def is_sharded(model: nn.Module) -> bool:
    """Whether this process holds only a part of the parameters (FSDP): their norm needs collectives."""
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
        return True
    return any(type(parameter).__name__ == "DTensor" for parameter in model.parameters())


def local_part(tensor: Tensor) -> Tensor:
    """The part of a DTensor that is here, which may be empty; any other tensor as it is. No communication."""
    if type(tensor) is Tensor or not hasattr(tensor, "to_local"):
        return tensor
    part: Tensor = tensor.to_local()
    return part


def sharded_dtype(model: nn.Module) -> torch.dtype | None:
    """The dtype to which FSDP2 casts parameters by a ``MixedPrecisionPolicy``; None if it casts none."""
    for module in model.modules():
        get_state: Any = getattr(module, "_get_fsdp_state", None)
        if get_state is not None and (dtype := get_state()._mp_policy.param_dtype) is not None:
            return cast("torch.dtype", dtype)
    return None
