"""How far two sets of gradients agree, against plain arithmetic; operators as they are counted."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from amptui.engine.probes.agreement import Gradients, Layer, agreements, layer_sums, layers_of, on_host
from amptui.engine.probes.operators import OperatorCounter
from amptui.records.findings import LayerAgreement

finite = st.floats(width=32, min_value=-1e4, max_value=1e4)
vectors = st.integers(1, 6).flatmap(
    lambda n: st.tuples(st.lists(finite, min_size=n, max_size=n), st.lists(finite, min_size=n, max_size=n))
)


class Weights(nn.Module):
    def __init__(self, *sizes: int) -> None:
        super().__init__()
        for i, size in enumerate(sizes):
            self.register_parameter(f"p{i}", nn.Parameter(torch.zeros(size)))


def compared(full: list[Tensor | None], half: list[Tensor | None], loss_scale: float = 1.0) -> LayerAgreement:
    """One layer whose parameters have these gradients."""
    present = [next(g for g in pair if g is not None) for pair in zip(full, half, strict=True)]
    model = Weights(*(g.numel() for g in present))
    parameters = list(model.parameters())
    layers = layers_of(model)
    dicts: list[dict[Tensor, Tensor]] = [
        {p: g for p, g in zip(parameters, gradients, strict=True) if g is not None}
        for gradients in (full, half)
    ]
    (result,) = agree(layers, *dicts, loss_scale=loss_scale, output_dtypes={"": "float16"})
    return result


def agree(
    layers: Sequence[Layer],
    full: Gradients,
    half: Gradients,
    *,
    loss_scale: float = 1.0,
    output_dtypes: Mapping[str, str] | None = None,
    in_float16: bool = True,
) -> tuple[LayerAgreement, ...]:
    sums = on_host(layer_sums(layers, full, half, loss_scale=loss_scale))
    return agreements(layers, sums, full, half, output_dtypes=output_dtypes or {}, in_float16=in_float16)


@given(vectors, st.integers(0, 16))
def test_numbers_match_their_definitions(pair: tuple[list[float], list[float]], exponent: int) -> None:
    full, half = (torch.tensor(values) for values in pair)
    result = compared([full], [half * 2.0**exponent], 2.0**exponent)
    f, h = full.double(), half.double()
    if not f.any():
        assert (result.cosine, result.relative_error, result.lost) == (None, None, None)
        return
    assert result.relative_error == pytest.approx(((h - f).norm() / f.norm()).item(), rel=1e-9)
    assert result.norm == pytest.approx(f.norm().item(), rel=1e-9)
    small = f[(half * 2.0**exponent).abs() < 2.0**-14]
    assert result.underflowing == pytest.approx((small.norm() / f.norm()).item(), rel=1e-9)
    assert result.lost == ((f != 0) & (h == 0)).sum().item() / (f != 0).sum().item()
    if h.any():
        assert result.cosine == pytest.approx((f @ h / (f.norm() * h.norm())).item(), abs=1e-9)
        assert -1 <= (result.cosine or 0) <= 1
    else:
        assert (result.cosine, result.relative_error, result.lost) == (0, 1, 1)


# -------------------------------------------------------------------- operators, by what really ran


gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")


def counted(counter: OperatorCounter) -> dict[tuple[str, str], int]:
    return {(count.name, count.dtype): count.count for count in counter.counts()}


HALF = torch.ones(2, 2, dtype=torch.float16)


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (HALF.float, {("_to_copy", "float32"): 1}),
        (lambda: torch.zeros(2, dtype=torch.float64), {("zeros", "float64"): 1}),
        (lambda: HALF.sum(dtype=torch.float32), {("sum", "float32"): 1}),
        (lambda: HALF + torch.ones(2, 2), {("ones", "float32"): 1, ("add", "float32"): 1}),
        (lambda: torch.cat([HALF, HALF]), {("cat", "float16"): 1}),
        (lambda: torch._foreach_abs([HALF, HALF]), {("_foreach_abs", "float16"): 1}),
        (lambda: HALF.clone().relu_(), {("clone", "float16"): 1, ("relu_", "float16"): 1}),
        (lambda: HALF.view(4).unsqueeze(0).t().expand(4, 2).detach(), {}),
    ],
    ids=lambda value: "" if callable(value) else str(sorted(value)),
)
def test_an_operator_s_dtype_is_what_it_computes_in(run: Any, expected: dict[tuple[str, str], int]) -> None:
    with OperatorCounter() as counter:
        run()
    assert counted(counter) == expected


@pytest.mark.gpu
@gpu
def test_a_gpu_s_backward_pass_is_counted() -> None:
    weight = torch.rand(8, 8, device="cuda", requires_grad=True)
    with OperatorCounter() as counter:
        with torch.autocast("cuda", dtype=torch.float16):
            product = torch.rand(8, 8, device="cuda") @ weight
        product.float().sum().backward()
    assert counted(counter)["mm", "float16"] == 2
