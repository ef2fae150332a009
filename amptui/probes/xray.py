"""The X-ray: the same batches in FP32 and AMP, from the same weights and random state; applies neither."""

import copy
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from amptui.data.batches import count_samples
from amptui.device.accelerator import default_device, empty_cache
from amptui.device.failure import is_out_of_memory
from amptui.probes.agreement import Gradients, agreements, layer_sums, layers_of, on_host
from amptui.probes.flop_counter import FlopCounter
from amptui.probes.memory import parameters_of
from amptui.probes.probe import dtype_name, tensors_in
from amptui.probes.snapshot import Snapshot
from amptui.recipe.precision import Precision, Tf32Flags
from amptui.recipe.trained import Trained, checked_loss, loss_weights
from amptui.records.findings import FlopsCounted, OperatorCount, XRayTaken

_UNCOUNTED = frozenset(
    {"_unsafe_view", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
)
"""A view whose schema does not say so, and allocations that nothing is written to."""

_PRODUCTS = frozenset({"mm", "addmm", "_scaled_mm"})
"""What multiplies float8 numbers, on hardware and emulated."""


def take_xray(
    trained: Trained,
    batches: Sequence[Any],
    emit: Callable[[FlopsCounted], object] = lambda _: None,
    *,
    step: int,
    precision: str,
    loss_scale: float | None,
) -> XRayTaken:
    """Run forward and backward of a step in ``ieee`` and then in ``precision``, one of ``LOW_PRECISIONS``.

    ``batches`` are those that the step accumulates, one or several.
    ``emit`` takes the operations of the last pass: those of a compiled model are not counted in its steps.

    Call it between two steps, in the thread that trains. The AMP loss is multiplied by ``loss_scale`` if it
    is given; the scaler is not touched. Compiled models run eagerly: compiled code hides its modules and
    operators, and would be recompiled for other precision flags.

    Afterwards weights, optimizer, scaler, gradients, buffers, random generators, flags and modes are bit for
    bit as before, even if something raised. What a model or a loss keeps in plain Python objects is not
    restored, except the experiment's attributes. Errors of the loss pass through. Memory can run out earlier
    than in a step: the gradients of both passes exist beside those of the last step.
    """
    began = time.perf_counter()
    flops = FlopCounter(trained.model)
    try:
        with _restoring(trained) as snapshot:
            xray = _all_passes(trained, batches, snapshot, flops, step, precision, loss_scale)
    except RuntimeError as error:
        if is_out_of_memory(error):  # free what the interrupted frames hold, and empty the allocator's cache
            traceback.clear_frames(error.__traceback__)
            empty_cache(default_device())
        raise
    emit(flops.record(step=step, precision=precision))
    return replace(xray, seconds=time.perf_counter() - began)


def _all_passes(
    trained: Trained,
    batches: Sequence[Any],
    snapshot: Snapshot,
    flops: FlopCounter,
    step: int,
    precision: str,
    loss_scale: float | None,
) -> XRayTaken:
    """The X-ray without its seconds."""
    model = trained.model
    trained.precisions["ieee"].enter()  # a layer in float8 is a Linear by name, too
    layers = layers_of(model)
    loss_full, full = _run_pass(trained, _copied(batches), trained.precisions["ieee"], None)
    random = snapshot.has_drawn or any(  # cuDNN draws the masks between the layers from a state of its own
        isinstance(module, nn.RNNBase) and module.training and module.dropout > 0 and module.num_layers > 1
        for module in model.modules()
    )
    snapshot.restore()
    copies, counter = _copied(batches), OperatorCounter()
    with _output_dtypes(model) as dtypes, counter, flops:
        loss_low, low = _run_pass(trained, copies, trained.precisions[precision], loss_scale)
    # This thread's hooks and counters do not see replicas.
    in_threads = any(isinstance(m, nn.DataParallel) and len(m.device_ids) > 1 for m in model.modules())
    sums = layer_sums(layers, full, low, loss_scale=loss_scale or 1.0)
    (loss_fp32,), (loss_amp,), *rows = on_host([loss_full, loss_low, *sums])  # the only wait
    agreed = agreements(layers, rows, full, low, output_dtypes=dtypes, in_float16=precision == "fp16")
    return XRayTaken(
        time=time.time(),
        step=step,
        precision=precision,
        loss_scale=loss_scale,
        loss_fp32=loss_fp32,
        loss_amp=loss_amp,
        layers=agreed,
        operators=() if in_threads else counter.counts(),
        output_dtypes=dtypes,
        random=random,
        seconds=0.0,
    )


# ---------------------------------------------------------------------------------- one pass


def _run_pass(
    trained: Trained, batches: Sequence[Any], precision: Precision, loss_scale: float | None
) -> tuple[Tensor, Gradients]:
    """Run forward and backward like a step of ``precision``; moves the gradients off the parameters.

    Returns the loss, and the gradients multiplied by the loss scale.
    """
    experiment = copy.copy(trained.experiment)  # its loss may change its attributes
    precision.enter()
    losses = []
    for batch, weigh in zip(batches, loss_weights([count_samples(batch) for batch in batches]), strict=True):
        with precision.forward_context:
            loss, _ = checked_loss(experiment, experiment.loss(trained.model, batch))
        loss = weigh(loss)
        (loss if loss_scale is None else loss.float() * loss_scale).backward()
        losses.append(loss.detach())
    gradients: dict[Tensor, Tensor] = {}
    for parameter in parameters_of(_modules(trained), trained.optimizer):
        if parameter.grad is not None:
            gradients[parameter], parameter.grad = parameter.grad, None
    total = losses[0] if len(losses) == 1 else torch.stack(losses).sum()
    return total, gradients


def _copied(batches: Sequence[Any]) -> list[Any]:
    """Copies that a loss may write into; an object that occurs twice does so in the copies."""
    # Alone, deepcopy would copy the whole storage behind a view: a data set maybe.
    memo: dict[int, Any] = {
        id(tensor): tensor.detach().clone().requires_grad_(tensor.requires_grad)
        for tensor in tensors_in(list(batches))
    }
    return copy.deepcopy(list(batches), memo)


@contextmanager
def _output_dtypes(model: nn.Module) -> Iterator[dict[str, str]]:
    """Collect the dtype of each module's output: of the first tensor in its last call."""
    dtypes: dict[str, str] = {}

    def note(name: str, _module: nn.Module, _args: object, output: object) -> None:
        first = next(tensors_in(output), None)
        if first is not None:
            dtypes[name] = dtype_name(first.dtype)

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            hooks.callback(module.register_forward_hook(partial(note, name)).remove)
        yield dtypes


# --------------------------------------------------------------------------------- operators


class OperatorCounter(TorchDispatchMode):
    """Counts the operators that run below autograd and autocast, casts (``_to_copy``) included.

    An operator's dtype is that of its first floating-point output, else of its first floating-point input,
    else of its first tensor. So a cast counts as its result, a sum of float16 that accumulates in float32 as
    float32, batch norm of float16 with float32 statistics as float16, and a comparison as its inputs. A
    product of float8 numbers is float8. Views, bare allocations and operators without tensors do not count.

    Backward passes count too: autograd runs CUDA's in a thread of its own, but passes the modes of the
    calling thread on (``at::ThreadLocalState``). The threads of ``nn.DataParallel`` do not get them.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # A list, because append is atomic: with several GPUs several threads run the backward pass.
        self._ran: list[tuple[str, str]] = []

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if isinstance(func, OpOverload) and not func.is_view and func._opname not in _UNCOUNTED:
            dtype = _dtype(result, (args, kwargs))
            if dtype is not None:
                name = func._opname if func.namespace == "aten" else f"{func.namespace}.{func._opname}"
                # A tensor of torchao's has the dtype that its float8 numbers were rounded from.
                is_float8 = func._opname in _PRODUCTS and any(
                    dtype_name(one.dtype).startswith("float8") or type(one).__name__ == "Float8TrainingTensor"
                    for one in tensors_in((args, kwargs))
                )
                self._ran.append((name, "float8" if is_float8 else dtype_name(dtype)))
        return result

    def counts(self) -> tuple[OperatorCount, ...]:
        """The most frequent first."""
        frequencies = sorted(Counter(self._ran).items(), key=lambda item: (-item[1], item[0]))
        return tuple(OperatorCount(name=name, dtype=dtype, count=n) for (name, dtype), n in frequencies)


def _dtype(outputs: object, inputs: object) -> torch.dtype | None:
    """The dtype that an operator counts under; None if it has no tensor."""
    dtypes = [tensor.dtype for nest in (outputs, inputs) for tensor in tensors_in(nest)]
    floating = (dtype for dtype in dtypes if dtype.is_floating_point or dtype.is_complex)
    return next(floating, dtypes[0] if dtypes else None)


# --------------------------------------------------------------------------------- restoring


@contextmanager
def _restoring(trained: Trained) -> Iterator[Snapshot]:
    """Set the gradients aside; afterwards restore everything that the passes may have changed."""
    everything, flags = _modules(trained), Tf32Flags.current()
    training = [(module, module.training) for module in everything.modules()]
    parameters = [(p, p.grad, p.requires_grad) for p in parameters_of(everything, trained.optimizer)]
    snapshot = Snapshot(everything, trained.device)
    linears = trained.precisions["ieee"].linears
    try:
        for parameter, _, _ in parameters:
            parameter.grad = None
        with torch.compiler.set_stance("force_eager"), linears.kept() if linears else nullcontext():
            yield snapshot
    finally:
        for parameter, gradient, requires_grad in parameters:
            parameter.requires_grad_(requires_grad).grad = gradient
        for module, was_training in training:
            module.training = was_training
        flags.apply()
        snapshot.restore()


def _modules(trained: Trained) -> nn.Module:
    """The model and the modules in the experiment's attributes: a teacher, a loss with weights."""
    modules = (value for value in vars(trained.experiment).values() if isinstance(value, nn.Module))
    return nn.ModuleList([trained.model, *modules])
