"""Counts the floating-point operations of one step: matrix products, convolutions and attention."""

import logging
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from amptui.engine.precision import Tf32Flags
from amptui.engine.probes.operators import dtype_name, tensors_in
from amptui.findings import FlopsCounted, UnalignedProduct

MAX_PRODUCTS = 3
"""Products named in one record; the others are summed."""

MAX_NAMES = 8
"""Operators without a formula that are named: one of them makes the count a lower bound."""

_OF_TORCH = ("aten", "prim", "prims", "c10d", "_c10d_functional", "fsdp", "profiler")

ALIGNMENT = 8
"""Tensor Cores take float16 and bfloat16 in pieces of 16 bytes. Source: NVIDIA, Matrix Multiplication
Background User's Guide, "Tensor Core Requirements": most efficient where M, N and K are multiples of 8."""

_HALF = frozenset({"float16", "bfloat16"})

_NO_FORMULA = frozenset(
    {"mv", "dot", "vdot", "addmv", "addr", "addbmm", "linear", "matmul", "einsum", "_cudnn_rnn"}
    | {"_cudnn_rnn_backward", "mkldnn_rnn_layer", "mkldnn_rnn_layer_backward", "_trilinear", "_grouped_mm"}
    | {"_scaled_grouped_mm", "_scaled_mm_v2", "_int_mm", "_fft_c2c", "_fft_r2c", "_fft_c2r"}
)
"""Operators that multiply and that torch's counter has no formula for, where they are not made of others."""


class FlopCounter(TorchDispatchMode):
    """Counts what runs in this thread, and in those that autograd starts for it, with torch's own formulas.

    A multiplication and an addition count as two operations, and only matrix products, convolutions and
    attention count at all, as in ``torch.utils.flop_counter``. That one takes some operators apart on the
    way: here each runs as it would have run, so a real step can be counted. ``model`` names the layers.

    Code from ``torch.compile`` runs eagerly meanwhile. Recomputed activations count each time. A kernel that
    is started past torch is noticed if an autograd function starts it.
    """

    supports_higher_order_operators = True

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.paused = False
        """Whether what runs now does not belong to the step."""
        self._formulas = _formulas_of_torch()
        self._names = _names_by_shape(model)
        self._tf32 = Tf32Flags.current()
        self._in_threads = any(isinstance(module, nn.DataParallel) for module in model.modules())
        # Lists, as an append is atomic: with several GPUs several threads run the backward pass.
        self._counted: list[tuple[str, int, bool]] = []
        self._unaligned: list[tuple[str, tuple[int, ...], int]] = []
        self._uncounted: list[str] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        if self.paused:
            return func(*args, **given)
        if own := _own_function():
            self._uncounted.append(own)
        result = func(*args, **given)
        is_operator = isinstance(func, OpOverload)
        name = func._opname if is_operator else str(getattr(func, "_name", func))
        formula = self._formulas.get(func._overloadpacket if is_operator else func)
        if formula is not None:
            self._count(name, formula, args, given, result)
        elif not is_operator or func.namespace not in _OF_TORCH or name in _NO_FORMULA:
            self._uncounted.append(name)
        return result

    def counted(self, *, step: int, precision: str) -> FlopsCounted:
        """All of it."""
        flops_by_type, nchw_flops = Counter[str](), 0
        for number_type, flops, is_nchw in self._counted:
            flops_by_type[number_type] += flops
            nchw_flops += flops * is_nchw
        products, sizes_of = Counter[object](), dict[object, tuple[str, tuple[int, ...]]]()
        for name, sizes, flops in self._unaligned:
            key = name or sizes  # a layer's products backward are its product forward turned around
            products[key] += flops
            sizes_of.setdefault(key, (name, sizes))
        uncounted = dict.fromkeys(list(dict.fromkeys(self._uncounted))[:MAX_NAMES])
        if self._in_threads:
            uncounted["DataParallel"] = None  # of its threads nothing is seen
        return FlopsCounted(
            time=time.time(),
            step=step,
            precision=precision,
            flops=sum(flops_by_type.values()),
            flops_by_type=dict(flops_by_type),
            nchw_flops=nchw_flops,
            unaligned_flops=sum(products.values()),
            unaligned=tuple(
                UnalignedProduct(name=sizes_of[key][0], sizes=sizes_of[key][1], flops=flops)
                for key, flops in products.most_common(MAX_PRODUCTS)
            ),
            uncounted=tuple(uncounted),
        )

    def _count(
        self,
        name: str,
        formula: Callable[..., int],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: object,
    ) -> None:
        try:
            flops = int(formula(*args, **kwargs, out_val=result))
        except Exception:  # noqa: BLE001 - a form of the operator that the formula does not know
            self._uncounted.append(name)
            return
        tensors = list(tensors_in((args, result)))
        number_type = self._number_type(name, tensors)
        convolves = "conv" in name
        is_nchw = convolves and number_type in _HALF and not any(map(_is_channels_last, tensors))
        self._counted.append((number_type, flops, is_nchw))
        sizes = _sizes(name, args)
        if any(size % ALIGNMENT for size in sizes):
            layer = next((self._names[shape] for t in tensors if (shape := _key(t)) in self._names), "")
            self._unaligned.append((layer, sizes, flops))

    def _number_type(self, name: str, tensors: Sequence[Tensor]) -> str:
        """What the operands are multiplied as: their dtype, or ``tf32``."""
        operand = next((t for t in tensors if t.is_floating_point() or t.is_complex()), tensors[0])
        if operand.dtype is not torch.float32 or not operand.is_cuda:
            return dtype_name(operand.dtype)
        product, convolution = self._tf32.words[:2]
        return "tf32" if (convolution if "conv" in name else product) == "tf32" else "float32"


