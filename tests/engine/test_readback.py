"""Numbers on their way from the device to the host: in order, timed, and never waited for."""

from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from amptui.engine.readback import DeviceReadback, HostReadback, open_readback
from tests.engine.clock import Clock
from tests.tiny import no_waits

Delivered = list[tuple[list[float] | None, float | None]]


def into(delivered: Delivered) -> Callable[[Sequence[float] | None, float | None], None]:
    return lambda row, seconds: delivered.append((None if row is None else list(row), seconds))


rows = st.lists(
    st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=4), min_size=1, max_size=4
)


@given(rows)
def test_a_row_concatenates_its_values(values: list[list[float]]) -> None:
    delivered: Delivered = []
    readback = HostReadback(Clock())
    readback.push([torch.tensor(value) for value in values], into(delivered), timed=False)
    assert delivered == []
    readback.drain()
    assert delivered == [([x for value in values for x in value], None)]


def test_scalars_half_precision_and_tensors_with_gradients_are_accepted() -> None:
    delivered: Delivered = []
    loss = torch.tensor(2.0, requires_grad=True) * 2
    readback = HostReadback(Clock())
    readback.push(
        [loss, torch.tensor([0.5], dtype=torch.bfloat16), torch.tensor(3)], into(delivered), timed=True
    )
    readback.push([], into(delivered), timed=False)
    readback.drain()
    assert delivered == [([4.0, 0.5, 3.0], 0.0), ([], None)]


@given(st.lists(st.tuples(st.sampled_from(["step", "untimed", "gap"]), st.integers(0, 5)), max_size=12))
def test_a_step_is_timed_from_the_previous_step_or_interval(course: list[tuple[str, int]]) -> None:
    clock, delivered = Clock(), Delivered()
    readback = HostReadback(clock)
    expected, start = [], clock.now
    for what, seconds in course:
        clock.now += seconds
        if what == "gap":
            readback.begin_interval()
            start = clock.now
        else:
            readback.push([torch.zeros(1)], into(delivered), timed=what == "step")
            expected.append(clock.now - start if what == "step" else None)
            start = clock.now if what == "step" else start
    readback.drain()
    readback.flush()
    assert [seconds for _, seconds in delivered] == expected


# ---------------------------------------------------------------------------------------- CUDA

A_SECOND_IN_CYCLES = 2_000_000_000
"""More or less: long beside what the host does meanwhile."""


def on_gpu(test: Callable[..., None]) -> Callable[..., None]:
    skip = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
    marked: Callable[..., None] = pytest.mark.gpu(skip(test))
    return marked


@pytest.fixture
def ring() -> DeviceReadback:
    readback = open_readback(torch.device("cuda", 0), clock=Clock(), capacity=8)
    assert isinstance(readback, DeviceReadback)
    return readback


def value(number: float, length: int = 3) -> torch.Tensor:
    return torch.full((length,), number, device="cuda")


@on_gpu
def test_rows_arrive_in_order_with_their_values_and_the_device_s_seconds(ring: DeviceReadback) -> None:
    delivered = Delivered()
    ring.begin_interval()
    for number in range(100):
        torch.cuda._sleep(A_SECOND_IN_CYCLES // 1000)
        ring.push([value(number), value(-number, 1)], into(delivered), timed=True)
        ring.drain()
        if number % 4 == 3:
            ring.flush()
    ring.flush()
    assert [row for row, _ in delivered] == [[float(i)] * 3 + [float(-i)] for i in range(100)]
    assert all(seconds is not None and 1e-4 < seconds < 10 for _, seconds in delivered)


@on_gpu
def test_the_first_row_has_no_seconds_unless_an_interval_began(ring: DeviceReadback) -> None:
    delivered = Delivered()
    ring.push([value(1)], into(delivered), timed=True)
    ring.push([value(2)], into(delivered), timed=False)
    ring.push([value(3)], into(delivered), timed=True)
    ring.begin_interval()
    ring.push([value(4)], into(delivered), timed=True)
    ring.flush()
    # The row before the third is untimed: what it counts from may be recorded anew before it is read.
    assert [seconds is None for _, seconds in delivered] == [True, True, True, False]


@on_gpu
def test_a_full_ring_drops_rows_instead_of_waiting(ring: DeviceReadback) -> None:
    delivered = Delivered()
    ring.push([value(0)], into(delivered), timed=True)
    ring.flush()  # the pinned rows are there
    event = torch.cuda.Event()
    torch.cuda._sleep(A_SECOND_IN_CYCLES)
    event.record()
    for number in range(1, 21):
        ring.push([value(number)], into(delivered), timed=True)
        ring.drain()
    assert not event.query(), "the host waited for the device"
    ring.flush()
    assert [row for row, _ in delivered] == [*([float(i)] * 3 for i in range(8)), *[None] * 13]
    ring.push([value(21)], into(delivered), timed=True)
    ring.push([value(22)], into(delivered), timed=True)
    ring.flush()
    # The step before was dropped, so this one's start is not known; from the next on it is.
    assert [row for row, _ in delivered[-2:]] == [[21.0] * 3, [22.0] * 3]
    assert [seconds is None for _, seconds in delivered[-2:]] == [True, False]


@on_gpu
def test_pushing_and_draining_never_synchronise(ring: DeviceReadback) -> None:
    delivered = Delivered()
    ring.push([value(0)], into(delivered), timed=True)
    ring.flush()
    values = [value(float(number)) for number in range(50)]
    with no_waits():
        for row in values:
            ring.push([row], into(delivered), timed=True)
            ring.drain()
        ring.begin_interval()
    ring.flush()
    assert len(delivered) == 51


@on_gpu
def test_a_longer_row_keeps_rows_in_flight(ring: DeviceReadback) -> None:
    delivered = Delivered()
    for length in (1, 2, 30, 3):
        ring.push([value(length, length)], into(delivered), timed=False)
    ring.flush()
    assert [row for row, _ in delivered] == [[float(n)] * n for n in (1, 2, 30, 3)]
