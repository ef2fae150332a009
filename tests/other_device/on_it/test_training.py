"""A device without events, streams, statistics and float64 trains; what it cannot do is left out and said."""

import math
from pathlib import Path

import pytest
import torch

from amptui.device import accelerator
from amptui.loops import setup
from amptui.records.answers import RequestMade
from amptui.records.control import Control
from amptui.records.findings import XRayTaken
from amptui.records.keeping import CheckpointWritten
from amptui.records.run import BlockFinished
from tests.builders import StepRow
from tests.other_device.device import NAME
from tests.tiny import Log, Tiny, log_of, losses, prepare, resume, stopping, train

PLAIN = torch.device(NAME, 0)


def test_the_device_that_torch_finds_is_the_default() -> None:
    assert setup.choose_device("auto") == PLAIN
    assert accelerator.is_available(NAME)
    assert accelerator.device_count(NAME) == 1
    accelerator.enter_device(PLAIN)
    assert accelerator.current_device() == PLAIN


def test_its_losses_are_those_of_the_processor_that_computes_them() -> None:
    there, here = (log_of(prepare(Tiny(epochs=3), device=device)) for device in ("auto", "cpu"))
    assert losses(there) == pytest.approx(losses(here), rel=1e-5)
    assert [block.peak_allocated_bytes for block in there.of(BlockFinished)] == [None]
    measured = [step.grad_norm for step in there.of(StepRow) if step.grad_norm is not None]
    assert measured
    assert all(map(math.isfinite, measured))


def test_amp_with_a_loss_scale_is_the_default_and_switched_to() -> None:
    prepared = prepare(Tiny(epochs=3), device="auto")
    assert prepared.amp_precision == "fp16"
    steps = log_of(prepared, at={5: "fp16", 15: "bf16"}).of(StepRow)
    assert [step.precision for step in steps] == ["fp32"] * 5 + ["fp16"] * 10 + ["bf16"] * 9
    assert None not in [step.loss for step in steps]
    assert {step.loss_scale for step in steps if step.precision == "fp16"} == {2.0**16}


def test_an_xray_compares_gradients_without_float64_on_the_device() -> None:
    (taken,) = log_of(prepare(Tiny(epochs=2), device="auto"), at={4: RequestMade("x-ray")}).of(XRayTaken)
    cosines = [layer.cosine for layer in taken.layers if layer.cosine is not None]
    assert cosines
    assert all(cosine > 0.9 for cosine in cosines)


def test_a_stopped_run_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    whole = losses(log_of(prepare(Tiny(epochs=4), device="auto")))
    control = Control()
    first = Log(stopping(control, 10))
    train(prepare(Tiny(epochs=4), device="auto"), first, control, checkpoints=tmp_path)
    assert first.of(CheckpointWritten)
    second = Log()
    resume(prepare(Tiny(epochs=4), device="auto"), tmp_path, second)
    assert losses(first) + losses(second) == whole
