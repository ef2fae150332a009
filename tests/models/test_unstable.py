"""unstable, multi-task and selective in real float16: each trouble as its line says, and nowhere else."""

import math
from itertools import product
from typing import Any, get_args, get_type_hints

import pytest
import torch
from torch import nn

from amptui.loops.setup import Prepared
from amptui.models.multi_task import MultiTask
from amptui.models.selective import Selective
from amptui.models.unstable import Unstable
from amptui.records.run import EpochFinished, NonFinite, StepSkipped
from tests.builders import StepRow
from tests.models.on_images import DEVICES, learned, losses, on_images
from tests.tiny import Log, train

TROUBLES = get_args(get_type_hints(Unstable)["trouble"])


def trained(trouble: Any, precision: str, device: str) -> tuple[Log, Prepared]:
    prepared = on_images(Unstable(trouble=trouble), steps=100, precision=precision, device=device)
    log = Log()
    train(prepared, log)
    return log, prepared


def skipped(log: Log) -> list[int]:
    return [skip.step for skip in log.of(StepSkipped)]


@pytest.mark.nightly
@pytest.mark.parametrize(("trouble", "precision"), [*product(TROUBLES, ["fp32", "bf16"]), ("none", "fp16")])
@pytest.mark.parametrize("device", DEVICES)
def test_every_trouble_is_sound_outside_of_float16(trouble: str, precision: str, device: str) -> None:
    log, prepared = trained(trouble, precision, device)
    assert learned(log) > 0.25
    assert not skipped(log)
    assert not log.of(NonFinite)
    assert log.of(EpochFinished)[0].validation is not None
    assert all(torch.isfinite(values).all() for values in prepared.model.state_dict().values())


# --------------------------------------------------------------------------------------- multi-task
@pytest.mark.ci
@pytest.mark.timeout(300)  # float16 on a CPU without its instructions, beside another test
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_the_total_has_half_of_the_parity_s_loss_and_both_heads_learn(precision: str, device: str) -> None:
    log = Log()
    experiment = MultiTask(batch_size=32, learning_rate=2e-3)
    assert train(on_images(experiment, steps=100, precision=precision, device=device), log) == "done"
    for step in log.of(StepRow):
        assert list(step.losses) == ["digit", "parity"]
        assert step.loss == pytest.approx(step.losses["digit"] + 0.5 * step.losses["parity"], rel=1e-5)
    assert learned(log) > 0.2
    assert len(log.of(StepSkipped)) <= 4
    (epoch,) = log.of(EpochFinished)
    assert epoch.validation is not None
    assert (epoch.validation.accuracy or 0) > 0.35
    assert 0.65 < epoch.validation.metrics["parity accuracy"] <= 1


# ---------------------------------------------------------------------------------------- selective
BATCH_SIZE = 32


def train_on_digits(precision: str, *, island: bool = True, steps: int = 100, device: str = "cpu") -> Log:
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
    expected = train_on_digits("fp32", device=device)
    assert learned(expected) > 0.4
    for precision in ("bf16", "fp16"):
        found = train_on_digits(precision, device=device)
        assert not found.of(StepSkipped)
        assert losses(found) == pytest.approx(losses(expected), rel=0.05)


@pytest.mark.ci
def test_without_the_island_bfloat16_has_the_range_and_not_the_digits() -> None:
    log = train_on_digits("bf16", island=False)
    assert all(math.isfinite(loss) for loss in losses(log))
    assert learned(log) < 0.05
