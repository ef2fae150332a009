"""Counts the floating-point operations of one step: matrix products, convolutions and attention.

They are counted in one warm-up step for each precision and input shape.
"""

import math
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from amptui.probes.probe import dtype_name, tensors_in
from amptui.recipe.float8 import quiet_loggers
from amptui.recipe.precision import Precision, Tf32Flags
from amptui.records.findings import FlopsCounted, UnalignedProduct
from amptui.records.run import Note

MAX_PRODUCTS = 3
"""Unaligned products that one record names; all count in its sum."""

MAX_NAMES = 8
"""How many operators without a formula one record names."""

ALIGNMENT = 8
"""Tensor Cores take float16 and bfloat16 in pieces of 16 bytes. Source: NVIDIA, cuBLAS documentation, "Tensor
Core Usage": the dimension that is contiguous in memory, of both operands and the result, should be a multiple
of 16 bytes. Of a linear layer these are the features, never the rows of the batch."""

_HALF = frozenset({"float16", "bfloat16"})

_COMMUNICATION = frozenset({"c10d", "_c10d_functional", "_dtensor", "fsdp", "profiler"})
"""Namespaces that exchange tensors between ranks, or mark times."""

_MAY_MULTIPLY = re.compile(
    r"mm(_|$)|matmul|conv(_|\d|olution)|(^|_)linear(_|$)|_trilinear$|rnn|lstm_mps|quantized_(gru|lstm)|attention|"
    r"encoder_layer|fft_|cdist|pdist|euclidean|linalg_(?!vector_norm|_powsum|cross)|cholesky|svd|qr(_|$)|geqrf|"
    r"solve|householder"
)
"""What the names of those operators of torch's own have in common that compute more than some operations per
element: products, decompositions and transforms. Without a formula they make a count a lower bound."""


