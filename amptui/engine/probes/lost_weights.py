"""Which parameters and buffers of a traced model held NaN or Inf before the step: no module is to blame."""

import math
from collections.abc import Collection, Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from amptui.base.script_signals import is_from_signal_handler
from amptui.engine.probes.gradients import dense_elements, together
from amptui.engine.probes.magnitude import is_measurable, largest_absolute


class LostWeights:
    """The largest absolute value of each parameter and buffer; nothing here waits for the device.

    Buffers are measured before the forward pass, which updates BatchNorm's statistics, and parameters after
    the backward pass, when those with a gradient are known. ``infinite_at_start`` names what held Inf from
    the start, as an attention mask does: its Inf is not lost. NaN always is.
    """

    def __init__(self, model: nn.Module, infinite_at_start: Collection[str] = ()) -> None:
        self._model = model
        self._infinite_at_start = infinite_at_start
        self._buffers: dict[str, Tensor] = {}
        self._parameters: dict[str, Tensor] = {}
        self._with_gradient: set[str] = set()

    def measure_buffers(self) -> None:
        """Call it before the forward pass."""
        self._buffers = _largest_of(self._model.named_buffers())

    def measure_parameters(self) -> None:
        """Call it after the backward pass, before the optimizer's step."""
        parameters = list(self._model.named_parameters())
        self._with_gradient = {name for name, parameter in parameters if parameter.grad is not None}
        self._parameters = _largest_of(parameters)

    def values(self, device: torch.device) -> list[Tensor]:
        """What :meth:`lost` needs, 0-d on ``device``."""
        return together([*self._parameters.values(), *self._buffers.values()], device)

    def lost(self, largest: Sequence[float], module: str) -> list[str]:
        """What was not finite before the step, from the delivered ``values``, parameters first.

        That is any parameter that the loss depends on, and any parameter or buffer of ``module`` itself, the
        first with a non-finite output or gradient. A parameter elsewhere without a gradient may never have
        been initialized, and BatchNorm's training mode does not read its statistics.
        """
        return [
            name
            for name, value in zip([*self._parameters, *self._buffers], largest, strict=True)
            if not math.isfinite(value) and not (math.isinf(value) and name in self._infinite_at_start)
            if name in self._with_gradient or name.rpartition(".")[0] == module
        ]


def infinite_names(model: nn.Module) -> frozenset[str]:
    """The parameters and buffers that hold Inf now; waits for the device."""
    named = [*model.named_parameters(), *model.named_buffers()]
    largest = _largest_of(named)
    if not largest:
        return frozenset()
    first, *_ = largest.values()
    values = torch.stack(together(list(largest.values()), first.device)).tolist()
    return frozenset(name for name, value in zip(largest, values, strict=True) if math.isinf(value))


@torch.no_grad()
def _largest_of(named: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    measured = ((name, _largest(tensor)) for name, tensor in named)
    return {name: largest for name, largest in measured if largest is not None}


def _largest(tensor: Tensor) -> Tensor | None:
    """What this process has of it; None for what holds no numbers that can be measured."""
    if is_lazy(tensor) or tensor.is_meta or not is_measurable(tensor):
        return None
    if dense_elements(tensor.detach()) is None:
        return None  # another process has all of it
    try:
        return largest_absolute(tensor)
    except RuntimeError as error:
        if is_from_signal_handler(error):
            raise
        return None  # an unusual tensor, or no memory: the step must not fail
