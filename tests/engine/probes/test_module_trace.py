"""Which module overflowed first, or came nearest to it, in steps of real float16 arithmetic."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from amptui.engine.probes.magnitude import is_measurable, largest_absolute
from amptui.engine.probes.module_trace import MAX_NEAREST, ModuleTrace
from amptui.records.findings import ModuleRange
from tests.engine.traced import Scale, by_name, told, traced_step


def constant_linear(width: int, weight: float) -> nn.Linear:
    linear = nn.Linear(width, width, bias=False)
    nn.init.constant_(linear.weight, weight)
    return linear


# ------------------------------------------------------------------------------- who was first


def test_a_forward_overflow_names_the_innermost_module() -> None:
    block = nn.Sequential(constant_linear(4, 0.1), constant_linear(4, 1e5), nn.ReLU())
    model = nn.Sequential(constant_linear(4, 1.0), block, nn.Linear(4, 2))
    found = traced_step(model, torch.ones(3, 4))
    assert found.first == ModuleRange(
        name="1.1", kind="Linear", way="forward", dtype="float16", largest=math.inf
    )
    assert all(math.isfinite(near.largest) for near in found.nearest)
    assert {"0", "1.0"} <= {near.name for near in found.nearest}


def test_the_same_model_does_not_overflow_in_fp32_or_bf16_but_comes_near() -> None:
    model = nn.Sequential(constant_linear(4, 0.1), constant_linear(4, 1e5))
    for dtype, name in ((None, "float32"), (torch.bfloat16, "bfloat16")):
        found = traced_step(model, torch.ones(3, 4), dtype=dtype)
        assert found.first is None
        assert by_name(found, "forward")["1"].dtype == name
        assert by_name(found, "forward")["1"].largest == pytest.approx(160_000, rel=0.01)


def test_a_backward_overflow_names_the_first_gradient() -> None:
    # Forward: 4, 0.004, 4. Backward: the loss's gradient is the scale, and is multiplied by 1000.
    model = nn.Sequential(nn.Identity(), Scale(1e-3), Scale(1e3), nn.Identity())
    inputs = torch.full((2, 4), 4.0, dtype=torch.float16)
    found = traced_step(model, inputs, loss_scale=1024.0)
    assert found.first == ModuleRange(
        name="1", kind="Scale", way="backward", dtype="float16", largest=math.inf
    )
    assert by_name(found, "backward")["2"].largest == 1024.0
    assert by_name(found, "forward")["1"].largest == pytest.approx(0.004, rel=1e-3)


def test_a_nonfinite_output_comes_before_all_gradients() -> None:
    model = nn.Sequential(Scale(math.inf), Scale(1.0))
    found = traced_step(model, torch.ones(2), dtype=None)
    assert found.first is not None
    assert (found.first.name, found.first.way) == ("0", "forward")


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_and_inf_are_distinguished(bad: float) -> None:
    found = traced_step(nn.Sequential(nn.ReLU(), Scale(bad)), torch.ones(4), dtype=None)
    assert found.first is not None
    assert str(found.first.largest) == str(bad)


def test_the_first_overflowing_call_counts() -> None:
    class Looping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.grow, self.other = Scale(100.0), Scale(1.0)

        def forward(self, inputs: Tensor) -> Tensor:
            for _ in range(3):
                inputs = self.other(self.grow(inputs))
            return inputs

    found = traced_step(Looping(), torch.ones(2, dtype=torch.float16))
    assert found.first is not None
    assert (found.first.name, found.first.largest) == ("grow", math.inf)
    # Each named once a way, with the largest that is finite.
    assert {name: near.largest for name, near in by_name(found, "forward").items()} == {
        "grow": 10000.0,
        "other": 10000.0,
    }


# ---------------------------------------------------------------------------------- the nearest


def test_a_healthy_step_lists_the_largest_values_first() -> None:
    torch.manual_seed(0)
    layers = [layer for _ in range(8) for layer in (nn.Linear(16, 16), nn.ReLU())]
    found = traced_step(nn.Sequential(*layers), torch.randn(8, 16), loss_scale=64.0)
    assert found.first is None
    sizes = [near.largest for near in found.nearest]
    assert len(sizes) == MAX_NEAREST
    assert sizes == sorted(sizes, reverse=True)
    assert found.nearest[0].largest == 64.0  # the scaled loss's gradient, of the last module
    assert (found.nearest[0].way, found.nearest[0].name) == ("backward", "15")
    assert (found.time, found.step, found.precision, found.loss_scale, found.asked) == (
        1.5,
        7,
        "fp16",
        8,
        True,
    )
    assert found.modules == 17
    assert found.seconds is not None
    assert found.seconds > 0


@given(st.lists(st.floats(width=32), min_size=3, max_size=3))
def test_whatever_arrives_is_either_the_trouble_or_in_order(row: list[float]) -> None:
    with ModuleTrace(nn.Sequential(nn.ReLU(), nn.Tanh(), nn.Sigmoid())) as trace:
        trace._modules[0][1](torch.ones(2))
    found = told(trace, row)
    bad = [i for i, value in enumerate(row) if not math.isfinite(value)]
    assert (found.first.name if found.first else None) == (str(bad[0]) if bad else None)
    assert [near.largest for near in found.nearest] == sorted(filter(math.isfinite, row), reverse=True)


def test_uncalled_modules_are_not_reported() -> None:
    with ModuleTrace(nn.Linear(2, 2)) as trace:
        pass
    found = told(trace)
    assert trace.values().shape == (0,)
    assert (found.first, found.nearest, found.modules) == (None, (), 1)


# ----------------------------------------------------------------------- what counts as an output


def test_an_in_place_module_is_distinguished_from_the_previous_one() -> None:
    model = nn.Sequential(constant_linear(2, -3.0), nn.ReLU(inplace=True), Scale(2.0), nn.ReLU(inplace=True))
    inputs = torch.tensor([[1.0, 1.0], [-1.0, 0.0]])
    found = traced_step(model, inputs, dtype=None, loss_scale=16.0)
    assert {name: near.largest for name, near in by_name(found, "forward").items()} == {
        "0": 6.0,
        "1": 3.0,
        "2": 6.0,
        "3": 6.0,
    }
    assert {name: near.largest for name, near in by_name(found, "backward").items()} == {
        "0": 2.0,
        "1": 2.0,
        "2": 1.0,
        "3": 1.0,
    }


class Nested(nn.Module):
    """Puts out what other modules put out, in a nest, beside tensors of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Scale(2.0)

    def forward(self, inputs: Tensor) -> dict[str, Any]:
        return {
            "same": self.inner(inputs),
            "own": (inputs * 8, [inputs.long() * 1000, torch.zeros(0), "text", None]),
        }


