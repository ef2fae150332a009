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

from amptui.guest.loop.backward_pass import LOW_DTYPES, BackwardPass

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
"""Graphs that are remembered."""

_PASSES_BETWEEN_LOOKS = 64
"""A loop with more graphs than that, each of another size, is searched so rarely."""

_PASSES_AFTER_AUTOCAST = 8
"""After a context of autocast was entered, so many graphs are looked at whatever they show: one forward pass
may run before another one's backward pass."""

_PLAIN, _PRODUCT, _OPAQUE = range(3)


class PrecisionReader:
    """Tells the dtype of each backward pass's forward pass; looks at few nodes of its graph."""

    def __init__(self) -> None:
        self._kinds: dict[type, int] = {}
        self._dtypes: dict[tuple[type, int, torch.dtype | None], torch.dtype | None] = {}
        """What the graphs ran in that have been searched, by how each began, its number of nodes, and the
        product nearest to the loss: casts are nodes, too. Emptied as autocast is entered."""
        self._newest_node = 0
        self._passes = 0
        """Of graphs that are not remembered."""
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
            self._dtypes.clear()
        if torch.is_grad_enabled():
            self._entered[kind] = dtype
            if dtype in LOW_DTYPES:
                self._lower_looks = _PASSES_AFTER_AUTOCAST

    def read(self, backward: BackwardPass) -> torch.dtype | None:
        """float16, bfloat16, or float32 for anything else; None if unknown. To be called before the pass."""
        root: Any = backward.root
        if root is None:
            return None
        nearest = self._nearest_dtype(root)
        newest, self._newest_node = self._newest_node, root._sequence_nr()
        if nearest in LOW_DTYPES:
            self._entered.clear()
            return nearest  # the usual case with autocast
        shape = (type(root), self._newest_node - newest, nearest)
        if shape in self._dtypes and not (self._looks or _is_any_autocast_enabled()):
            return self._dtypes[shape]  # and without it
        kind = backward.tensors[0].device.type
        is_active = torch.is_autocast_enabled(kind)
        if len(self._dtypes) >= _MAX_SHAPES:
            self._passes += 1
            if self._passes % _PASSES_BETWEEN_LOOKS and not (self._looks or is_active):
                dtypes = {*self._dtypes.values()}
                return dtypes.pop() if len(dtypes) == 1 else None  # some of them differ: unknown
        self._looks = max(0, self._looks - 1)
        dtype, is_complete, is_opaque = self._search(backward.tensors)
        if dtype is None and is_complete:
            # The graph shows no product: it has none, or a function of somebody's own may hide them.
            dtype = torch.get_autocast_dtype(kind) if is_active else self._entered.get(kind)
            if dtype not in LOW_DTYPES:
                dtype = None if is_opaque else torch.float32
        self._entered.clear()
        is_lower = is_active and torch.get_autocast_dtype(kind) in LOW_DTYPES
        lower = is_lower or self._lower_looks > 0
        self._lower_looks = max(0, self._lower_looks - 1)
        backward.may_be_lower = dtype is torch.float32 and lower
        if dtype not in LOW_DTYPES and not (self._looks or is_active):
            self._dtypes[shape] = dtype
        return dtype

    def _nearest_dtype(self, root: Any) -> torch.dtype | None:
        """The dtype of the product next to the loss; None if that is farther away, or not known as one."""
        node = root
        for _ in range(_NEAR_NODES):
            if self._kinds.get(type(node)) == _PRODUCT:
                dtype: torch.dtype = node._input_metadata[0].dtype
                return dtype
            children = node.next_functions
            node = children[0][0] if children else None
            if node is None:
                break
        return None

    def _search(self, tensors: Sequence[Tensor]) -> tuple[torch.dtype | None, bool, bool]:
        """The lower dtype of any product, else float32 if there are products.

        None without a product, and if the graph is too large to tell. Then whether all was looked at, and
        whether any node does not show what it computed.
        """
        waiting = deque(tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None)
        visited: set[Any] = set()
        has_product = is_opaque = False
        kinds = self._kinds
        while waiting and len(visited) < _MAX_NODES:
            node: Any = waiting.popleft()
            if node in visited:
                continue
            visited.add(node)
            kind = kinds.get(type(node))
            if kind is None:
                is_own = isinstance(node, BackwardCFunction)  # which may have a `name` of the script's
                is_product = not is_own and node.name().rpartition("::")[2].startswith(_PRODUCTS)
                kind = kinds[type(node)] = _OPAQUE if is_own else _PRODUCT if is_product else _PLAIN
            if kind != _PLAIN:
                dtype = _dtype_of(node, kind)
                if dtype in LOW_DTYPES:
                    return dtype, True, False
                has_product |= dtype is not None
                is_opaque |= dtype is None
            waiting += [child for child, _ in node.next_functions if child is not None]
        is_complete = not waiting
        return (torch.float32 if has_product and is_complete else None), is_complete, is_opaque


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
