"""When the trainer looks closer, what it then tells, and that the training does not notice."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from amptui.monitor.divergence_guard import MIN_LOSS_SCALE
from amptui.probes.buffers import BUFFERS_GAP_STEPS
from amptui.probes.gradients import GradientProbe
from amptui.probes.probe import Cadence
from amptui.probes.schedule import Probes
from amptui.probes.snapshot import Snapshot
from amptui.probes.step_timer import StepTimer
from amptui.records.answers import RequestMade
from amptui.records.control import Control
from amptui.records.findings import Float16Window, ModulesTraced, StepTimed, XRayTaken
from amptui.records.run import NonFinite, Note, PauseChanged, PrecisionChanged, Record, StepSkipped
from tests.builders import StepRow
from tests.loops.clock import Clock
from tests.tiny import Log, Spoiled, Tiny, log_of, no_waits, prepare, train


@given(
    st.floats(1e-4, 1.0), st.floats(1e-5, 1.0), st.floats(0.001, 0.5), st.integers(50, 400), st.integers(1, 2)
)
def test_measuring_stays_within_the_budget(
    step_seconds: float, cost_seconds: float, budget: float, steps: int, free: int
) -> None:
    clock = Clock()
    cadence = Cadence(budget, free=free, clock=clock)
    began, spent = clock.now, 0.0
    for _ in range(steps):
        clock.now += step_seconds
        if cadence.due():
            start = clock.now
            clock.now += cost_seconds
            cadence.charge_since(start)
            spent += cost_seconds
    # The first ones are not paid for beforehand.
    assert spent - free * cost_seconds <= budget * (clock.now - began) + 1e-9
    # Nor is the budget left unused: after each measurement for as long as that pays for, and a step.
    longest_wait = cost_seconds / budget + step_seconds
    measurements = spent / cost_seconds
    assert clock.now - began - spent <= (measurements + 1) * longest_wait + step_seconds + 1e-9


@pytest.mark.gpu
def test_on_a_gpu_the_device_needs_longer_than_the_host_enqueues() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    device = torch.device("cuda")
    timed_steps = list[StepTimed]()
    timeline = StepTimer(device, timed_steps.append)
    torch.cuda._sleep(1)  # loaded now, which may wait
    with no_waits():
        for step in range(1, 4):
            timeline.drain()
            timeline.begin(step, "fp32", False, 0.0)
            timeline.mark("input")
            for _ in range(2):  # of two batches
                torch.cuda._sleep(250_000_000)  # an eighth of a second, more or less
                timeline.mark("forward")
            timeline.mark("optimizer")
        timeline.flush()
    assert [phase.name for phase in timed_steps[0].phases] == ["input", "forward", "optimizer"]
    forward: Any = timed_steps[0].phases[1]
    assert forward.device_seconds > 10 * forward.host_seconds


def test_what_was_asked_of_a_model_that_is_replaced_is_answered() -> None:
    prepared, log = prepare(Tiny()), Log()
    precision, answers = prepared.precisions["fp32"], list[str]()
    probes = Probes(prepared.device, log.emit, gradients=GradientProbe(prepared.model))
    probes.add(prepared)
    for parameter in prepared.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    probes.window.answers.append(answers.append)
    probes.trace.answers.append(answers.append)
    probes.after_backward(1, precision, assumed_scale=65536.0)
    assert answers == []
    probes.follow(prepared)
    probes.after_backward(2, precision, assumed_scale=65536.0)
    with probes.around_step(3, precision, None):
        prepared.model(torch.ones(2, 1, 4, 4)).sum().backward()
    probes.flush()
    assert answers == ["", ""]
    assert [window.step for window in log.of(Float16Window)] == [1, 2]
    assert len(log.of(ModulesTraced)) == 1


def test_nan_in_buffers_is_found_although_the_step_was_skipped_and_a_mask_of_inf_is_meant() -> None:
    class Poisoned(Tiny):
        def build_model(self) -> nn.Module:
            model = super().build_model()
            with torch.no_grad():
                model.get_parameter("1.weight").fill_(3e4)  # beyond float16 before the batch norm
            for name, value in (("mask", 0.0), ("spoilt_mask", 0.0), ("from_a_checkpoint", math.nan)):
                model.register_buffer(name, torch.tensor([-math.inf, value]))
            return model

        def loss(self, model: nn.Module, batch: Any) -> Any:
            model.get_buffer("spoilt_mask")[1] = math.nan
            return super().loss(model, batch)

    prepared = prepare(Poisoned(), precision="fp16", steps=6)
    log = log_of(prepared)
    assert log.of(StepSkipped)[0].step == 1
    # Each is told once, not at every look.
    (found,) = [record for record in log.of(NonFinite) if record.what == "buffer"]
    assert (found.step <= 2, found.count) == (True, 4)
    kinds = dict(zip(found.names, found.kinds, strict=True))
    nans = dict.fromkeys(["from_a_checkpoint", "spoilt_mask", "2.running_var"], "nan")
    assert kinds == {"2.running_mean": "inf", **nans}
    assert found.names[-1] == "2.running_mean", "NaN comes first"
    assert not torch.isfinite(prepared.model.get_buffer("2.running_var")).all()


@pytest.mark.torch
def test_an_x_ray_in_fp32_compares_it_with_the_amp_that_ran_before() -> None:
    log = log_of(
        prepare(Tiny()),
        at={
            2: RequestMade("precision", precision="fp16"),
            4: RequestMade("precision", precision="fp32"),
            6: RequestMade("x-ray"),
        },
    )
    (xray,) = log.of(XRayTaken)
    assert (xray.step, xray.precision) == (7, "fp16")
    assert xray.loss_scale is not None


@pytest.mark.parametrize(("clip_norm", "accumulate"), [(None, 1), (1.0, 2)])
def test_some_steps_are_timed_by_phase_and_healthy_statistics_are_not_mentioned(
    clip_norm: float | None, accumulate: int
) -> None:
    """The phases of several batches are one."""
    log = log_of(prepare(Tiny(epochs=8 * accumulate), clip_norm=clip_norm, accumulate=accumulate))
    steps = {record.step: record for record in log.of(StepRow)}
    assert len(steps) > BUFFERS_GAP_STEPS
    assert log.of(NonFinite) == []
    assert log.of(StepTimed)
    names = ["input", "forward", "backward", *(["clip"] if clip_norm else []), "optimizer"]
    for record in log.of(StepTimed):
        assert [phase.name for phase in record.phases] == names
        step = steps[record.step]
        assert record.settling == step.settling
        parts = sum(phase.host_seconds for phase in record.phases)
        assert 0 < parts <= (step.step_seconds or 0) + 1e-6  # they lie within the step, apart from each other


def test_a_switch_without_memory_for_a_snapshot_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def short_of_memory(*_: object) -> Snapshot:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("amptui.probes.snapshot.Snapshot", short_of_memory)
    log = log_of(prepare(Tiny()), at={3: "bf16"})
    assert "staying in fp32" in log.of(Note)[0].text
    assert log.of(PrecisionChanged) == []


def test_fp16_restarts_its_search_after_a_collapse() -> None:
    control = Control()

    def watch(record: Record) -> None:
        if isinstance(record, PauseChanged) and record.paused:
            control.ask(RequestMade("precision", precision="bf16"))
            control.ask(RequestMade("pause", paused=False))
        if isinstance(record, StepRow) and record.step == 60:
            control.ask(RequestMade("precision", precision="fp16"))

    log = Log(watch)
    prepared = prepare(Spoiled(at=1, steps=41, value=math.inf, epochs=40), precision="fp16", steps=80)
    assert train(prepared, log, control, interactive=True) == "done"
    scales = [record.loss_scale for record in log.of(StepRow) if record.precision == "fp16"]
    assert (scales[40], scales[41]) == (MIN_LOSS_SCALE, 65536.0)
    hypothetical = [window.loss_scale for window in log.of(Float16Window) if window.precision == "bf16"]
    assert set(hypothetical) <= {65536.0}
    assert len([record for record in log.of(PauseChanged) if record.paused]) == 1
