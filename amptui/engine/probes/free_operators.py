"""Tells the operators that nobody counts, such as sums and copies, from those that may multiply matrices.

FLOPs are customarily those of matrix products, convolutions and attention. So an operator without a formula
either computes a bounded number of operations per element, or moves elements, and is free; or it is unknown,
and makes the count a lower bound. Nothing is free because it is not known to be expensive.
"""

from functools import cache

import torch
from torch._ops import OpOverload

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
