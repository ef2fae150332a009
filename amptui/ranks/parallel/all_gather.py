"""Gathers a tensor of each rank into one, by the function that the installed torch has for it."""

from typing import Any

import torch.distributed as dist
from torch import Tensor

_NAMES = ("all_gather_single", "all_gather_into_tensor")
"""One collective: torch 2.14 introduced the first name and warns of the second, which is all that 2.9 has."""


def all_gather(everybody: Tensor, own: Tensor, *, group: Any = None, async_op: bool = False) -> Any:
    """Fill ``everybody``, [ranks * n], with the ``own`` rows, [n], of all ranks of ``group``.

    Every rank of the group has to call it. Returns torch's work to wait for with ``async_op``, else None.
    """
    gather = next(getattr(dist, name) for name in _NAMES if hasattr(dist, name))
    return gather(everybody, own, group=group, async_op=async_op)
