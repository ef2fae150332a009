"""The learning rates that a step uses, read off its optimizer."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch.optim import Optimizer

from amptui.engine.lr_schedule import MAX_GROUPS


class LearningRates(NamedTuple):
    """The learning rates that a step used."""

    first: float | None
    """Of the first parameter group; None if it has none, or if they are on the device."""
    groups: tuple[float, ...] = ()
    """Of all groups, if they differ."""
    on_device: Sequence[Tensor] = ()
    """Of all groups, if they are on the device."""


class LearningRateReader:
    """Reads an optimizer's learning rates; that of a single group costs nothing while it does not change."""

    def __init__(self) -> None:
        self._last = LearningRates(None)

    def read(self, optimizer: Optimizer) -> LearningRates:
        """Those of now."""
        groups = optimizer.param_groups
        first = groups[0].get("lr")
        if first is self._last.first and len(groups) == 1:
            return self._last  # the usual case without a schedule
        lrs = _learning_rates(groups[:MAX_GROUPS])
        if type(first) is float and len(groups) == 1:
            self._last = lrs
        return lrs


def _learning_rates(groups: Sequence[Mapping[str, Any]]) -> LearningRates:
    """Those of an optimizer's parameter ``groups``; tensors on a GPU are left there."""
    first = groups[0].get("lr")
    if isinstance(first, Tensor) and first.is_cuda:
        # Another group's may be a number: a row holds tensors only.
        return LearningRates(None, (), [group["lr"] for group in groups if isinstance(group["lr"], Tensor)])
    if first is None:
        return LearningRates(None)
    lrs = tuple([float(group["lr"]) for group in groups])
    return LearningRates(lrs[0], lrs if lrs.count(lrs[0]) < len(lrs) else ())
