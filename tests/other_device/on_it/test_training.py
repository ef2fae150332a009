"""A device without events, streams, statistics and float64 trains; what it cannot do is left out and said."""

import math
from pathlib import Path

import pytest
import torch

from amptui.device import accelerator
from amptui.device.accelerator import Capabilities
from amptui.engine import setup
from amptui.engine.probes.float8_window import operand_numbers
from amptui.engine.readback import HostReadback, open_readback
from amptui.records.control import Control, XRayRequest
from amptui.records.findings import XRayTaken
from amptui.records.keeping import CheckpointWritten
from amptui.records.run import BlockFinished
from amptui.records.steps import StepRecord
from tests.other_device.device import NAME
from tests.tiny import Exploding, Log, Tiny, log_of, losses, prepare, resume, stopping, train

PLAIN = torch.device(NAME, 0)


def test_the_device_that_torch_finds_is_the_default() -> None:
    assert setup.choose_device("auto") == PLAIN
    assert accelerator.is_available(NAME)
    assert accelerator.device_count(NAME) == 1
    accelerator.enter_device(PLAIN)
    assert accelerator.current_device() == PLAIN


def test_what_torch_does_not_say_of_it_is_left_out() -> None:
    assert accelerator.capabilities(PLAIN) == Capabilities(title=NAME)
    assert accelerator.properties(PLAIN).name == NAME
    assert accelerator.memory_use(PLAIN) is None
    assert accelerator.free_bytes(PLAIN) is None
    assert accelerator.random_states(PLAIN) == ()
    assert accelerator.capture_check(PLAIN)() is False
    accelerator.restart_peak(PLAIN)
    accelerator.empty_cache(PLAIN)


def test_values_are_read_at_once_and_timed_by_the_host() -> None:
    seconds = iter([10.0, 12.0])
    readback = open_readback(PLAIN, clock=lambda: next(seconds))
    assert isinstance(readback, HostReadback)
    delivered: list[object] = []
    readback.push([torch.ones(2).to(PLAIN)], lambda row, time: delivered.append((row, time)), timed=True)
    readback.drain()
    assert delivered == [([1.0, 1.0], 2.0)]


def test_its_losses_are_those_of_the_processor_that_computes_them() -> None:
    there, here = (log_of(prepare(Tiny(epochs=3), device=device)) for device in ("auto", "cpu"))
    assert losses(there) == pytest.approx(losses(here), rel=1e-5)
    assert [block.peak_allocated_bytes for block in there.of(BlockFinished)] == [None]
    measured = [step.grad_norm for step in there.of(StepRecord) if step.grad_norm is not None]
    assert measured
    assert all(map(math.isfinite, measured))


def test_amp_with_a_loss_scale_is_the_default_and_switched_to() -> None:
    prepared = prepare(Tiny(epochs=3), device="auto")
    assert prepared.amp_precision == "fp16"
    steps = log_of(prepared, at={5: "fp16", 15: "bf16"}).of(StepRecord)
    assert [step.precision for step in steps] == ["fp32"] * 5 + ["fp16"] * 10 + ["bf16"] * 9
    assert None not in [step.loss for step in steps]
    assert {step.loss_scale for step in steps if step.precision == "fp16"} == {2.0**16}


def test_steps_that_overflow_are_skipped_and_halve_the_scale() -> None:
    steps = log_of(prepare(Exploding(epochs=3), device="auto", precision="fp16")).of(StepRecord)
    skipped = [step for step in steps if step.skipped]
    assert skipped
    assert [step.loss_scale for step in skipped] == [2.0 ** (16 - i) for i in range(len(skipped))]
    assert all(step.nonfinite_gradients for step in skipped)


def test_an_xray_compares_gradients_without_float64_on_the_device() -> None:
    (taken,) = log_of(prepare(Tiny(epochs=2), device="auto"), at={4: XRayRequest()}).of(XRayTaken)
    cosines = [layer.cosine for layer in taken.layers if layer.cosine is not None]
    assert cosines
    assert all(cosine > 0.9 for cosine in cosines)


def test_float8_is_refused_on_it() -> None:
    assert {"fp8", "fp8-emulated"} <= prepare(Tiny(), device="auto").unsupported.keys()


def test_operands_of_float8_products_are_measured_without_float64_on_the_device() -> None:
    operand, scale = torch.randn(8, 16), torch.tensor(50.0)
    there = operand_numbers(operand.to(PLAIN), scale.to(PLAIN), "e4m3")
    assert there.is_cpu
    assert torch.equal(there, operand_numbers(operand, scale, "e4m3"))


def test_a_stopped_run_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    whole = losses(log_of(prepare(Tiny(epochs=4), device="auto")))
    control = Control()
    first = Log(stopping(control, 10))
    train(prepare(Tiny(epochs=4), device="auto"), first, control, checkpoints=tmp_path)
    assert first.of(CheckpointWritten)
    second = Log()
    resume(prepare(Tiny(epochs=4), device="auto"), tmp_path, second)
    assert losses(first) + losses(second) == whole