class FlopCounter(TorchDispatchMode):
    """Counts the operations of this thread, and of those that autograd starts for it, by torch's formulas.

    A multiplication and an addition are two operations. Only matrix products, convolutions, attention and
    recurrent layers count. Unlike in torch's ``FlopCounterMode``, no operator is decomposed on the way, and
    no module or tensor gets a hook: all run as they would have run, so a real step can be counted. An
    operator that may multiply and has no formula makes the count a lower bound. Of a DTensor only this rank's
    part counts. ``model`` gives the layers their names.

    Code from ``torch.compile`` runs eagerly meanwhile. Activations that are recomputed count each time.
    Kernels that are launched past torch are not counted; if an autograd function launches them, the count is
    a lower bound.
    """

    supports_higher_order_operators = True

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._formulas = _formulas()
        self._names: dict[tuple[int, ...], str] = {}
        """The first layer with a weight of each shape, the sizes of a matrix in either order."""
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                self._names.setdefault(_key(parameter), name.rpartition(".")[0])
        self._tf32 = Tf32Flags.current()
        self._in_threads = any(isinstance(module, nn.DataParallel) for module in model.modules())
        # Lists, as an append is atomic: with several GPUs several threads run the backward pass.
        self._products: list[tuple[str, int, bool]] = []
        self._unaligned: list[UnalignedProduct] = []
        self._uncounted: list[str] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        options = kwargs or {}
        if any(kind.__module__.startswith("torch.distributed.") for kind in types):
            # A DTensor calls the operator again with this rank's part, which is counted then.
            return NotImplemented
        if own := _own_function():
            self._uncounted.append(own)
        result = func(*args, **options)
        is_operator = isinstance(func, OpOverload)
        name = func._opname if is_operator else str(func)
        if formula := self._formulas.get(func._overloadpacket if is_operator else func):
            self._count(name, formula, args, options, result)
        elif not is_operator or not _is_free(func):
            self._uncounted.append(name)
        return result

    def record(self, *, step: int, precision: str) -> FlopsCounted:
        """The record of all that was counted."""
        flops_by_type, nchw_flops = Counter[str](), 0
        for number_type, flops, is_nchw in self._products:
            flops_by_type[number_type] += flops
            nchw_flops += flops * is_nchw
        by_layer: dict[str, UnalignedProduct] = {}
        for product in self._unaligned:  # a layer's products backward are its product forward turned around
            first = by_layer.setdefault(product.name, replace(product, flops=0))
            by_layer[product.name] = replace(first, flops=first.flops + product.flops)
        products = sorted(by_layer.values(), key=lambda product: -product.flops)
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
            unaligned_flops=sum(product.flops for product in products),
            unaligned=tuple(products[:MAX_PRODUCTS]),
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
        if any(tensor.is_meta or isinstance(tensor, FakeTensor) for tensor in tensors):
            return  # DTensor asks for the shapes of a whole result so
        if any(tensor.layout is not torch.strided for tensor in tensors):
            self._uncounted.append(name)  # formulas know shapes, not how many elements are there
            return
        operand = next((t for t in tensors if t.is_floating_point() or t.is_complex()), tensors[0])
        number_type = dtype_name(operand.dtype)
        if type(operand).__module__.startswith("torchao.float8."):
            number_type = "float8"  # its dtype is what it was made from
        elif operand.dtype is torch.float32 and operand.is_cuda:
            product, convolution, recurrence = self._tf32.words[:3]
            word = convolution if "conv" in name else recurrence if "rnn" in name else product
            number_type = "tf32" if word == "tf32" else "float32"
        if number_type.startswith("complex"):
            flops *= 4  # a product and a sum of complex numbers are four of each
        is_nchw = "conv" in name and number_type in _HALF and _is_channels_first(tensors)
        self._products.append((number_type, flops, is_nchw))
        # A product with a weight may have features that could be padded; of others nobody chooses the sizes.
        shapes = map(_key, tensors_in((args, result)))
        layer = next((self._names[shape] for shape in shapes if shape in self._names), "")
        sizes, contiguous = _sizes(name, args, result)
        padded = [
            size
            for size in dict.fromkeys(sizes)
            # No multiple of 8, and the next one less than twice as much: 10, not the 3 of RGB.
            if size in contiguous and size % ALIGNMENT and math.ceil(size / ALIGNMENT) * ALIGNMENT < 2 * size
        ]
        if layer and padded:
            unaligned = UnalignedProduct(name=layer, sizes=sizes, flops=flops, padded=tuple(padded))
            self._unaligned.append(unaligned)


@cache
def _formulas() -> Mapping[Any, Callable[..., int]]:
    """By operator, whose overloads share it: torch's formulas, and those that it lacks or has wrong."""
    with quiet_loggers("torch.utils.flop_counter"):  # without triton it warns of kernels that we count
        from torch.utils.flop_counter import flop_registry  # imports triton, where there is one
    aten = torch.ops.aten
    attention = flop_registry[aten._scaled_dot_product_flash_attention]
    attention_backward = flop_registry[aten._scaled_dot_product_flash_attention_backward]
    return flop_registry | {
        aten.addmm_: flop_registry[aten.addmm],
        aten.baddbmm_: flop_registry[aten.baddbmm],
        aten._scaled_dot_product_flash_attention_for_cpu: attention,
        aten._scaled_dot_product_flash_attention_for_cpu_backward: attention_backward,
        aten.convolution_backward: _convolution_backward,
        aten._cudnn_rnn: _recurrence,
        aten.mkldnn_rnn_layer: _recurrence,
        # The gradients of inputs and states, which the recurrence needs, and those of weights.
        aten._cudnn_rnn_backward: lambda *args, **_: 2 * _recurrence(*args),
        aten.mkldnn_rnn_layer_backward: lambda *args, **_: 2 * _recurrence(*args),
    }


