"""Detects code that works in FP32 but fails under autocast, before a user switches."""

from types import TracebackType
from typing import Any

import torch
from torch import Tensor

_NAME = "binary_cross_entropy"

_SENTENCE = (
    "binary_cross_entropy (BCELoss) is unsafe under CUDA autocast: it raises an error there; "
    "use binary_cross_entropy_with_logits (BCEWithLogitsLoss) and remove the sigmoid"
)


class HazardWatch:
    """Notices ``binary_cross_entropy``, the one function that CUDA's autocast refuses.

    A context manager for one step; ``found`` has a sentence for each hazard. Calls within
    ``torch.autocast(enabled=False)`` are safe and do not count; those in TorchScript are not seen. Results do
    not change.

    Meanwhile the function in which ``functional.binary_cross_entropy`` and ``nn.BCELoss`` end is replaced,
    for all threads. A TorchFunctionMode would see as much, but torch.compile keeps code apart by the modes it
    was compiled under: compiled models would be compiled again for the second step.
    """

    def __init__(self) -> None:
        self.found: tuple[str, ...] = ()

    def __enter__(self) -> "HazardWatch":
        """Start watching."""
        self._original = torch._C._nn.binary_cross_entropy
        setattr(torch._C._nn, _NAME, self._binary_cross_entropy)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Restore torch's own function."""
        setattr(torch._C._nn, _NAME, self._original)

    def _binary_cross_entropy(self, *args: Any, **options: Any) -> Tensor:
        taken = next(value for value in (*args, *options.values()) if isinstance(value, Tensor))
        if not _is_autocast_switched_off(taken.device.type):
            self.found = (_SENTENCE,)
        return self._original(*args, **options)


def _is_autocast_switched_off(device_type: str) -> bool:
    """Whether this runs in an ``autocast(enabled=False)``, also where no autocast was on around it."""
    # torch tells the nesting only to those who change it.
    nesting = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return nesting > 0 and not torch.is_autocast_enabled(device_type)
