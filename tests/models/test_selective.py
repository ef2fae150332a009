"""selective: its island is in FP32 whatever runs around it, and what happens without the island."""

import math

import pytest
import torch
from torch import nn

from amptui.models.selective import Selective
from amptui.records.run import StepSkipped
from tests.models.on_images import DEVICES, learned, losses, on_images
from tests.tiny import Log, train

BATCH_SIZE = 32


def run(precision: str, *, island: bool = True, steps: int = 100, device: str = "cpu") -> Log:
    log = Log()
    experiment = Selective(batch_size=BATCH_SIZE, island=island)
    train(on_images(experiment, steps=steps, precision=precision, device=device), log)
    return log


def output_dtypes(model: nn.Module, autocast: torch.dtype) -> dict[str, torch.dtype]:
    """What each layer puts out, by its name."""
    found: dict[str, torch.dtype] = {}
    for name, module in model.named_children():
        module.register_forward_hook(
            lambda _module, _inputs, output, name=name: found.update({name: output.dtype})
        )
    with torch.autocast("cpu", dtype=autocast), torch.no_grad():
        model(torch.rand(2, 1, 28, 28))
    return found


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_island_is_float32_in_the_middle_of_autocast(dtype: torch.dtype) -> None:
    found = output_dtypes(Selective().build_model(), dtype)
    assert found.pop("distance") == torch.float32
    assert found.pop("brightness") == torch.float32
    assert set(found.values()) == {dtype}
    assert output_dtypes(Selective(island=False).build_model(), dtype)["distance"] == dtype


@pytest.mark.ci
@pytest.mark.parametrize("device", DEVICES)
def test_with_the_island_the_loss_falls_as_in_fp32(device: str) -> None:
    expected = run("fp32", device=device)
    assert learned(expected) > 0.4
    for precision in ("bf16", "fp16"):
        found = run(precision, device=device)
        assert not found.of(StepSkipped)
        assert losses(found) == pytest.approx(losses(expected), rel=0.05)


@pytest.mark.ci
def test_without_the_island_bfloat16_has_the_range_and_not_the_digits() -> None:
    log = run("bf16", island=False)
    assert all(math.isfinite(loss) for loss in losses(log))
    assert learned(log) < 0.05