def _sizes(name: str, args: tuple[Any, ...]) -> tuple[int, ...]:
    """M, N and K of a matrix product; the channels in and out of a convolution; () for others."""
    shapes = [tuple(arg.shape) for arg in args if isinstance(arg, Tensor)]
    if name in ("mm", "bmm", "addmm", "baddbmm"):
        left, right = shapes[-2:]
        return left[-2], right[-1], left[-1]
    if name == "convolution_backward":
        return shapes[2][1], shapes[2][0]
    if "conv" in name:
        return shapes[1][1], shapes[1][0]
    return ()


def _names_by_shape(model: nn.Module) -> Mapping[tuple[int, ...], str]:
    """The first layer with a weight of each shape, the sizes of a matrix in either order."""
    names: dict[tuple[int, ...], str] = {}
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            names.setdefault(_key(parameter), name.rpartition(".")[0])
    return names


def _key(tensor: Tensor) -> tuple[int, ...]:
    shape = tuple(tensor.shape)
    return tuple(sorted(shape)) if len(shape) == 2 else shape


def _is_channels_last(tensor: Tensor) -> bool:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    wanted = formats.get(tensor.dim())
    return wanted is not None and tensor.is_contiguous(memory_format=wanted) and math.prod(tensor.shape) > 0


def _formulas_of_torch() -> Mapping[Any, Callable[..., int]]:
    log = logging.getLogger("torch.utils.flop_counter")
    level = log.level
    log.setLevel(logging.ERROR)  # where there is no triton it warns of kernels that we look for ourselves
    try:
        from torch.utils.flop_counter import flop_registry  # imports triton, where there is one
    finally:
        log.setLevel(level)
    return flop_registry


def _own_function() -> str:
    """The autograd function of somebody's own whose backward pass runs now: its kernels may be unseen."""
    node = torch._C._current_autograd_node()
    function = getattr(node, "_forward_cls", None)
    if function is None or function.__module__.startswith(("torch.", "amptui.engine.")):
        return ""
    return str(function.__name__)


def is_compiled(model: nn.Module, *, inside: bool = False) -> bool:
    """Whether ``torch.compile`` runs a part of it: that hides its operators, and takes its time once.

    ``inside``: a part other than the whole.
    """
    modules = list(model.modules())[inside:]
    return any(m._compiled_call_impl is not None or hasattr(m, "_orig_mod") for m in modules)


def is_anything_compiled() -> bool:
    """Whether this process has given anything to ``torch.compile``, which would run eagerly if counted."""
    frames = sys.modules.get("torch._dynamo.eval_frame")  # torch.compile() imports it
    return any(callable(backend) for backend in getattr(frames, "cached_backends", {}).values())
