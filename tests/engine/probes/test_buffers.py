"""NaN and Inf in buffers: found once, worst first, and never where a model means them."""

import math
from collections.abc import Mapping

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from amptui.engine.probes.buffers import BufferWatch
from amptui.engine.probes.gradients import MAX_NAMES, SMALL_ELEMENTS
from amptui.records.run import NonFinite


def holding(buffers: Mapping[str, Tensor]) -> nn.Module:
    model = nn.Module()
    for name, tensor in buffers.items():
        model.register_buffer(name, tensor)
    return model


def look(watch: BufferWatch) -> NonFinite | None:
    return watch.found(watch.measure().tolist(), time=1.5, step=7)


# ----------------------------------------------------------------------------- real statistics


def scaled_step(model: nn.Module, inputs: Tensor) -> None:
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), GradScaler("cpu")
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(inputs).float().sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()


def test_batch_norm_s_statistics_are_poisoned_by_an_overflow_whose_step_the_scaler_skipped() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    nn.init.ones_(model.get_parameter("0.weight"))
    watch = BufferWatch(model)
    assert watch.names == ("1.running_mean", "1.running_var")
    scaled_step(model, torch.randn(8, 4))
    assert look(watch) is None
    before = [p.detach().clone() for p in model.parameters()]
    scaled_step(model, torch.full((8, 4), 6e4))
    assert all(map(torch.equal, before, model.parameters()))
    found = look(watch)
    assert found is not None
    assert (found.what, found.time, found.step, found.count) == ("buffer", 1.5, 7, 2)
    assert set(found.names) == {"1.running_mean", "1.running_var"}
    assert found.kind == found.kinds[0] == "nan"
    assert not torch.isfinite(model.get_buffer("1.running_var")).all()


# ------------------------------------------------------------------------------- what is news


def test_a_finding_is_reported_again_only_with_a_new_buffer() -> None:
    model = holding({name: torch.ones(3) for name in "abc"})
    watch = BufferWatch(model)
    model.get_buffer("b")[1] = -math.inf
    first = look(watch)
    assert first is not None
    assert (first.kind, first.names, first.kinds, first.count) == ("inf", ("b",), ("inf",), 1)
    assert look(watch) is None
    model.get_buffer("b")[1] = math.nan  # what was bad only got worse
    assert look(watch) is None
    model.get_buffer("a")[0] = math.inf
    second = look(watch)
    assert second is not None
    assert (second.kind, second.names, second.kinds, second.count) == ("nan", ("b", "a"), ("nan", "inf"), 2)


def test_a_buffer_that_recovered_is_reported_again() -> None:
    model = nn.BatchNorm1d(2)
    watch = BufferWatch(model)
    model.get_buffer("running_var").fill_(math.nan)
    assert look(watch) is not None
    model.reset_running_stats()
    assert look(watch) is None
    model.get_buffer("running_var").fill_(math.nan)
    assert look(watch) is not None


def test_inf_in_a_mask_is_ignored_but_nan_is_not() -> None:
    mask = torch.full((4, 4), -math.inf).triu(1)
    model = holding({"mask": mask, "running_mean": torch.zeros(4)})
    watch = BufferWatch(model)
    assert look(watch) is None
    mask[0, 0] = math.inf
    assert look(watch) is None
    mask[0, 0] = math.nan
    found = look(watch)
    assert found is not None
    assert (found.names, found.kind) == (("mask",), "nan")


def test_nan_from_a_checkpoint_is_reported() -> None:
    watch = BufferWatch(holding({"running_mean": torch.tensor([0.0, math.nan])}))
    assert look(watch) is not None


bad = st.sampled_from([math.nan, math.inf, -math.inf])


@given(st.integers(1, 14), st.data())
def test_all_are_counted_and_the_worst_are_named_first(number: int, data: st.DataObject) -> None:
    wrong = data.draw(st.dictionaries(st.integers(0, number - 1), bad))
    model = holding({f"b{i}": torch.ones(2, 3) for i in range(number)})
    watch = BufferWatch(model)
    for i, value in wrong.items():
        model.get_buffer(f"b{i}")[1, 2] = value
    found = look(watch)
    nans = [f"b{i}" for i in sorted(wrong) if math.isnan(wrong[i])]
    infs = [f"b{i}" for i in sorted(wrong) if math.isinf(wrong[i])]
    if not wrong:
        assert found is None
        return
    assert found is not None
    assert found.count == len(wrong)
    assert list(found.names) == (nans + infs)[:MAX_NAMES]
    assert list(found.kinds) == (["nan"] * len(nans) + ["inf"] * len(infs))[:MAX_NAMES]
    assert found.kind == ("nan" if nans else "inf")


# -------------------------------------------------------------------------------- which buffers


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(5, dtype=torch.float16),
        torch.ones(5, dtype=torch.bfloat16),
        torch.ones(5, dtype=torch.float64),
        torch.ones(5, dtype=torch.complex64),
        torch.ones(SMALL_ELEMENTS + 1),
        torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.tensor(1.0),
    ],
    ids=["float16", "bfloat16", "float64", "complex", "large", "channels-last", "scalar"],
)
def test_every_kind_of_buffer_is_watched(tensor: Tensor) -> None:
    model = holding({"sound": torch.ones(3), "odd": tensor})
    watch = BufferWatch(model)
    assert look(watch) is None
    tensor[(-1,) * tensor.dim()] = math.nan
    found = look(watch)
    assert found is not None
    assert found.names == ("odd",)


def test_the_largest_finite_numbers_are_not_inf() -> None:
    model = holding({"short": torch.full((3,), 65504.0).half(), "whole": torch.full((3,), -3e38)})
    assert look(BufferWatch(model)) is None


def test_a_reassigned_buffer_is_found() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2))
    watch = BufferWatch(model)
    model[0].running_mean = torch.tensor([0.0, math.inf])
    found = look(watch)
    assert found is not None
    assert found.names == ("0.running_mean",)
    model[0].register_buffer("running_mean", None)
    assert look(watch) is None


def test_integers_and_empty_buffers_cannot_go_bad() -> None:
    assert BufferWatch(holding({"steps": torch.tensor(3)})).measure().shape == (0,)
    assert BufferWatch(nn.Linear(2, 2)).measure().shape == (0,)
    assert BufferWatch(holding({"none": torch.zeros(0)})).measure().tolist() == [0.0]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
def test_a_gpu_finds_the_same_without_waiting() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.BatchNorm1d(4)).cuda()
    watch = BufferWatch(model)
    assert look(watch) is None
    with torch.no_grad():
        model.get_buffer("2.running_var").fill_(math.nan)
        model.get_buffer("1.running_mean").fill_(-math.inf)
    torch.cuda.set_sync_debug_mode("error")
    try:
        row = watch.measure()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    found = watch.found(row.tolist(), time=0.0, step=1)
    assert row.is_cuda
    assert found is not None
    assert (found.names, found.kinds) == (("2.running_var", "1.running_mean"), ("nan", "inf"))
