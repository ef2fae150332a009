"""Numbers on their way from the device to the host, and the records that become of them."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from amptui.device.readback import open_readback
from amptui.monitor.reporting import StepReporter
from amptui.monitor.step_rows import Step
from amptui.probes.gradients import GradientProbe
from tests.builders import StepRow
from tests.loops.clock import Clock
from tests.tiny import Log

MODEL = nn.Linear(1, 1)  # two gradients of one element each: weight, bias


def reporter() -> tuple[StepReporter, Log]:
    log = Log()
    return StepReporter(log.emit, GradientProbe(MODEL)), log


def measured(weight: float, bias: float) -> list[float]:
    """What the probe says of these two gradients, as the readback delivers it."""
    MODEL.weight.grad, MODEL.bias.grad = torch.tensor([[weight]]), torch.tensor([bias])
    row: list[float] = GradientProbe(MODEL).measure().tolist()
    return row


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.booleans()), min_size=1))
def test_a_step_ends_after_the_one_before_and_when_its_time_is_over(
    steps: list[tuple[float, float, float, bool]],
) -> None:
    """Each step: seconds of a look before it, of waiting for data, of computing; whether it is timed."""
    reports, log = reporter()
    gradients, now, ends = measured(3.0, 4.0), 100.0, []
    for look_seconds, data_seconds, compute_seconds, is_timed in steps:
        began, load_start = now, now + look_seconds
        now = load_start + data_seconds + compute_seconds
        step = Step()
        step.load_start, step.data_seconds = load_start, data_seconds
        reports.steps([(step, [1.0, *gradients], now - began if is_timed else None)])
        ends.append((load_start + data_seconds, now))
    record_times = [record.time - reports._clock_ahead for record in log.of(StepRow)]
    assert record_times == sorted(record_times)
    # To a microsecond, which is what a float64 has left of seconds since 1970.
    assert all(
        low - 1e-6 <= moment <= high + 1e-6 for moment, (low, high) in zip(record_times, ends, strict=True)
    )


A_SECOND_IN_CYCLES = 2_000_000_000
"""More or less: long beside what the host does meanwhile."""


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
def test_a_full_ring_drops_rows_instead_of_waiting() -> None:
    ring = open_readback(torch.device("cuda", 0), clock=Clock(), capacity=8)
    delivered: list[tuple[list[float] | None, float | None]] = []

    def push(number: float) -> None:
        def deliver(row: Sequence[float] | None, seconds: float | None) -> None:
            delivered.append((None if row is None else list(row), seconds))

        ring.push([torch.full((3,), number, device="cuda")], deliver, timed=True)

    push(0)
    ring.flush()  # the pinned rows are there
    event = torch.cuda.Event()
    torch.cuda._sleep(A_SECOND_IN_CYCLES)
    event.record()
    for number in range(1, 21):
        push(number)
        ring.drain()
    assert not event.query(), "the host waited for the device"
    ring.flush()
    assert [row for row, _ in delivered] == [*([float(i)] * 3 for i in range(8)), *[None] * 13]
    push(21)
    push(22)
    ring.flush()
    # The step before was dropped, so this one's start is not known; from the next on it is.
    assert [row for row, _ in delivered[-2:]] == [[21.0] * 3, [22.0] * 3]
    assert [seconds is None for _, seconds in delivered[-2:]] == [True, False]