def _convolution_backward(gradient: Tensor, images: Tensor, weight: Tensor, *rest: Any, **_: Any) -> int:
    """Of ``images`` [N, C, ...] by ``weight`` [K, C / groups, ...], or if transposed [C, K / groups, ...].

    The gradients of images and of weights multiply as many pairs of numbers as the forward pass, each.
    torch's formula takes the weights' gradient of a grouped convolution for that of a dense one.
    """
    transposed, output_mask = rest[4], rest[7]
    passes = sum(map(bool, output_mask[:2]))  # the third, of the bias, is a sum
    positions = math.prod((images if transposed else gradient).shape[2:])
    return passes * 2 * images.shape[0] * positions * weight.numel()


def _recurrence(inputs: Tensor, weights: Any, *rest: Any, **_: Any) -> int:
    """Each matrix is used once per position of ``inputs`` [T, N, C], or packed [sum of lengths, C].

    cuDNN has the weights of all layers in a list; oneDNN computes one layer in one direction.
    """
    matrices = (weights, rest[0]) if isinstance(weights, Tensor) else weights
    sizes = sum(matrix.numel() for matrix in matrices if matrix.dim() == 2)
    return 2 * math.prod(inputs.shape[:-1]) * sizes


@cache
def _is_free(operator: OpOverload) -> bool:
    """Whether it counts nothing: it moves elements, or computes a bounded number of operations for each.

    Operators of somebody's own are free only if tagged so.
    """
    if operator.namespace in ("aten", "prim"):
        return not _MAY_MULTIPLY.search(operator._opname)
    is_pointwise = torch.Tag.pointwise in operator.tags
    return operator.namespace in _COMMUNICATION or operator.is_view or is_pointwise


def _sizes(name: str, args: tuple[Any, ...], result: object) -> tuple[tuple[int, ...], Collection[int]]:
    """M, N and K of a matrix product, or the channels in and out of a convolution; () for others.

    And the sizes among them of the dimensions that are contiguous in memory. A grouped convolution has none:
    its groups are too narrow for Tensor Cores, or cuDNN lays them out by itself.
    """
    tensors = [arg for arg in args if isinstance(arg, Tensor)]
    if name.removesuffix("_") in ("mm", "bmm", "addmm", "baddbmm"):
        left, right = tensors[-2:]
        sizes = left.shape[-2], right.shape[-1], left.shape[-1]
        # Matrices may be transposed; what is contiguous in neither order is copied first.
        matrices = (left, right, *tensors_in(result))
        return sizes, {next((m.shape[dim] for dim in (-1, -2) if m.stride(dim) == 1), 0) for m in matrices}
    if name in ("convolution", "convolution_backward"):
        backward = name == "convolution_backward"
        weight, transposed, groups = tensors[1 + backward], args[6 + backward], args[8 + backward]
        channels = tuple(weight.shape[:2]) if transposed else tuple(weight.shape[1::-1])
        return (channels, channels) if groups == 1 else ((), ())
    return (), ()


def _key(tensor: Tensor) -> tuple[int, ...]:
    shape = tuple(tensor.shape)
    return tuple(sorted(shape)) if len(shape) == 2 else shape


def _is_channels_first(tensors: Iterable[Tensor]) -> bool:
    """Whether all images are NCHW; of other dimensions torch has no such choice for a whole model."""
    images = [tensor for tensor in tensors if tensor.dim() == 4]
    return bool(images) and not any(
        image.is_contiguous(memory_format=torch.channels_last) and image.numel() > 0 for image in images
    )


def _own_function() -> str:
    """The autograd function of somebody's own whose backward pass runs now: its kernels may be unseen."""
    node = torch._C._current_autograd_node()
    function = getattr(node, "_forward_cls", None)
    if function is None or function.__module__.startswith(("torch.", "torchao.float8.", "amptui.")):
        return ""
    return str(function.__name__)


def is_anything_compiled() -> bool:
    """Whether this process has given anything to ``torch.compile``, which would run eagerly if counted."""
    frames = sys.modules.get("torch._dynamo.eval_frame")  # torch.compile() imports it
    return any(callable(backend) for backend in getattr(frames, "cached_backends", {}).values())


