"""unstable: each trouble happens in real float16 as its line says, and neither in FP32 nor in bfloat16."""

import math
from typing import Any, get_args, get_type_hints

import pytest
import torch

from amptui.loops.prepared import Prepared
from amptui.models.unstable import Unstable
from amptui.records.run import EpochFinished, LossScaleChanged, NonFinite, StepSkipped
from tests.models.on_images import DEVICES, learned, losses, on_images
from tests.tiny import Log, train

TROUBLES = get_args(get_type_hints(Unstable)["trouble"])


def run(trouble: Any, precision: str, device: str) -> tuple[Log, Prepared]:
    prepared = on_images(Unstable(trouble=trouble), steps=100, precision=precision, device=device)
    log = Log()
    train(prepared, log)
    return log, prepared


def skipped(log: Log) -> list[int]:
    return [skip.step for skip in log.of(StepSkipped)]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("trouble", [pytest.param(name, marks=pytest.mark.nightly) for name in TROUBLES])
@pytest.mark.parametrize("device", DEVICES)
def test_every_trouble_is_sound_outside_of_float16(trouble: str, precision: str, device: str) -> None:
    log, prepared = run(trouble, precision, device)
    assert learned(log) > 0.25
    assert not log.of(NonFinite)
    assert log.of(EpochFinished)[0].validation is not None
    assert all(torch.isfinite(values).all() for values in prepared.model.state_dict().values())


@pytest.mark.nightly
@pytest.mark.parametrize("device", DEVICES)
def test_without_trouble_float16_is_sound_too(device: str) -> None:
    log, _ = run("none", "fp16", device)
    assert learned(log) > 0.25
    assert not skipped(log)


@pytest.mark.ci
@pytest.mark.parametrize("device", DEVICES)
def test_calibration_skips_the_first_steps_and_learns_at_a_lower_scale(device: str) -> None:
    log, _ = run("calibration", "fp16", device)
    skips = skipped(log)
    assert 2 <= len(skips) <= 4
    assert skips[:2] == [1, 2]
    assert log.of(LossScaleChanged)[-1].current == 65_536 / 2 ** len(skips)
    assert all(math.isfinite(loss) for loss in losses(log))
    assert {kind for skip in log.of(StepSkipped) for kind in skip.kinds} <= {"inf"}
    assert learned(log) > 0.25


@pytest.mark.ci
@pytest.mark.parametrize("device", DEVICES)
def test_underflow_learns_next_to_nothing_in_float16_without_one_skipped_step(device: str) -> None:
    log, prepared = run("underflow", "fp16", device)
    assert not skipped(log)
    assert learned(log) < 0.1
    gradients = [p.grad.flatten() for p in prepared.model.parameters() if p.grad is not None]
    zeros = (torch.cat(gradients) == 0).float().mean()
    assert zeros > 0.5
