"""What a model says of being divided among several processes, as FSDP does it."""

from typing import Any, cast

import torch
from torch import nn


def is_sharded(model: nn.Module) -> bool:
    """Whether this process holds only a part of the parameters: a norm of all takes collectives."""
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
        return True
    return any(type(parameter).__name__ == "DTensor" for parameter in model.parameters())


def sharded_dtype(model: nn.Module) -> torch.dtype | None:
    """The dtype to which FSDP2 casts parameters by a ``MixedPrecisionPolicy``; None if it casts none."""
    for module in model.modules():
        get_state: Any = getattr(module, "_get_fsdp_state", None)
        if get_state is not None and (found := get_state()._mp_policy.param_dtype) is not None:
            return cast("torch.dtype", found)
    return None