# ------------------------------------------------------------------------ in which steps they are counted

MAX_COUNTED = 8
"""How many inputs are counted in one precision; most runs have two, a full step and an epoch's last. If so
many shapes come to the same operations, others will too."""


class StepInputs(NamedTuple):
    """What the number of a step's operations depends on."""

    samples: int
    batches: int
    shapes: tuple[tuple[int, ...], ...]
    """Of all tensors in the batches, in order."""

    @property
    def size(self) -> tuple[int, int]:
        """Samples and batches: what every step records."""
        return self.samples, self.batches


def step_inputs(batches: Iterable[tuple[int, object]]) -> StepInputs:
    """The inputs of a step of these batches, each with its number of samples."""
    samples, nests = zip(*batches, strict=True)
    return StepInputs(sum(samples), len(samples), shapes_in(nests))


def shapes_in(nest: object) -> tuple[tuple[int, ...], ...]:
    """The shapes of all tensors in nested tuples, lists and mappings, in order."""
    return tuple(tuple(tensor.shape) for tensor in tensors_in(nest))


class FlopSchedule:
    """Remembers the counted inputs, and whether one count can stand for all steps of its size.

    It cannot if two steps of one size and precision come to different numbers of operations, or if a step
    after the warm-up has a shape that was not counted.
    """

    def __init__(self, model: nn.Module, emit: Callable[[FlopsCounted | Note], object]) -> None:
        self._model = model
        self._emit = emit
        # torch.compile hides the operators of what it runs, and takes its time once.
        self._counts = not any(
            m._compiled_call_impl is not None or hasattr(m, "_orig_mod") for m in model.modules()
        )
        self._flops: dict[tuple[str, StepInputs], int] = {}
        self._newest: FlopsCounted | None = None
        self._vary = False
        self._no_float8_reported = False

    def is_due(self, precision: Precision, inputs: StepInputs) -> bool:
        """Whether to count a step, which must be a warm-up step: counting makes it slower."""
        if self._vary or not self._counts:
            return False
        counted = [earlier for name, earlier in self._flops if name == precision.name]
        return inputs not in counted and len(counted) < MAX_COUNTED

    @contextmanager
    def around(self, step: int, precision: Precision, inputs: StepInputs | None) -> Iterator[None]:
        """The context of a step's passes, which are counted if that is due; ``inputs``: of a warm-up step."""
        if inputs is None or not self.is_due(precision, inputs):
            yield
            return
        with FlopCounter(self._model) as counter:
            yield
        self.add(counter.record(step=step, precision=precision.name), inputs)

    def add(self, count: FlopsCounted, inputs: StepInputs) -> None:
        """Emit the count of a step; and say once if it was to run in FP8, and nothing was multiplied so."""
        others = {
            flops
            for (name, earlier), flops in self._flops.items()
            if name == count.precision and earlier.size == inputs.size
        }
        self._flops[count.precision, inputs] = count.flops
        self._vary = self._vary or bool(others - {count.flops})
        self._newest = replace(count, samples=inputs.samples, shapes_vary=self._vary)
        self._emit(self._newest)
        is_float8 = count.precision != "fp8" or "float8" in count.flops_by_type
        if not is_float8 and not self._no_float8_reported:
            self._no_float8_reported = True
            text = (
                f"no float8 layer ran in step {count.step:,}: are Linear layers called, and within autocast?"
            )
            self._emit(Note(time=time.time(), severity="warning", text=text))

    def check(self, step: int, inputs: StepInputs) -> None:
        """Check the inputs of a step that is not counted."""
        shapes = {earlier.shapes for _, earlier in self._flops if earlier.size == inputs.size}
        if self._vary or self._newest is None or not 0 < len(shapes) < MAX_COUNTED or inputs.shapes in shapes:
            return
        self._vary = True
        self._emit(replace(self._newest, time=time.time(), step=step, shapes_vary=True))
