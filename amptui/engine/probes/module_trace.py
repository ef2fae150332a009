"""Which module overflowed first: the largest absolute value of each output and of its gradient.

Tensors are looked at where they lie and when they are made; the host learns of it through the readback.
"""

import math
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Literal

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from amptui.engine.probes.gradients import dense_elements, in_memory_order
from amptui.engine.probes.operators import dtype_name, tensors_in
from amptui.findings import ModuleRange, ModulesTraced

MAX_NEAREST = 8
"""Modules named in one record as the nearest to an overflow."""

_Way = Literal["forward", "backward"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Look:
    """One tensor as it passed a hook."""

    name: str
    kind: str
    way: _Way
    dtype: str
    largest: Tensor


class ModuleTrace:
    """Hooks on every module for one step: the largest absolute value of each output and of its gradient.

    A context manager for the forward and the backward pass of one step, once; neither losses nor gradients
    change by a bit. A container that hands on its last child's tensor is not looked at: the child is named.
    What a module does in place to a tensor is an output of its own. Every call of a module counts, of
    checkpointed ones also the second run. Gradients are scaled ones where the loss was scaled.

    Compiled models run eagerly meanwhile, since compiled code hides its modules: their numbers are then those
    of eager code. Not seen are calls that bypass ``__call__``, outputs that are not in tuples, lists or
    mappings, sparse and nested ones, those within transforms of ``torch.func`` or in TorchScript, and the
    gradients of weights, which :class:`~amptui.engine.probes.gradients.GradientProbe` names.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = [
            (name, module)
            for name, module in model.named_modules()
            if not isinstance(module, torch.jit.ScriptModule)  # torch puts no hooks on those
        ]
        self._device = next((p.device for p in model.parameters()), None)
        # Lists, as their append is atomic: autograd runs CUDA's backward pass in threads of its own.
        self._looks: list[_Look] = []
        self._seconds_spent: list[float] = []
        self._versions = WeakTensorKeyDictionary()
        self._hooks = ExitStack()
        self._entered = False

    def __enter__(self) -> "ModuleTrace":
        """Put the hooks on."""
        assert not self._entered, "a trace is of one step"
        self._entered = True
        began = time.perf_counter()
        self._hooks.enter_context(torch.compiler.set_stance("force_eager"))
        for name, module in self._modules:
            handle = module.register_forward_hook(partial(self._see_output, name))
            self._hooks.callback(handle.remove)
        self._spent_since(began)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take all hooks off, those on tensors too: a graph may outlive the step."""
        began = time.perf_counter()
        self._hooks.close()
        self._spent_since(began)

    def values(self) -> Tensor:
        """One float32 row on the model's device, for :meth:`traced`; to be called after the backward pass."""
        if not self._looks:
            return torch.zeros(0, device=self._device)
        device = self._device or self._looks[0].largest.device
        # nn.DataParallel's replicas put out theirs on other GPUs.
        return torch.stack([look.largest.to(device, non_blocking=True) for look in self._looks])

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
        """What a delivered ``row`` of :meth:`values` says; ``time`` is Unix seconds."""
        ranges = [
            ModuleRange(name=look.name, kind=look.kind, way=look.way, dtype=look.dtype, largest=largest)
            for look, largest in zip(self._looks, row, strict=True)
        ]
        return ModulesTraced(
            time=time,
            step=step,
            precision=precision,
            loss_scale=loss_scale,
            asked=asked,
            first=_first(ranges),
            nearest=_nearest(ranges),
            modules=len(self._modules),
            seconds=sum(self._seconds_spent),
        )

    def _see_output(self, name: str, module: nn.Module, _args: object, output: object) -> None:
        """The forward hook of the module called ``name``."""
        began = time.perf_counter()
        kind = type(module).__name__
        for tensor in tensors_in(output):
            if not is_measurable(tensor) or self._has_seen(tensor):
                continue
            self._look(name, kind, "forward", tensor)
            if tensor.requires_grad:
                # A full backward hook on the module would make a view of its output, which no module behind
                # it may change in place.
                handle = tensor.register_hook(partial(self._see_gradient, name, kind))
                self._hooks.callback(handle.remove)
        self._spent_since(began)

    def _see_gradient(self, name: str, kind: str, gradient: Tensor) -> None:
        """The hook of a tensor that the module called ``name`` put out."""
        began = time.perf_counter()
        if is_measurable(gradient):
            self._look(name, kind, "backward", gradient)
        self._spent_since(began)

    def _look(self, name: str, kind: str, way: _Way, tensor: Tensor) -> None:
        try:
            largest = largest_absolute(tensor)
        except RuntimeError:
            return  # no memory for a look, or a tensor that allows none: no step may fail for that
        dtype = dtype_name(tensor.dtype)
        self._looks.append(_Look(name=name, kind=kind, way=way, dtype=dtype, largest=largest))

    def _has_seen(self, tensor: Tensor) -> bool:
        """Whether an inner module put out this very tensor, unchanged since."""
        version = 0 if tensor.is_inference() else tensor._version
        if self._versions.get(tensor) == version:
            return True
        self._versions[tensor] = version
        return False

    def _spent_since(self, began: float) -> None:
        self._seconds_spent.append(time.perf_counter() - began)


def is_measurable(tensor: Tensor) -> bool:
    """Whether :func:`largest_absolute` can tell anything: strided elements, floating-point or complex."""
    return (
        (tensor.is_floating_point() or tensor.is_complex())
        and tensor.layout is torch.strided
        and not tensor.is_nested
        # Within torch.func.vmap a tensor stands for many, and may not be kept.
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        and tensor.numel() > 0
    )


def largest_absolute(tensor: Tensor) -> Tensor:
    """The largest absolute value, float32 and 0-d, on the device: NaN if there is a NaN, else Inf if an Inf.

    Of complex numbers both parts count. A float64 beyond float32's range becomes Inf.
    """
    elements = dense_elements(tensor.detach())
    assert elements is not None, "only tensors with elements are measurable"
    if elements.itemsize == 1:
        elements = elements.float()  # torch compares no float8
    if elements.is_cuda:
        # One kernel. The dtype given keeps autocast from casting all elements to float32 before it.
        wide = torch.float64 if elements.dtype is torch.float64 else torch.float32
        largest: Tensor = torch.linalg.vector_norm(elements, math.inf, dtype=wide)
        return largest.float()
    least, most = torch.aminmax(in_memory_order(elements))
    return torch.maximum(-least, most).float()


def _first(ranges: Sequence[ModuleRange]) -> ModuleRange | None:
    """The first output that is not finite, else the first such gradient."""
    bad = [found for found in ranges if not math.isfinite(found.largest)]
    return min(bad, key=lambda found: found.way == "backward", default=None)


def _nearest(ranges: Sequence[ModuleRange]) -> tuple[ModuleRange, ...]:
    """The largest finite ones, each module once a way: one called in a loop leaves room for others."""
    finite = [found for found in ranges if math.isfinite(found.largest)]
    best: dict[tuple[str, str], ModuleRange] = {}
    for found in sorted(finite, key=lambda found: found.largest, reverse=True):
        best.setdefault((found.name, found.way), found)
    return tuple(best.values())[:MAX_NEAREST]
