"""Finds the module that overflows first: the largest absolute value of each output and of its gradient."""

import math
import time
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Literal

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from amptui.base.script_signals import is_from_signal_handler
from amptui.engine.probes.gradients import MAX_NAMES, together
from amptui.engine.probes.lost_weights import LostWeights
from amptui.engine.probes.magnitude import is_measurable, largest_absolute
from amptui.engine.probes.operators import dtype_name, tensors_in
from amptui.records.findings import ModuleRange, ModulesTraced

MAX_NEAREST = 8
"""Modules that one record names as nearest to an overflow."""

_Way = Literal["forward", "backward"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Measured:
    """One output or gradient."""

    name: str
    kind: str
    way: _Way
    dtype: str
    largest: Tensor


class ModuleTrace:
    """Hooks on every module for one step: the largest absolute value of each output and of its gradient.

    A context manager, used once, for the forward and backward pass of a step. Losses and gradients stay
    bit for bit the same. If a container returns the tensor of its last child, only the child is named; a
    tensor that was modified in place counts as a new output. Every call of a module counts, also the second
    run of a checkpointed one. Gradients are as backward left them: scaled if the loss was scaled.

    Compiled models run eagerly meanwhile, because compiled code hides its modules. Not seen are calls that
    bypass ``__call__``; outputs that are sparse, nested, or outside tuples, lists and mappings; code in
    TorchScript or under transforms of ``torch.func``; and the gradients of weights, which
    :class:`~amptui.engine.probes.gradients.GradientProbe` measures.

    If weights were not finite before the step, no module is named: see
    :class:`~amptui.engine.probes.lost_weights.LostWeights`, also on ``infinite_at_start``.
    """

    def __init__(self, model: nn.Module, *, infinite_at_start: Collection[str] = ()) -> None:
        self._modules = [
            (name, module)
            for name, module in model.named_modules()
            if not isinstance(module, torch.jit.ScriptModule)  # these accept no hooks
        ]
        self._device = next((p.device for p in model.parameters()), None)
        # Lists, because append is atomic: autograd runs CUDA's backward pass in other threads.
        self._measured: list[_Measured] = []
        self._lost_weights = LostWeights(model, infinite_at_start)
        self._seconds_spent: list[float] = []
        self._versions = WeakTensorKeyDictionary()
        self._hooks = ExitStack()
        self._entered = False

    def __enter__(self) -> "ModuleTrace":
        """Register the hooks."""
        assert not self._entered, "one trace, one step"
        self._entered = True
        began = time.perf_counter()
        self._hooks.enter_context(torch.compiler.set_stance("force_eager"))
        for name, module in self._modules:
            self._hooks.callback(module.register_forward_hook(partial(self._see_output, name)).remove)
        self._lost_weights.measure_buffers()
        self._spent_since(began)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove all hooks, those on tensors too: a graph may outlive the step."""
        began = time.perf_counter()
        self._hooks.close()
        self._spent_since(began)

    def values(self) -> Tensor:
        """One float32 row on the model's device, for :meth:`traced`; call it after the backward pass."""
        if not self._measured:
            return torch.zeros(0, device=self._device)
        began = time.perf_counter()
        self._lost_weights.measure_parameters()
        largest = [each.largest for each in self._measured]
        device = self._device or largest[0].device
        # The replicas of nn.DataParallel have theirs on other GPUs.
        row = torch.stack([*together(largest, device), *self._lost_weights.values(device)])
        self._spent_since(began)
        return row

    def traced(
        self,
        row: Sequence[float],
        *,
        time: float,
        step: int,
        precision: str,
        loss_scale: float | None,
        asked: bool,
    ) -> ModulesTraced:
        """The record of a delivered ``row`` of :meth:`values`; ``time`` is Unix seconds."""
        ranges = [
            ModuleRange(name=call.name, kind=call.kind, way=call.way, dtype=call.dtype, largest=largest)
            for call, largest in zip(self._measured, row[: len(self._measured)], strict=True)
        ]
        first = _first(ranges)
        lost = self._lost_weights.lost(row[len(ranges) :], first.name) if first is not None else []
        return ModulesTraced(
            time=time,
            step=step,
            precision=precision,
            loss_scale=loss_scale,
            asked=asked,
            first=None if lost else first,
            nearest=() if lost else _nearest(ranges),
            modules=len(self._modules),
            seconds=sum(self._seconds_spent),
            lost=tuple(lost[:MAX_NAMES]),
            lost_count=len(lost),
        )

    def _see_output(self, name: str, module: nn.Module, _args: object, output: object) -> None:
        """The forward hook of the module called ``name``."""
        began = time.perf_counter()
        kind = type(module).__name__
        for tensor in tensors_in(output):
            if not is_measurable(tensor) or self._has_seen(tensor):
                continue
            self._measure(name, kind, "forward", tensor)
            if tensor.requires_grad:
                # A module's full backward hook would return a view, which later modules may not change in
                # place.
                handle = tensor.register_hook(partial(self._see_gradient, name, kind))
                self._hooks.callback(handle.remove)
        self._spent_since(began)

    def _see_gradient(self, name: str, kind: str, gradient: Tensor) -> None:
        """The hook of an output's gradient."""
        began = time.perf_counter()
        if is_measurable(gradient):
            self._measure(name, kind, "backward", gradient)
        self._spent_since(began)

    def _measure(self, name: str, kind: str, way: _Way, tensor: Tensor) -> None:
        try:
            largest = largest_absolute(tensor)
        except RuntimeError as error:
            if is_from_signal_handler(error):
                raise
            return  # out of memory, or an unusual tensor: the step must not fail
        dtype = dtype_name(tensor.dtype)
        self._measured.append(_Measured(name=name, kind=kind, way=way, dtype=dtype, largest=largest))

    def _has_seen(self, tensor: Tensor) -> bool:
        """Whether an inner module returned this tensor and nothing has modified it since."""
        version = 0 if tensor.is_inference() else tensor._version
        if self._versions.get(tensor) == version:
            return True
        self._versions[tensor] = version
        return False

    def _spent_since(self, began: float) -> None:
        self._seconds_spent.append(time.perf_counter() - began)


def _first(ranges: Sequence[ModuleRange]) -> ModuleRange | None:
    """The first non-finite output, else the first non-finite gradient."""
    bad = [found for found in ranges if not math.isfinite(found.largest)]
    return min(bad, key=lambda found: found.way == "backward", default=None)


def _nearest(ranges: Sequence[ModuleRange]) -> tuple[ModuleRange, ...]:
    """The largest finite values, one for each module and way: a module may be called in a loop."""
    finite = [found for found in ranges if math.isfinite(found.largest)]
    best: dict[tuple[str, str], ModuleRange] = {}
    for found in sorted(finite, key=lambda found: found.largest, reverse=True):
        best.setdefault((found.name, found.way), found)
    return tuple(best.values())[:MAX_NEAREST]
