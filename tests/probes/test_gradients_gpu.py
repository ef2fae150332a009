"""What the probes of gradients say on a GPU is what they say on a CPU, and the host waits for nothing."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from amptui.probes.float16_window import Float16WindowProbe
from amptui.probes.gradients import GradientProbe
from tests.probes.test_gradients import model_with_gradients
from tests.tiny import no_waits

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU"),
]


def gradients() -> list[Tensor | None]:
    generator = torch.Generator().manual_seed(0)

    def some(*size: int) -> Tensor:
        exponents = torch.randint(-30, 20, size, generator=generator)
        return torch.randn(size, generator=generator) * torch.exp2(exponents)

    images = some(64, 30, 3, 3).to(memory_format=torch.channels_last)
    # 1,100 x 4,000 elements are counted in two pieces.
    return [some(5), some(300, 200), None, images, some(), torch.empty(0), some(1100, 4000)]


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param({}, id="none", marks=pytest.mark.real_gpu("a GPU's order of summing in float32")),
        pytest.param({0: math.nan}, id="nan"),
        pytest.param({1: -math.inf}, id="inf"),
        pytest.param({6: math.inf, 1: math.nan}, id="both"),
    ],
)
def test_health_is_the_same(bad: dict[int, float]) -> None:
    values: Any = gradients()
    for index, value in bad.items():
        values[index].view(-1)[-1] = value
    on_cpu, on_gpu = (GradientProbe(model_with_gradients(values, device)) for device in ("cpu", "cuda"))
    with no_waits():
        row = on_gpu.measure()
    measured_health = on_gpu.health(row.tolist(), 2.0)
    expected = on_cpu.health(on_cpu.measure().tolist(), 2.0)
    assert measured_health.nonfinite_count == expected.nonfinite_count
    assert measured_health.nonfinite_names == expected.nonfinite_names
    assert measured_health.nonfinite_kinds == expected.nonfinite_kinds
    assert measured_health.norm == pytest.approx(expected.norm, rel=1e-5, nan_ok=True)
    assert measured_health.largest == pytest.approx(expected.largest, nan_ok=True)


@pytest.mark.parametrize(("factor", "deterministic"), [(1.0, False), (0.3, False), (65536.0, True)])
def test_windows_are_the_same_and_counted_in_deterministic_mode_too(
    factor: float, deterministic: bool, request: pytest.FixtureRequest
) -> None:
    """The same counts; squares as closely as sums in another order may be."""
    request.addfinalizer(lambda: torch.use_deterministic_algorithms(False))
    torch.use_deterministic_algorithms(deterministic)
    windows: list[Any] = []
    for device in ("cpu", "cuda"):
        probe = Float16WindowProbe(GradientProbe(model_with_gradients(gradients(), device)))
        probe.measure(factor)
        with no_waits():
            row = probe.measure(factor)
        fields = {"time": 0.0, "step": 1, "precision": "fp32", "loss_scale": factor, "hypothetical": True}
        windows.append(probe.record(row.tolist(), **fields, seconds=None, steps_since=None))
    on_cpu, on_gpu = windows
    assert on_gpu.counts == on_cpu.counts
    assert [one.name for one in on_gpu.worst] == [one.name for one in on_cpu.worst]
    for gpu, cpu in zip((on_gpu, *on_gpu.worst), (on_cpu, *on_cpu.worst), strict=True):
        for name in ("zeros", "flushed", "subnormal", "overflowing"):
            assert getattr(gpu, name) == getattr(cpu, name)
        assert gpu.squares == pytest.approx(cpu.squares, rel=1e-3)
        assert gpu.flushed_squares == pytest.approx(cpu.flushed_squares, rel=1e-3)
        assert gpu.subnormal_squares == pytest.approx(cpu.subnormal_squares, rel=1e-3)
