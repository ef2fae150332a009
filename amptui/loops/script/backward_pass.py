"""One call of ``backward()`` in somebody else's loop: the loss that it was called with.

``GradScaler.scale`` leaves a mark at the node of the graph that multiplies: whatever the loop does with the
product before ``backward()`` (divides it, adds several), the graph still says which scaler's it is.
"""

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler

from amptui.records.own_loop import LossForm

LOW_DTYPES = (torch.float16, torch.bfloat16)

LOW_PRECISIONS = ("fp16", "bf16")

_MARK: Any = "amptui_scaled"
"""The key in the metadata of a graph's node; torch's own anomaly mode writes there too."""

_MAX_SEARCHED_NODES = 32
"""Between a scaled loss and what is backpropagated there are few operations."""


class ScaledLoss:
    """What ``GradScaler.scale`` was called with; stands at the graph's node that multiplies."""

    __slots__ = ("loss", "product", "scaler")

    def __init__(self, scaler: GradScaler, loss: Tensor, product: Tensor) -> None:
        self.scaler = weakref.ref(scaler)
        self.loss = loss.detach().clone()
        self.product = weakref.ref(product)


class BackwardPass:
    """What is known of one, or of all those of a step; holds nothing of a graph.

    What most have in common stands in the class.
    """

    loss: Tensor | None = None
    """The sum of what is backpropagated, unscaled and without dimensions; None for the reason ``form``.

    A copy: the script may change its own in place.
    """
    form: LossForm = ""
    count = 1
    """How many backward passes it stands for."""
    scaler: GradScaler | None = None
    """The enabled one whose scale the gradients are multiplied with; None if they are not."""
    is_product = False
    """Whether something is backpropagated that no scaler made, and that is a product: it may be scaled."""
    precision = "fp32"
    """What its matrix products and convolutions ran in, ``unknown`` if that cannot be told."""
    precisions: frozenset[str] = frozenset()
    """Of several passes, if they are not the same."""
    may_be_lower = False
    """Whether autocast to a lower precision ran before it that its graph does not show."""
    is_edited = False
    """Whether the loop changed the gradients itself, other than by clipping them as torch does."""
    is_used = False
    """Whether an optimizer has made a step of it."""

    def changed(self, **fields: Any) -> "BackwardPass":
        """A copy with other values of these fields."""
        result = BackwardPass()
        vars(result).update(vars(self) | fields)
        return result

    def add_inner(self, precision: str) -> None:
        """A pass within this one ran in it: a recomputed part, or all of it if it shows nothing."""
        if self.precision == "unknown" or precision in LOW_PRECISIONS:
            self.precision = precision


def all_of(passes: Sequence[BackwardPass]) -> BackwardPass:
    """The passes of a step as one: their losses are added, as their gradients are."""
    if len(passes) == 1:
        return passes[0]
    result, precisions = BackwardPass(), frozenset(one.precision for one in passes)
    result.count, result.form = len(passes), "sum" if passes else "no backward"
    result.precision = "mixed" if len(precisions) > 1 else next(iter(precisions), "")
    result.precisions = precisions
    for one in passes:
        result.scaler = result.scaler or one.scaler
        result.may_be_lower |= one.may_be_lower
        loss = one.loss
        if loss is None:
            result.loss, result.form = None, one.form
            break
        if loss.dtype in LOW_DTYPES:
            loss = loss.float()  # sums of 16-bit numbers would be rounded
        result.loss = loss if result.loss is None else result.loss + loss.to(result.loss.device)
    return result


def mark_scaled(scaler: GradScaler, losses: object, products: object) -> None:
    """Mark each of ``products`` as the one of ``losses`` at its place times the scale of ``scaler``."""
    if isinstance(products, Tensor):
        if isinstance(losses, Tensor) and products.grad_fn is not None:
            products.grad_fn.metadata[_MARK] = ScaledLoss(scaler, losses, products)  # type: ignore[index]
    elif isinstance(products, list | tuple) and isinstance(losses, list | tuple):
        for loss, product in zip(losses, products, strict=False):
            mark_scaled(scaler, loss, product)


def read_pass(
    args: tuple[Any, ...], kwargs: dict[str, Any], *, may_be_scaled: bool
) -> tuple[BackwardPass, tuple[Tensor, ...]]:
    """The pass that ``torch.autograd.backward`` makes with these arguments, and what it backpropagates.

    ``may_be_scaled``: whether any scaler has scaled anything.
    """
    roots = args[0] if args else kwargs.get("tensors", ())
    tensors = (roots,) if isinstance(roots, Tensor) else _tensors_of(roots)
    gradients = args[1] if len(args) > 1 else kwargs.get("grad_tensors")
    factors = [gradients] if isinstance(gradients, Tensor) else list(gradients or [None] * len(tensors))
    result, marks = BackwardPass(), [scaled_loss(tensor) if may_be_scaled else None for tensor in tensors]
    scalers = {scaler for mark in marks if mark is not None and (scaler := mark.scaler()) is not None}
    if len(scalers) == 1:
        (result.scaler,) = scalers
    elif tensors:
        result.is_product = type(tensors[0].grad_fn).__name__ == "MulBackward0"
    if not tensors or any(tensor.numel() != 1 for tensor in tensors):
        result.form = "several values"
    elif len(scalers) > 1 or (scalers and None in marks):
        result.form = "scaled"  # some are scaled, or by several
    else:
        values = [_unscaled(tensor, mark) for tensor, mark in zip(tensors, marks, strict=True)]
        losses = [value for value in values if value is not None]
        if len(losses) < len(values):
            result.form = "scaled"
        else:
            result.loss = _sum(losses, factors)
    return result, tensors


def _tensors_of(roots: Any) -> tuple[Tensor, ...]:
    """The tensors among what is backpropagated; none if anything else is, such as an edge of the graph."""
    try:
        tensors = tuple(roots)
    except TypeError:
        return ()
    return tensors if all(isinstance(tensor, Tensor) for tensor in tensors) else ()


def _unscaled(tensor: Tensor, mark: ScaledLoss | None) -> Tensor | None:
    if mark is None:
        return tensor.detach()
    if mark.product() is tensor:
        return mark.loss
    scaler = mark.scaler()
    scale = None if scaler is None else scaler._scale
    # Exact: a scale is a power of two, unless somebody chose another.
    return None if scale is None else tensor.detach() / scale.to(tensor.device, non_blocking=True)


def scaled_loss(tensor: Tensor) -> ScaledLoss | None:
    """What ``GradScaler.scale`` has scaled in the graph of ``tensor``, near it; None if nothing."""
    searched, waiting = 0, [tensor.grad_fn]
    while waiting and searched < _MAX_SEARCHED_NODES:
        node: Any = waiting.pop(0)
        if node is None:
            continue
        searched += 1
        if (mark := mark_of(node)) is not None:
            return mark
        waiting += [child for child, _ in node.next_functions]
    return None


def mark_of(node: Any) -> ScaledLoss | None:
    """What ``GradScaler.scale`` has left at a node of a graph."""
    mark = None if node is None else node.metadata.get(_MARK)
    return mark if isinstance(mark, ScaledLoss) else None


def _sum(values: Sequence[Tensor], factors: Sequence[Tensor | None]) -> Tensor | None:
    """The sum of single values, each times the gradient that ``backward`` begins with; a copy."""
    total: Tensor | None = None
    for value, factor in zip(values, factors, strict=False):
        number = value.reshape(()) if factor is None else (value * factor.detach()).reshape(())
        total = number.clone() if total is None else total + number.to(total.device)
    return total
