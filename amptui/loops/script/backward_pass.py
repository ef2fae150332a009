"""One call of ``backward()`` in somebody else's loop: its loss, and the precision that it was computed in.

``GradScaler.scale`` leaves a mark at the node of the graph that multiplies: whatever the loop does with the
product before ``backward()`` (divides it, adds several), the graph still says which scaler's it is.

Which contexts of autocast were entered does not tell the precision: one may surround the whole loop, belong
to an evaluation, or be forgotten. Each node of the graph has the dtype of its operation's result: those of
matrix products and convolutions are what mixed precision is about.
"""

import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import _is_any_autocast_enabled
from torch.amp.grad_scaler import GradScaler
from torch.autograd.function import BackwardCFunction

from amptui.records.own_loop import LossForm
from amptui.records.run import AMP_PRECISIONS

LOW_DTYPES = (torch.float16, torch.bfloat16)

WEIGHTS_WORDS = {torch.float16: "fp16 weights", torch.bfloat16: "bf16 weights", torch.float64: "float64"}
"""The precision of a model whose weights have another dtype than float32, whatever autocast does."""

_COMPUTED_WORDS = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}

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

    loss: Tensor | float | None = None
    """The sum of what is backpropagated, unscaled and without dimensions; None for the reason ``form``.

    A copy: the script may change its own in place. A float is one in float32 that was on the host.
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
    is_plain = False
    """Whether its loss and its precision are known, and nothing else is worth telling."""

    def changed(self, **fields: Any) -> "BackwardPass":
        """A copy with other values of these fields, which is not plain."""
        result = BackwardPass()
        vars(result).update(vars(self) | fields, is_plain=False)
        return result

    def add_inner(self, precision: str) -> None:
        """A pass within this one ran in it: a recomputed part, or all of it if it shows nothing."""
        if self.precision == "unknown" or precision in AMP_PRECISIONS:
            self.precision, self.is_plain = precision, False


def all_of(passes: Sequence[BackwardPass]) -> BackwardPass:
    """The passes of a step as one: their losses are added, as their gradients are."""
    if len(passes) == 1:
        return passes[0]
    result, precisions = BackwardPass(), frozenset(one.precision for one in passes)
    result.count, result.form = len(passes), "sum" if passes else "no backward"
    result.precision = "mixed" if len(precisions) > 1 else next(iter(precisions), "")
    result.precisions = precisions
    total: Tensor | None = None
    for one in passes:
        result.scaler = result.scaler or one.scaler
        result.may_be_lower |= one.may_be_lower
        loss = one.loss
        if loss is None:
            result.form = one.form
            break
        if isinstance(loss, float):
            loss = torch.tensor(loss, dtype=torch.float32, device="cpu")
        if loss.dtype in LOW_DTYPES:
            loss = loss.float()  # sums of 16-bit numbers would be rounded
        total = loss if total is None else total + loss.to(total.device)
    else:
        result.loss = total
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


_PRODUCTS = (
    *("AddmmBackward", "MmBackward", "BmmBackward", "BaddbmmBackward", "AddbmmBackward", "LinearBackward"),
    *("MvBackward", "AddmvBackward", "DotBackward", "ConvolutionBackward", "ConvolutionOverrideableBackward"),
    *("ScaledDotProduct", "CudnnRnnBackward", "MkldnnRnnLayerBackward", "MiopenRnnBackward"),
    *("ThnnFusedLstmCellBackward", "ThnnFusedGruCellBackward", "MkldnnConvolutionBackward"),
)
"""How the names of nodes begin that autocast runs in a lower precision."""

_MAX_NODES = 20_000
"""Of one graph; what lies beyond is not known."""

_NEAR_NODES = 8

_FLOAT32 = torch.float32

_MAX_SHAPES = 64
"""Graphs that are remembered. Of a loop with more, each of another size, they stand for all."""

_PASSES_AFTER_AUTOCAST = 8
"""After a context of autocast was entered, so many graphs are searched whatever they look like: one forward
pass may run before another one's backward pass."""

_PLAIN, _PRODUCT, _OPAQUE = range(3)


