"""The X-ray: the same batches in FP32 and AMP, from the same weights and random state; applies neither."""

import copy
import math
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from amptui.checkpoint.states import host_copy
from amptui.data.batches import count_samples
from amptui.device.accelerator import capabilities, default_device, empty_cache
from amptui.device.failure import is_out_of_memory
from amptui.probes.flop_counter import FlopCounter
from amptui.probes.memory import parameters_of
from amptui.probes.probe import dtype_name, tensors_in
from amptui.probes.snapshot import Snapshot
from amptui.recipe.precision import Precision, Tf32Flags
from amptui.recipe.trained import Trained, checked_loss, loss_weights
from amptui.records.findings import FlopsCounted, LayerAgreement, XRayTaken

Gradients = Mapping[Tensor, Tensor]
"""Gradients by parameter; those that the backward pass did not reach are missing."""

_CHUNK_ELEMENTS = 1 << 20
"""Elements converted to float64 at a time, to keep temporaries small."""

_SUMS = 7
"""The numbers in a layer's row: the dot products full.full, half.half and full.half; |half - full|^2; how
many elements are not 0 in full, and how many of these are 0 in half; and full.full over the elements that
half, still scaled, holds as 0 or below float16's smallest normal number."""

_SMALLEST_NORMAL = 2.0**-14
"""Of float16."""


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
    is given; the scaler is not touched. Compiled models run eagerly: compiled code hides its modules
    and operators, and would be recompiled for other precision flags.

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
    layers = _layers_of(model)
    loss_full, full = _run_pass(trained, _copied(batches), trained.precisions["ieee"], None)
    random = snapshot.has_drawn or any(  # cuDNN draws the masks between the layers from a state of its own
        isinstance(module, nn.RNNBase) and module.training and module.dropout > 0 and module.num_layers > 1
        for module in model.modules()
    )
    snapshot.restore()
    copies = _copied(batches)
    with _output_dtypes(model) as dtypes, flops:
        loss_low, low = _run_pass(trained, copies, trained.precisions[precision], loss_scale)
    sums = _layer_sums(layers, full, low, loss_scale=loss_scale or 1.0)
    (loss_fp32,), (loss_amp,), *rows = _on_host([loss_full, loss_low, *sums])  # the only wait
    agreed = _agreements(layers, rows, full, low, output_dtypes=dtypes, in_float16=precision == "fp16")
    return XRayTaken(
        time=time.time(),
        step=step,
        precision=precision,
        loss_scale=loss_scale,
        loss_fp32=loss_fp32,
        loss_amp=loss_amp,
        layers=agreed,
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


# --------------------------------------------------------------------------------- agreement


class _Layer(NamedTuple):
    """A module and the trainable parameters that it owns itself."""

    name: str
    kind: str
    parameters: tuple[nn.Parameter, ...]


def _layers_of(model: nn.Module) -> list[_Layer]:
    """The modules that own trainable parameters, in the model's order.

    A parameter that several modules share belongs to the first of them.
    """
    layers, owned_parameters = [], set[nn.Parameter]()
    for name, module in model.named_modules():
        own = [p for p in module.parameters(recurse=False) if p.requires_grad and p not in owned_parameters]
        if own:
            layers.append(_Layer(name, type(module).__name__, tuple(own)))
            owned_parameters.update(own)
    return layers


def _layer_sums(
    layers: Sequence[_Layer], full: Gradients, half: Gradients, *, loss_scale: float
) -> list[Tensor]:
    """[_SUMS] float64 for each layer, on its device, for :func:`_agreements`; empty if it has no gradient.

    ``half`` are AMP's gradients, multiplied by ``loss_scale``. float64 keeps sums over millions of elements
    exact enough. The host waits only for sparse gradients.
    """
    rows = []
    for layer in layers:
        pairs = [_pair(full.get(p), half.get(p)) for p in layer.parameters]
        sums = [_sums(*pair, loss_scale) for pair in pairs if pair is not None]
        if not sums:
            rows.append(torch.zeros(0, dtype=torch.float64, device="cpu"))
        else:
            rows.append(torch.stack([row.to(sums[0].device, non_blocking=True) for row in sums]).sum(0))
    return rows


def _agreements(
    layers: Sequence[_Layer],
    sums: Sequence[Sequence[float]],
    full: Gradients,
    half: Gradients,
    *,
    output_dtypes: Mapping[str, str],
    in_float16: bool = False,
) -> tuple[LayerAgreement, ...]:
    """Compare each layer's gradients, AMP's ``half`` with FP32's ``full``, by its :func:`_layer_sums`.

    ``in_float16``: whether ``half`` was computed in float16, where small gradients underflow.

    The cosine is that of the angle between both gradients, the relative error |half - full| / |full|. Both
    are NaN if there is NaN or Inf in either. If AMP's gradients are all 0 and FP32's are not, the cosine is
    0. A parameter with a gradient in only one of them has zeros in the other.
    """
    compared = []
    for layer, row in zip(layers, sums, strict=True):
        cosine = relative_error = lost = norm = underflowing = None
        if row:
            full_square, half_square, product, difference_square, nonzero, zeroed, small_square = row
            norm = math.sqrt(full_square)
            if not (math.isfinite(full_square) and math.isfinite(half_square)):
                cosine = relative_error = math.nan
            elif full_square:
                cosine = product / math.sqrt(full_square * half_square) if half_square else 0.0
                cosine = min(1.0, max(-1.0, cosine))  # rounding errors; exactly 1 for equal gradients
                relative_error = math.sqrt(difference_square / full_square)
                underflowing = math.sqrt(small_square / full_square) if in_float16 else None
            lost = zeroed / nonzero if nonzero else None
        compared.append(
            LayerAgreement(
                name=layer.name,
                kind=layer.kind,
                elements=sum(p.numel() for p in layer.parameters if p in full or p in half),
                cosine=cosine,
                relative_error=relative_error,
                lost=lost,
                output_dtype=output_dtypes.get(layer.name, ""),
                norm=norm,
                underflowing=underflowing,
            )
        )
    return tuple(compared)


def _on_host(tensors: Sequence[Tensor]) -> list[list[float]]:
    """The numbers in each 0- or 1-dimensional tensor; waits once for each device."""
    rows = [tensor.detach().as_subclass(Tensor).reshape(-1) for tensor in tensors]
    copies, wait = host_copy(rows)
    wait()
    return [row.tolist() for row in copies]


def _pair(full: Tensor | None, half: Tensor | None) -> tuple[Tensor, Tensor] | None:
    """Both gradients, flat and in the same order; zeros for one that is missing."""
    present = half if full is None else full
    if present is None:
        return None
    full, half = (torch.zeros_like(present) if g is None else g for g in (full, half))
    if full.is_sparse and half.is_sparse:
        # The same batch has the same rows, unless they are chosen at random.
        full, half = full.coalesce(), half.coalesce()
        if torch.equal(full.indices(), half.indices()):
            return _flat(full.values()), _flat(half.values())
    return _flat(full), _flat(half)


def _flat(gradient: Tensor) -> Tensor:
    gradient = gradient.to_dense() if gradient.is_sparse else gradient
    return (torch.view_as_real(gradient) if gradient.is_complex() else gradient).reshape(-1)


def _sums(full: Tensor, half: Tensor, loss_scale: float) -> Tensor:
    """[_SUMS] float64 on the device, or on the host where that has no float64, over two flat gradients."""
    if not capabilities(full.device).float64:
        full, half = full.cpu(), half.cpu()
    sums = torch.zeros(_SUMS, dtype=torch.float64, device=full.device)
    for full_chunk, half_chunk in zip(full.split(_CHUNK_ELEMENTS), half.split(_CHUNK_ELEMENTS), strict=True):
        f, scaled = full_chunk.double(), half_chunk.double()
        h, small = scaled / loss_scale, f.masked_fill(scaled.abs() >= _SMALLEST_NORMAL, 0.0)
        difference, nonzero = h - f, f != 0
        counts = (nonzero.count_nonzero().double(), ((h == 0) & nonzero).count_nonzero().double())
        products = (f.dot(f), h.dot(h), f.dot(h), difference.dot(difference))
        sums += torch.stack([*products, *counts, small.dot(small)])
    return sums


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
