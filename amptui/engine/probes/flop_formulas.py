"""Formulas for an operator's floating-point operations, torch's and ours; and the operators that need none.

A multiplication and an addition count as two. A formula takes the operator's arguments and, as ``out_val``,
its result.

FLOPs are customarily those of matrix products, convolutions and attention. So an operator without a formula
either computes a bounded number of operations per element, or moves elements, and is free; or it is unknown,
and makes the count a lower bound. Nothing is free because it is not known to be expensive.
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

Formula = Callable[..., int]


def flop_formulas() -> Mapping[Any, Formula]:
    """The formula of each operator that has one; its overloads share it."""
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


# -------------------------------------------------------------------------- free operators

_TAGS = {getattr(torch.Tag, name, None) for name in ("pointwise", "reduction", "view_copy")}
"""``reduction`` is not in all releases of torch: the operators with it are listed below too."""

_COMMUNICATION = frozenset({"c10d", "_c10d_functional", "_dtensor", "fsdp", "profiler"})
"""Namespaces that exchange tensors between ranks, or mark times."""

_PREFIXES = (
    "_amp_ _assert _foreach_ _functional_ _fused_ada _fused_sgd _nested_get_ _philox_ _upsample_ "
    "adaptive_ _adaptive_ batch_norm_ cudnn_batch_norm cudnn_grid_sampler empty fake_quantize_ "
    "_fake_quantize_ grid_sampler_ index max_pool miopen_batch_norm native_ new_ rand reflection_pad "
    "replication_pad resize scatter sym_ upsample_ "
)
"""Families: all operators whose names start so, except ``_EXPENSIVE``."""

_EXPENSIVE = frozenset({"_foreach_mm"})

_NAMES = (
    # Allocation, copies, indices and shapes.
    "_chunk_cat _coalesce _coalesced _copy_from _copy_from_and_resize _efficientzerotensor "
    "_has_same_storage_numel _index_put_impl _lazy_clone _local_scalar_dense _pack_padded_sequence "
    "_pin_memory _print _resize_output _sparse_coo_tensor_unsafe _sparse_coo_tensor_with_dims "
    "_sparse_coo_tensor_with_dims_and_tensors _stack _to_copy _to_dense _to_sparse _unsafe_index "
    "_unsafe_index_put _unsafe_masked_index _unsafe_masked_index_put_accumulate _unsafe_view arange "
    "as_strided as_strided_scatter block_diag cat channel_shuffle clone col2im complex constant_pad_nd "
    "contiguous copy data dense_dim detach diag_embed diagonal diagonal_scatter embedding eye fill flip "
    "from_file full full_like gather im2col is_coalesced is_pinned is_same_size is_set_to item lift "
    "lift_fresh linspace logspace masked_fill masked_scatter masked_select nonzero nonzero_static ones "
    "ones_like pixel_shuffle pixel_unshuffle put range record_stream repeat repeat_interleave roll rot90 "
    "scalar_tensor select select_scatter set slice slice_scatter sparse_coo_tensor sparse_dim sparse_mask "
    "split squeeze stack t take _to_mkldnn to_dense to_mkldnn to_padded_tensor transpose tril "
    "tril_indices triu triu_indices unfold unsafe_split unsafe_split_with_sizes unsqueeze zero zeros "
    "zeros_like _jagged_to_padded_dense _padded_dense_to_jagged _nnz _reshape_alias _conj _neg_view "
    "_has_compatible_shallow_copy_type _cudnn_rnn_flatten_weight bartlett_window blackman_window "
    "hamming_window hann_window kaiser_window fft_fftfreq fft_rfftfreq "
    # Element by element, where a release of torch does not tag it so.
    "_add_relu _masked_scale _prelu_kernel _thnn_fused_gru_cell _thnn_fused_lstm_cell "
    "_transform_bias_rescale_qkv abs copysign dequantize dist eq floor_divide ge gelu glu glu_jvp gt "
    "hardswish heaviside le log_sigmoid lt mish ne polar rrelu_with_noise rrelu_with_noise_functional "
    "threshold rsub xlogy elu hardshrink hardsigmoid hardtanh leaky_relu softplus softshrink "
    # Comparisons of elements, and counts.
    "_aminmax _cummax_helper _cummin_helper _is_all_true _is_any_true _unique _unique2 allclose bincount "
    "bucketize cummax cummin equal histc isin kthvalue median mode nanmedian searchsorted sort topk "
    "unique_consecutive unique_dim unique_dim_consecutive "
    # Sums and the like: one operation an element.
    "_logcumsumexp _segment_reduce _sparse_sum all amax amin aminmax any argmax argmin count_nonzero "
    "cumprod cumsum linalg__powsum linalg_vector_norm logcumsumexp logsumexp max mean min nansum norm "
    "prod segment_reduce std std_mean sum trace var var_mean "
    # Softmax, normalization, pooling and weight norm.
    "_batch_norm_no_update _batch_norm_with_update _batch_norm_with_update_functional _fused_rms_norm "
    "_log_softmax _masked_softmax _native_batch_norm_legit _native_batch_norm_legit_functional "
    "_native_batch_norm_legit_no_training _safe_softmax _softmax _weight_norm_interface avg_pool2d "
    "avg_pool3d embedding_renorm fractional_max_pool2d fractional_max_pool3d max_unpool2d max_unpool3d "
    "renorm "
    # Losses.
    "_ctc_loss _cudnn_ctc_loss _use_cudnn_ctc_loss _use_miopen_ctc_loss miopen_ctc_loss "
    "binary_cross_entropy binary_cross_entropy_with_logits huber_loss mse_loss multi_margin_loss "
    "multilabel_margin_loss nll_loss nll_loss2d smooth_l1_loss soft_margin_loss "
    # Random numbers.
    "_cudnn_init_dropout_state _dirichlet_grad _fill_mem_eff_dropout_mask _fused_dropout "
    "_sample_dirichlet _standard_gamma _standard_gamma_grad bernoulli binomial cauchy exponential "
    "geometric log_normal multinomial normal normal_functional poisson uniform "
    # Questions, and the choice of a kernel.
    "_debug_has_internal_overlap _fused_sdp_choice device is_contiguous is_non_overlapping_and_dense "
    "is_strides_like_format layout numel size storage_offset stride dim "
)
"""Without ``_backward``, ``_forward`` and the underscore of operators in place: those are as free."""

_FREE_PREFIXES = tuple(_PREFIXES.split())
_FREE_NAMES = frozenset(_NAMES.split())


@cache
def is_free(operator: OpOverload) -> bool:
    """Whether the operator counts nothing; False for everything that is not known."""
    if operator.namespace in _COMMUNICATION or operator.is_view or _TAGS.intersection(operator.tags):
        return True
    if operator.namespace not in ("aten", "prim"):
        return False
    name = operator._opname.removesuffix("_")
    if name in _EXPENSIVE:
        return False
    return name.startswith(_FREE_PREFIXES) or _stem(name) in _FREE_NAMES


def _stem(name: str) -> str:
    """``nll_loss`` for ``nll_loss_backward``."""
    for suffix in ("_backward_data", "_dense_backward", "_backward_impl", "_backward", "_forward"):
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    return name