class PassReader:
    """Reads what ``backward()`` is called with, and from few nodes of its graph in which dtype it ran."""

    def __init__(self) -> None:
        self.has_scaled = False
        """Whether any scaler has scaled anything."""
        self._kinds: dict[type, int] = {}
        self._precisions: dict[tuple[type, int, torch.dtype], str] = {}
        """What the graphs ran in that have been searched, by how each began, its number of nodes, and the
        dtype of the loss: casts are nodes, too. Emptied as autocast is entered."""
        self._newest_node = 0
        self._looks = _PASSES_AFTER_AUTOCAST
        self._lower_looks = 0
        """As ``_looks``, after a context in a lower precision was entered with gradients."""
        self._entered: dict[str, torch.dtype | None] = {}
        """By type of device, what the newest context of autocast ran in that was entered with gradients."""

    def see_autocast(self, context: Any) -> None:
        """A context of autocast was entered: its forward passes may run in another precision."""
        kind, dtype = context.device, None
        if torch.is_autocast_enabled(kind):  # a context that disables it lowers no precision
            dtype = torch.get_autocast_dtype(kind)
            self._looks = _PASSES_AFTER_AUTOCAST
            self._precisions.clear()
        if torch.is_grad_enabled():
            self._entered[kind] = dtype
            if dtype in LOW_DTYPES:
                self._lower_looks = _PASSES_AFTER_AUTOCAST

    def read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> BackwardPass:
        """The pass that ``torch.autograd.backward`` is about to make with these arguments.

        Its precision is ``fp32`` for anything that is not lower.
        """
        loss: Any = args[0] if len(args) > 1 and args[1] is None else None
        is_usual = type(loss) is Tensor and not loss.dim()
        if is_usual and not self.has_scaled:  # loss.backward()
            backward, tensors = BackwardPass(), args[:1]
            is_known = loss.dtype is _FLOAT32 and loss.is_cpu
            backward.loss, backward.is_plain = loss.item() if is_known else loss.detach().clone(), True
        elif is_usual and (mark := mark_of(loss.grad_fn)) is not None and mark.product() is loss:
            backward, tensors = BackwardPass(), args[:1]  # scaler.scale(loss).backward()
            backward.loss, backward.scaler = mark.loss, mark.scaler()
        else:
            backward, tensors = read_pass(args, kwargs, may_be_scaled=self.has_scaled)
        root: Any = tensors[0].grad_fn if tensors else None
        if root is None:
            backward.precision = "unknown"
            return backward
        kind, newest = type(root), root._sequence_nr()
        shape, self._newest_node = (kind, newest - self._newest_node, tensors[0].dtype), newest
        if kind.__name__ == "MulBackward0" and backward.scaler is None:
            backward.is_product, backward.is_plain = True, False
        is_settled = not (self._looks or _is_any_autocast_enabled())
        if is_settled and (precision := self._precisions.get(shape)) is not None:
            backward.precision = precision  # the usual case without autocast
        elif (dtype := self._nearest_dtype(root)) in LOW_DTYPES:
            self._entered.clear()
            backward.precision = _COMPUTED_WORDS[dtype]  # and with it
        elif is_settled and len(self._precisions) >= _MAX_SHAPES:
            precisions = {*self._precisions.values()}
            backward.precision = precisions.pop() if len(precisions) == 1 else "unknown"
        else:
            self._search(backward, tensors)
            if is_settled and backward.precision not in AMP_PRECISIONS:
                self._precisions[shape] = backward.precision
        return backward

    def _nearest_dtype(self, root: Any) -> torch.dtype | None:
        """What the product nearest to the loss ran in; None if none is near."""
        node = root
        for _ in range(_NEAR_NODES):
            if node is None or self._kinds.get(type(node)) == _PRODUCT:
                break
            children = node.next_functions
            node = children[0][0] if children else None
        near: Any = node if self._kinds.get(type(node)) == _PRODUCT else None
        dtype: torch.dtype | None = None if near is None else near._input_metadata[0].dtype
        return dtype

    def _search(self, backward: BackwardPass, tensors: Sequence[Tensor]) -> None:
        """Look at the whole graph: what a product was lower in, else float32 if there are products."""
        kind, is_opaque = tensors[0].device.type, False
        active = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        dtype: torch.dtype | None = None
        waiting = deque(tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None)
        visited: set[Any] = set()
        while waiting and len(visited) < _MAX_NODES and dtype not in LOW_DTYPES:
            node: Any = waiting.popleft()
            if node in visited:
                continue
            visited.add(node)
            if (node_kind := self._kind_of(node)) != _PLAIN:
                of_node = _dtype_of(node, node_kind)
                dtype = of_node or dtype
                is_opaque |= of_node is None
            waiting += [child for child, _ in node.next_functions if child is not None]
        if dtype not in LOW_DTYPES and waiting:
            dtype = None
        elif dtype is None:
            # The graph shows no product: it has none, or a function of somebody's own may hide them.
            dtype = active or self._entered.get(kind)
            if dtype not in LOW_DTYPES:
                dtype = None if is_opaque else torch.float32
        backward.precision = "unknown" if dtype is None else _COMPUTED_WORDS.get(dtype, "fp32")
        if dtype is torch.float32 and (active in LOW_DTYPES or self._lower_looks > 0):
            backward.may_be_lower, backward.is_plain = True, False
        self._looks, self._lower_looks = max(0, self._looks - 1), max(0, self._lower_looks - 1)
        self._entered.clear()

    def _kind_of(self, node: Any) -> int:
        kind = self._kinds.get(type(node))
        if kind is None:
            is_own = isinstance(node, BackwardCFunction)  # which may have a `name` of the script's
            is_product = not is_own and node.name().rpartition("::")[2].startswith(_PRODUCTS)
            kind = self._kinds[type(node)] = _OPAQUE if is_own else _PRODUCT if is_product else _PLAIN
        return kind


def _dtype_of(node: Any, kind: int) -> torch.dtype | None:
    """What a product ran in; of an opaque node what its results or saved tensors show, else None."""
    results = [result.dtype for result in node._input_metadata]
    low = next((dtype for dtype in results if dtype in LOW_DTYPES), None)
    if low is not None or kind == _PRODUCT:
        return low or torch.float32
    # A compiled function: what it keeps for its backward pass are the operands of its products.
    if "CompiledFunction" in type(node).__name__:
        try:
            operands = (*node.saved_tensors, *getattr(node, "_tensors_no_vc_check", ()))
        except RuntimeError:  # freed: the script's own pass is about to fail of it
            return None
        low = next((tensor.dtype for tensor in operands if tensor.dtype in LOW_DTYPES), None)
        return low or torch.float32
    return None
