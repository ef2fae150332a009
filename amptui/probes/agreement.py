"""How well two sets of gradients of the same weights agree, layer by layer."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from amptui.checkpoint.states import host_copy
from amptui.device.accelerator import capabilities
from amptui.records.findings import LayerAgreement

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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layer:
    """A module and the trainable parameters that it owns itself."""

    name: str
    kind: str
    parameters: tuple[nn.Parameter, ...]


def layers_of(model: nn.Module) -> tuple[Layer, ...]:
    """The modules that own trainable parameters, in the model's order.

    A parameter that several modules share belongs to the first of them.
    """
    layers, owned_parameters = [], set[nn.Parameter]()
    for name, module in model.named_modules():
        own = [p for p in module.parameters(recurse=False) if p.requires_grad and p not in owned_parameters]
        if own:
            layers.append(Layer(name=name, kind=type(module).__name__, parameters=tuple(own)))
            owned_parameters.update(own)
    return tuple(layers)


def layer_sums(
    layers: Sequence[Layer], full: Gradients, half: Gradients, *, loss_scale: float
) -> list[Tensor]:
    """[_SUMS] float64 for each layer, on its device, for :func:`agreements`; empty if it has no gradient.

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


def agreements(
    layers: Sequence[Layer],
    sums: Sequence[Sequence[float]],
    full: Gradients,
    half: Gradients,
    *,
    output_dtypes: Mapping[str, str],
    in_float16: bool = False,
) -> tuple[LayerAgreement, ...]:
    """Compare each layer's gradients, AMP's ``half`` with FP32's ``full``, by its :func:`layer_sums`.

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


def on_host(tensors: Sequence[Tensor]) -> list[list[float]]:
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
