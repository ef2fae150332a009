"""Holds the formulas of an operator's floating-point operations: torch's, and ours where it has none or errs.

A multiplication and an addition count as two. A formula takes the operator's arguments and, as ``out_val``,
its result.
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Formula = Callable[..., int]


def flop_formulas() -> Mapping[Any, Formula]:
    """By operator, all overloads alike."""
    ours = {getattr(torch.ops.aten, name, None): formula for name, formula in _OURS.items()}
    return {**_formulas_of_torch(), **{packet: formula for packet, formula in ours.items() if packet}}


def _formulas_of_torch() -> Mapping[Any, Formula]:
    log = logging.getLogger("torch.utils.flop_counter")
    level = log.level
    log.setLevel(logging.ERROR)  # where there is no triton it warns of kernels that we look for ourselves
    try:
        from torch.utils.flop_counter import flop_registry  # imports triton, where there is one
    finally:
        log.setLevel(level)
    return flop_registry


# ------------------------------------------------------------------------------------ convolutions


def _convolution(
    images: Tensor,
    weight: Tensor,
    _bias: Tensor | None,
    _stride: Sequence[int],
    _padding: Sequence[int],
    _dilation: Sequence[int],
    transposed: bool,
    *_rest: Any,
    out_val: Tensor,
    **_kwargs: Any,
) -> int:
    return _convolution_pass(images, weight, out_val, transposed=transposed)


def _cudnn_convolution(images: Tensor, weight: Tensor, *_rest: Any, out_val: Tensor, **_kwargs: Any) -> int:
    return _convolution_pass(images, weight, out_val, transposed=False)


def _convolution_backward(
    gradient: Tensor,
    images: Tensor,
    weight: Tensor,
    _bias_sizes: Sequence[int] | None,
    _stride: Sequence[int],
    _padding: Sequence[int],
    _dilation: Sequence[int],
    transposed: bool,
    _output_padding: Sequence[int],
    _groups: int,
    output_mask: Sequence[bool],
    **_kwargs: Any,
) -> int:
    """The gradients of images and of weights multiply as many pairs of numbers as the forward pass, each.

    torch's formula takes the weight gradient of a grouped convolution for that of a dense one.
    """
    passes = sum(map(bool, output_mask[:2]))  # the third, of the bias, is a sum
    return passes * _convolution_pass(images, weight, gradient, transposed=transposed)


def _convolution_pass(images: Tensor, weight: Tensor, result: Tensor, *, transposed: bool) -> int:
    """Of ``images`` [N, C, ...] to ``result`` [N, K, ...] by ``weight`` [K, C / groups, ...].

    A transposed convolution has a weight of [C, K / groups, ...].
    Each weight is used once per image and position: of the result, or of the images if ``transposed``.
    Positions in the padding count, as in torch's formula.
    """
    positions = math.prod((images if transposed else result).shape[2:])
    return 2 * images.shape[0] * positions * weight.numel()


# --------------------------------------------------------------------------------------- attention


def _attention(query: Tensor, key: Tensor, value: Tensor, *_rest: Any, **_kwargs: Any) -> int:
    """Scores, and their product with the values, of [N, heads, T, width] each.

    A mask, causal or other, saves nothing: as in torch's formulas.
    """
    return _scores(query, key) * 2 * (query.shape[-1] + value.shape[-1])


def _attention_backward(
    _gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, *_rest: Any, **_kwargs: Any
) -> int:
    """The scores once more, as the kernels do not keep them, and the gradients of both products."""
    return _scores(query, key) * 2 * (3 * query.shape[-1] + 2 * value.shape[-1])


def _scores(query: Tensor, key: Tensor) -> int:
    """How many there are: groups of query heads may share a key head."""
    return math.prod(query.shape[:-1]) * key.shape[-2]


# --------------------------------------------------------------------------------------- recurrent


def _cudnn_rnn(inputs: Tensor, weights: Sequence[Tensor], *_rest: Any, **_kwargs: Any) -> int:
    """Each matrix is used once per position of ``inputs`` [T, N, C], or packed [sum of lengths, C]."""
    return _recurrence(inputs, weights)


def _cudnn_rnn_backward(inputs: Tensor, weights: Sequence[Tensor], *rest: Any, **_kwargs: Any) -> int:
    """The gradients of inputs and states, which the recurrence needs, and if asked for those of weights."""
    of_weights = bool(rest[-1][3])
    return (1 + of_weights) * _recurrence(inputs, weights)


def _mkldnn_rnn(inputs: Tensor, of_inputs: Tensor, of_states: Tensor, *_rest: Any, **_kwargs: Any) -> int:
    """One layer in one direction."""
    return _recurrence(inputs, (of_inputs, of_states))


def _mkldnn_rnn_backward(
    inputs: Tensor, of_inputs: Tensor, of_states: Tensor, *_rest: Any, **_kwargs: Any
) -> int:
    """All gradients are computed, whoever needs them."""
    return 2 * _recurrence(inputs, (of_inputs, of_states))


def _recurrence(inputs: Tensor, weights: Sequence[Tensor]) -> int:
    positions = math.prod(inputs.shape[:-1])
    return 2 * positions * sum(weight.numel() for weight in weights if weight.dim() == 2)


# ----------------------------------------------------------------------------------- other products


def _product(left: Tensor, right: Tensor, *_rest: Any, **_kwargs: Any) -> int:
    """[..., K] by [K, N], or by [..., K, N], or by [K]."""
    columns = right.shape[-1] if right.dim() > 1 else 1
    return 2 * left.numel() * columns


def _added_product(_added: Tensor, left: Tensor, right: Tensor, *_rest: Any, **_kwargs: Any) -> int:
    return _product(left, right)


def _added_outer_product(_added: Tensor, left: Tensor, right: Tensor, *_rest: Any, **_kwargs: Any) -> int:
    return 2 * left.numel() * right.numel()


def _linear(inputs: Tensor, weight: Tensor, *_rest: Any, **_kwargs: Any) -> int:
    """Whole only in inference mode; elsewhere torch takes it apart."""
    return 2 * inputs.numel() * (weight.shape[0] if weight.dim() > 1 else 1)


_ATTENTION = [f"_scaled_dot_product_{kind}_attention" for kind in ("flash", "efficient", "cudnn")]
_CPU_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"

_OURS: Mapping[str, Formula] = {
    "convolution": _convolution,
    "_convolution": _convolution,
    "convolution_overrideable": _convolution,
    "cudnn_convolution": _cudnn_convolution,
    "convolution_backward": _convolution_backward,
    "convolution_backward_overrideable": _convolution_backward,
    # torch's before 2.15 leave out the CPU's, and older ones groups of heads.
    **dict.fromkeys([*_ATTENTION, _CPU_ATTENTION], _attention),
    **{f"{name}_backward": _attention_backward for name in [*_ATTENTION, _CPU_ATTENTION]},
    "_cudnn_rnn": _cudnn_rnn,
    "_cudnn_rnn_backward": _cudnn_rnn_backward,
    "mkldnn_rnn_layer": _mkldnn_rnn,
    "mkldnn_rnn_layer_backward": _mkldnn_rnn_backward,
    **dict.fromkeys(["mv", "dot", "vdot"], _product),
    **dict.fromkeys(["addmv", "addmv_", "addmm_", "addbmm", "addbmm_", "baddbmm_"], _added_product),
    **dict.fromkeys(["addr", "addr_"], _added_outer_product),
    "linear": _linear,
}
