"""One call of ``backward()`` in somebody else's loop: the loss that it was called with.

``GradScaler.scale`` leaves a mark at the node of the graph that multiplies: whatever the loop does with the
product before ``backward()`` (divides it, adds several), the graph still says which scaler's it is.
"""

import weakref
from collections.abc import Sequence
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler

from amptui.records.own_loop import LossForm

LOW_DTYPES = (torch.float16, torch.bfloat16)

_MARK: Any = "amptui_scaled"
"""The key in the metadata of a graph's node; torch's own anomaly mode writes there too."""

_MAX_SEARCHED_NODES = 32
"""Between a scaled loss and what is backpropagated there are few operations."""

pass_numbers = count(1)
"""The number of the next pass: a later one is greater."""


class ScaledLoss:
    """What ``GradScaler.scale`` was called with; stands at the graph's node that multiplies."""

    __slots__ = ("loss", "product", "scaler")

    def __init__(self, scaler: GradScaler, loss: Tensor, product: Tensor) -> None:
        self.scaler = weakref.ref(scaler)
        self.loss = loss.detach().clone()
        self.product = weakref.ref(product)


class BackwardPass:
    """One call of ``torch.autograd.backward``, from its beginning on.

    What is the same for most passes stands in the class.
    """

    loss: Tensor | None = None
    """The sum of its tensors, unscaled, without a graph and dimensions; None for the reason ``absence``.

    A copy: the script may change its own in place.
    """
    scaler: GradScaler | None = None
    """The enabled one whose scale the gradients are multiplied with; None if they are not."""
    dtype: torch.dtype | None = torch.float32
    """What its matrix products and convolutions ran in; None if that cannot be told."""
    may_be_lower = False
    """Whether autocast to a lower precision ran before it that its graph does not show."""

    def __init__(self, tensors: Sequence[Tensor], absence: LossForm) -> None:
        self.tensors = tensors
        """What is backpropagated."""
        self.absence: LossForm = absence
        self.number = next(pass_numbers)
        self.root: Any = tensors[0].grad_fn if tensors else None
        """The graph's node of the first tensor; None without any."""

    def add_inner(self, dtype: torch.dtype | None) -> None:
        """A pass within this one ran in ``dtype``: a recomputed part, or all of it if it shows nothing."""
        if self.dtype is None or dtype in LOW_DTYPES:
            self.dtype = dtype


def mark_scaled(scaler: GradScaler, losses: object, products: object) -> None:
    """Mark each of ``products`` as the one of ``losses`` at its place times the scale of ``scaler``."""
    if isinstance(products, Tensor):
        if isinstance(losses, Tensor) and products.grad_fn is not None:
            _metadata(products.grad_fn)[_MARK] = ScaledLoss(scaler, losses, products)
    elif isinstance(products, list | tuple) and isinstance(losses, list | tuple):
        for loss, product in zip(losses, products, strict=False):
            mark_scaled(scaler, loss, product)


def read_pass(args: tuple[Any, ...], kwargs: dict[str, Any], *, may_be_scaled: bool) -> BackwardPass:
    """The pass that a call of ``torch.autograd.backward`` with these arguments makes.

    ``may_be_scaled``: whether any scaler has scaled anything since the last one.
    """
    roots = args[0] if args else kwargs.get("tensors", ())
    if isinstance(roots, Tensor) and len(args) > 1 and args[1] is None:  # as Tensor.backward calls it
        dimensions = roots.dim()
        if not dimensions or roots.numel() == 1:
            result = BackwardPass((roots,), "")
            if not may_be_scaled or not _read_mark(roots, result):
                result.loss = roots.detach().clone()
                if dimensions:
                    result.loss = result.loss.reshape(())
            return result
    tensors = (roots,) if isinstance(roots, Tensor) else _tensors_of(roots)
    gradients = args[1] if len(args) > 1 else kwargs.get("grad_tensors")
    factors = [gradients] if isinstance(gradients, Tensor) else list(gradients or [None] * len(tensors))
    if not tensors or any(tensor.numel() != 1 for tensor in tensors):
        result = BackwardPass(tensors, "several values")
    else:
        result = BackwardPass(tensors, "")
    if may_be_scaled:
        _read_scaled(result, factors)
    elif not result.absence:
        result.loss = _sum([tensor.detach() for tensor in tensors], factors)
    return result


def _read_mark(tensor: Tensor, result: BackwardPass) -> bool:
    """Read the loss of one tensor with one value, if a scaler has scaled it; returns whether one has."""
    mark = scaled_loss(tensor)
    if mark is None:
        return False
    result.scaler = mark.scaler()
    loss = _unscaled(tensor, mark)
    if loss is None:
        result.absence = "scaled"
    else:
        result.loss = loss.reshape(()) if loss.dim() else loss
    return True


def _tensors_of(roots: Any) -> tuple[Tensor, ...]:
    """The tensors among what is backpropagated; none if anything else is, such as an edge of the graph."""
    try:
        tensors = tuple(roots)
    except TypeError:
        return ()
    return tensors if all(isinstance(tensor, Tensor) for tensor in tensors) else ()


def _read_scaled(backward: BackwardPass, factors: Sequence[Tensor | None]) -> None:
    """The loss of a pass that a scaler may have scaled."""
    marks = [scaled_loss(tensor) for tensor in backward.tensors]
    scalers = {id(mark.scaler()): mark.scaler() for mark in marks if mark is not None}
    if len(scalers) == 1:
        backward.scaler = next(iter(scalers.values()))
    if backward.absence:
        return
    if (any(mark is None for mark in marks) and scalers) or len(scalers) > 1:
        backward.absence = "scaled"  # some are scaled, or by several
        return
    unscaled = [_unscaled(tensor, mark) for tensor, mark in zip(backward.tensors, marks, strict=True)]
    losses = [loss for loss in unscaled if loss is not None]
    if len(losses) < len(unscaled):
        backward.absence = "scaled"
    else:
        backward.loss = _sum(losses, factors)


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
    node = tensor.grad_fn
    if node is None:
        return None
    mark: ScaledLoss | None = _metadata(node).get(_MARK)
    if mark is not None:
        return mark
    searched, waiting = 0, [node]
    while waiting and searched < _MAX_SEARCHED_NODES:
        node = waiting.pop(0)
        searched += 1
        mark = _metadata(node).get(_MARK)
        if isinstance(mark, ScaledLoss):
            return mark
        waiting += [child for child, _ in node.next_functions if child is not None]
    return None


def _metadata(node: Any) -> dict[Any, Any]:
    """A place that a node of the graph has for its users; torch's types call it a method."""
    return node.metadata  # type: ignore[no-any-return]


def _sum(values: Sequence[Tensor], factors: Sequence[Tensor | None]) -> Tensor | None:
    """The sum of single values, each times the gradient that ``backward`` begins with; a copy."""
    total: Tensor | None = None
    for value, factor in zip(values, factors, strict=False):
        number = value.reshape(()) if factor is None else (value * factor.detach()).reshape(())
        total = number.clone() if total is None else total + number.to(total.device)
    return total