def test_nested_outputs_are_measured_once_for_the_inner_module() -> None:
    with ModuleTrace(Nested()) as trace:
        trace._modules[0][1](torch.ones(3))
    assert trace.values().tolist() == [2.0, 8.0]
    assert [(near.name, near.kind) for near in told(trace).nearest] == [("", "Nested"), ("inner", "Scale")]


def test_a_module_that_returns_its_input_is_not_measured() -> None:
    model = nn.Sequential(Scale(3.0), nn.Identity(), nn.Dropout(0.5).eval())
    found = traced_step(model, torch.ones(2), dtype=None)
    assert list(by_name(found, "forward")) == ["0"]


def test_unmeasurable_tensors_are_ignored() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.twice = Scale(2.0)

        def forward(self, inputs: Tensor) -> Tensor:
            with torch.inference_mode():
                frozen = self.twice(inputs)
            mapped = torch.func.vmap(self.twice)(inputs)
            output: Tensor = mapped + frozen.clone()
            return output

    found = traced_step(Odd(), torch.ones(3, 2), dtype=None)
    assert {name: near.largest for name, near in by_name(found, "forward").items()} == {"": 4.0, "twice": 2.0}


# --------------------------------------------------------------------------------- the numbers


def elementwise(tensor: Tensor) -> float:
    return max(float(value) for value in tensor.double().abs().flatten())


@given(
    st.lists(st.floats(-60000, 60000, width=16), min_size=1, max_size=40),
    st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]),
)
def test_the_largest_absolute_value_is_exact_in_every_type(values: list[float], dtype: torch.dtype) -> None:
    tensor = torch.tensor(values, dtype=dtype)
    found = largest_absolute(tensor)
    assert (found.dtype, found.shape) == (torch.float32, ())
    assert found.item() == elementwise(tensor)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(4, 6)[:, ::2],
        torch.randn(3, 1).expand(3, 7),
        torch.tensor(-3.0),
        torch.randn(5).to(torch.float8_e4m3fn),
    ],
    ids=["channels-last", "strided", "expanded", "scalar", "float8"],
)
def test_the_layout_of_a_tensor_makes_no_difference(tensor: Tensor) -> None:
    assert is_measurable(tensor)
    assert largest_absolute(tensor).item() == elementwise(tensor)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("size", [3, 50_000])
def test_nan_wins_over_inf_in_any_position(dtype: torch.dtype, size: int) -> None:
    tensor = torch.ones(size, dtype=dtype)
    tensor[size // 2] = -math.inf
    assert largest_absolute(tensor).item() == math.inf
    tensor[-1] = math.nan
    assert math.isnan(largest_absolute(tensor).item())


def test_both_parts_of_complex_numbers_count() -> None:
    assert largest_absolute(torch.tensor([1 + 2j, 3 - 4j])).item() == 4.0
    assert largest_absolute(torch.tensor([1 + 9j]).conj()).item() == 9.0


@pytest.mark.parametrize(
    "tensor",
    [torch.ones(3, dtype=torch.int64), torch.ones(0), torch.eye(2).to_sparse(), torch.ones(2) > 0],
    ids=["integers", "empty", "sparse", "booleans"],
)
def test_only_strided_floating_point_elements_are_measured(tensor: Tensor) -> None:
    assert not is_measurable(tensor)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
def test_a_gpu_finds_the_overflow_without_waiting() -> None:
    model = nn.Sequential(nn.Linear(4, 4), constant_linear(4, 1e5), nn.ReLU(inplace=True)).cuda()
    nn.init.ones_(model.get_parameter("0.weight"))
    inputs = torch.ones(3, 4, device="cuda")
    with torch.autocast("cuda", dtype=torch.float16):
        model(inputs).sum().backward()  # libraries load, and may wait
    torch.cuda.set_sync_debug_mode("error")
    try:
        with ModuleTrace(model) as trace:
            with torch.autocast("cuda", dtype=torch.float16):
                loss = model(inputs).float().sum()
            loss.backward()
        row = trace.values()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    found = told(trace, row.tolist())
    assert row.is_cuda
    assert found.first is not None
    assert (found.first.name, found.first.dtype, found.first.largest) == ("1", "float16", math.inf)
