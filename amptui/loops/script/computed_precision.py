"""The precision that torch computed a forward pass in, read off the graph that it left for its backward pass.

Which contexts of autocast were entered does not tell: one may surround the whole loop, belong to an
evaluation, or be forgotten. Each node of the graph has the dtype of its operation's result: those of matrix
products and convolutions are what mixed precision is about.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import _is_any_autocast_enabled
from torch.autograd.function import BackwardCFunction

from amptui.loops.script.backward_pass import LOW_DTYPES, LOW_PRECISIONS, BackwardPass, mark_of, read_pass

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
        self._precisions: dict[tuple[type, int, torch.dtype | None], str] = {}
        """What the graphs ran in that have been searched, by how each began, its number of nodes, and the
        product nearest to the loss: casts are nodes, too. Emptied as autocast is entered."""
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
            backward.loss = loss.detach().clone()
            backward.is_product = type(loss.grad_fn).__name__ == "MulBackward0"
        elif is_usual and (mark := mark_of(loss.grad_fn)) is not None and mark.product() is loss:
            backward, tensors = BackwardPass(), args[:1]  # scaler.scale(loss).backward()
            backward.loss, backward.scaler = mark.loss, mark.scaler()
        else:
            backward, tensors = read_pass(args, kwargs, may_be_scaled=self.has_scaled)
        root: Any = tensors[0].grad_fn if tensors else None
        if root is None:
            backward.precision = "unknown"
            return backward
        node = root
        for _ in range(_NEAR_NODES):
            if node is None or self._kinds.get(type(node)) == _PRODUCT:
                break
            children = node.next_functions
            node = children[0][0] if children else None
        nearest = node._input_metadata[0].dtype if self._kinds.get(type(node)) == _PRODUCT else None
        newest, self._newest_node = self._newest_node, root._sequence_nr()
        if nearest in LOW_DTYPES:
            self._entered.clear()
            backward.precision = COMPUTED_WORDS[nearest]  # the usual case with autocast
            return backward
        shape = type(root), self._newest_node - newest, nearest
        is_settled = not (self._looks or _is_any_autocast_enabled())
        if is_settled and shape in self._precisions:
            backward.precision = self._precisions[shape]  # and without it
        elif is_settled and len(self._precisions) >= _MAX_SHAPES:
            precisions = {*self._precisions.values()}
            backward.precision = precisions.pop() if len(precisions) == 1 else "unknown"
        else:
            self._search(backward, tensors)
            if is_settled and backward.precision not in LOW_PRECISIONS:
                self._precisions[shape] = backward.precision
        return backward

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
        backward.precision = "unknown" if dtype is None else COMPUTED_WORDS.get(dtype, "fp32")
        backward.may_be_lower = dtype is torch.float32 and (active in LOW_DTYPES or self._lower_looks > 0)
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


WEIGHTS_WORDS = {torch.float16: "fp16 weights", torch.bfloat16: "bf16 weights", torch.float64: "float64"}
"""The precision of a model whose weights have another dtype than float32, whatever autocast does."""

COMPUTED_WORDS = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
