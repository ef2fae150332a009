"""Each precision does what its name says, checked against torch's own words."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from amptui.engine.precision import Tf32Flags, build_modes, check_supported, unsupported_precisions
from amptui.engine.setup import prepare_modes
from amptui.errors import UsageError
from amptui.records import PRECISIONS

CPU = torch.device("cpu")
# torch sets this attribute when it is imported; its types do not know it.
CONVOLUTION: Any = getattr(torch.backends.cudnn, "conv")  # noqa: B009 - a checker would ask for the type


@pytest.fixture(autouse=True)
def _restore_flags() -> Iterator[None]:
    before = Tf32Flags.current()
    yield
    before.apply()


def test_there_is_a_mode_for_every_precision() -> None:
    _, modes = prepare_modes(CPU)
    assert set(modes) == set(PRECISIONS)
    assert all(mode.name == name for name, mode in modes.items())


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("fp32", torch.float32), ("ieee", torch.float32), ("fp16", torch.float16), ("bf16", torch.bfloat16)],
)
def test_a_matrix_product_comes_out_in_the_modes_dtype(name: str, dtype: torch.dtype) -> None:
    _, modes = prepare_modes(CPU)
    with modes[name].forward_context():
        assert nn.Linear(4, 4)(torch.ones(2, 4)).dtype == dtype


def test_ieee_and_tf32_set_what_torch_reports_and_fp32_restores_it() -> None:
    _, modes = prepare_modes(CPU)
    default = CONVOLUTION.fp32_precision, torch.backends.cuda.matmul.fp32_precision
    modes["tf32"].enter()
    assert CONVOLUTION.fp32_precision == "tf32"
    assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    modes["ieee"].enter()
    assert CONVOLUTION.fp32_precision != "tf32"
    assert torch.backends.cuda.matmul.fp32_precision != "tf32"
    modes["fp32"].enter()
    now = CONVOLUTION.fp32_precision, torch.backends.cuda.matmul.fp32_precision
    assert now == default


@pytest.mark.parametrize("clip_first", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_what_fp16_tells_of_the_scaler_is_what_the_scaler_says(*, clip_first: bool, fused: bool) -> None:
    scaler, modes = prepare_modes(CPU)
    mode, model = modes["fp16"], nn.Linear(4, 4)
    optimizer = torch.optim.Adam(model.parameters(), fused=fused)
    for factor in (1.0, 1e-6, float("inf"), 1e-6):
        optimizer.zero_grad()
        with mode.forward_context():
            loss = model(torch.ones(2, 4)).float().square().mean() * factor
        mode.backward(loss)
        if clip_first:
            mode.unscale(optimizer)
        before, weights = scaler.get_scale(), model.weight.detach().clone()
        state = mode.step(optimizer)
        assert state is not None
        assert state.scale.item() == before
        assert state.next_scale.item() == scaler.get_scale()
        assert bool(state.found_inf.item()) == torch.equal(weights, model.weight)
        assert state.growth_tracker.item() == scaler.state_dict()["_growth_tracker"]


def test_only_fp16_touches_the_scaler() -> None:
    scaler, modes = prepare_modes(CPU)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters())
    before = scaler.state_dict()
    for name in ("fp32", "ieee", "bf16"):
        mode = modes[name]
        with mode.forward_context():
            loss = model(torch.ones(2, 4)).float().sum()
        mode.backward(loss)
        mode.unscale(optimizer)
        assert mode.step(optimizer) is None
    assert scaler.state_dict() == before


def test_modes_share_the_flags_that_were_set_before_any_was_entered() -> None:
    Tf32Flags(matmul=True, convolution=False).apply()
    scaler, _ = prepare_modes(CPU)
    modes = build_modes(CPU, scaler)
    modes["ieee"].enter()
    modes["bf16"].enter()
    assert Tf32Flags.current() == Tf32Flags(matmul=True, convolution=False)


def test_a_cpu_runs_everything_but_tf32() -> None:
    unsupported = unsupported_precisions(CPU)
    assert set(unsupported) == {"tf32"}
    check_supported("bf16", unsupported)
    with pytest.raises(UsageError, match="use one of fp32, ieee, fp16, bf16"):
        check_supported("tf32", unsupported)
