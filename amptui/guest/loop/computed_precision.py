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
from torch.autograd.function import BackwardCFunction

from amptui.base.script_signals import is_from_signal_handler
from amptui.guest.loop.backward_pass import BackwardPass

LOW_DTYPES = (torch.float16, torch.bfloat16)

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

_PASSES_BETWEEN_LOOKS = 256
"""Somebody may cast without autocast: then nothing says that the precision has changed."""

_PASSES_AFTER_AUTOCAST = 8
"""After a context of autocast was entered, so many graphs are looked at whatever they show: one forward pass
may run before another one's backward pass."""

_PLAIN, _PRODUCT, _OPAQUE = range(3)


class PrecisionReader:
    """Tells the dtype of each backward pass's forward pass; looks at few nodes of its graph."""

    def __init__(self) -> None:
        self._kinds: dict[type, int] = {}
        self.quiet_passes = 0
        """So many passes from now on need not be read, unless autocast is entered: they have this dtype."""
        self.quiet_dtype: torch.dtype | None = torch.float32
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
            self._looks, self.quiet_passes = _PASSES_AFTER_AUTOCAST, 0
        if torch.is_grad_enabled():
            self._entered[kind] = dtype
            if dtype in LOW_DTYPES:
                self._lower_looks = _PASSES_AFTER_AUTOCAST

    def read(self, backward: BackwardPass) -> torch.dtype | None:
        """float16, bfloat16, or float32 for anything else; None if unknown. To be called before the pass."""
        if not backward.tensors:
            return None
        kind = backward.tensors[0].device.type
        is_active = torch.is_autocast_enabled(kind)
        self._looks = max(0, self._looks - 1)
        if (low := self._nearest_dtype(backward.tensors[0])) is not None:
            self._entered.clear()
            return low  # the usual case with autocast
        dtype, is_complete = self._search(backward.tensors)
        if dtype is None and is_complete:
            dtype = self._guess(kind, is_active=is_active)
        self._entered.clear()
        is_lower = is_active and torch.get_autocast_dtype(kind) in LOW_DTYPES
        lower = is_lower or self._lower_looks > 0
        self._lower_looks = max(0, self._lower_looks - 1)
        backward.may_be_lower = dtype is torch.float32 and lower
        if dtype not in LOW_DTYPES and not (self._looks or is_active):
            self.quiet_passes, self.quiet_dtype = _PASSES_BETWEEN_LOOKS, dtype
        return dtype

    def _nearest_dtype(self, tensor: Tensor) -> torch.dtype | None:
        """The lower dtype of the product next to the loss; None if that is another, or farther away."""
        node: Any = tensor.grad_fn
        for _ in range(_NEAR_NODES):
            if node is None:
                return None
            if self._kinds.get(type(node)) == _PRODUCT:
                dtype = node._input_metadata[0].dtype
                return dtype if dtype in LOW_DTYPES else None
            children = node.next_functions
            node = children[0][0] if children else None
        return None

    def _guess(self, kind: str, *, is_active: bool) -> torch.dtype | None:
        """Of a graph that shows none of its operations: a compiled one, or a function of somebody's own."""
        if is_active:
            dtype: torch.dtype | None = torch.get_autocast_dtype(kind)
        else:
            dtype = self._entered.get(kind)
        return dtype if dtype in LOW_DTYPES else torch.float32

    def _search(self, tensors: Sequence[Tensor]) -> tuple[torch.dtype | None, bool]:
        """The lower dtype of any product, else float32 if there are products; and whether all was looked at.

        None without a product, and if the graph is too large to tell.
        """
        waiting = deque(tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None)
        seen: set[Any] = set()
        has_product = False
        kinds = self._kinds
        while waiting and len(seen) < _MAX_NODES:
            node: Any = waiting.popleft()
            if node in seen:
                continue
            seen.add(node)
            kind = kinds.get(type(node))
            if kind is None:
                kind = kinds[type(node)] = _kind_of(node)
            if kind != _PLAIN:
                dtype = _dtype_of(node, kind)
                if dtype in LOW_DTYPES:
                    return dtype, True
                has_product |= kind == _PRODUCT or dtype is not None
            waiting += [child for child, _ in node.next_functions if child is not None]
        is_complete = not waiting
        return (torch.float32 if has_product and is_complete else None), is_complete


def _kind_of(node: Any) -> int:
    if isinstance(node, BackwardCFunction):
        return _OPAQUE
    return _PRODUCT if node.name().rpartition("::")[2].startswith(_PRODUCTS) else _PLAIN


def _dtype_of(node: Any, kind: int) -> torch.dtype | None:
    """What a product ran in; of an opaque node what its results or saved tensors show, else None."""
    results = [result.dtype for result in node._input_metadata]
    low = next((dtype for dtype in results if dtype in LOW_DTYPES), None)
    if low is not None or kind == _PRODUCT:
        return low or torch.float32
    # A compiled function: what it keeps for its backward pass are the operands of its products.
    if "CompiledFunction" in type(node).__name__:
        try:
            saved = (*node.saved_tensors, *getattr(node, "_tensors_no_vc_check", ()))
        except RuntimeError as error:  # freed: the script's own pass is about to fail of it
            if is_from_signal_handler(error):
                raise
            return None
        low = next((tensor.dtype for tensor in saved if tensor.dtype in LOW_DTYPES), None)
        return low or torch.float32
    return None


WEIGHTS_WORDS = {torch.float16: "fp16 weights", torch.bfloat16: "bf16 weights", torch.float64: "float64"}
"""The precision of a model whose weights have another dtype than float32, whatever autocast does."""

COMPUTED_WORDS = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
