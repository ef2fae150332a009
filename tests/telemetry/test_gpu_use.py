"""Joules a sample: what two looks at the counter may be blamed on, and what they may not."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from amptui.records.run import PauseChanged, PhaseChanged, PrecisionChanged, Record, RunStarted
from amptui.records.samples import DeviceSample
from amptui.telemetry.gpu_use import MIN_SECONDS, EnergySpent, EnergySum, EnergyWatch
from tests.builders import fold
from tests.telemetry.record_samples import device, run, steps, traced, xray


def look(time: float, joules: float | None, precision: str = "fp32") -> DeviceSample:
    return device(time, precision, None, energy_joules=joules)


def spent(joules: float, samples: int, seconds: float = 1.0, precision: str = "fp32") -> EnergySpent:
    return EnergySpent(precision=precision, joules=joules, seconds=seconds, samples=samples)


def watched(
    looks: Sequence[tuple[DeviceSample, int]],
    *,
    started: RunStarted | None = None,
    resting: Sequence[int] = (),
) -> list[EnergySpent | None]:
    """What each look and its count of samples tell; at the places in ``resting`` nothing trains."""
    watch = EnergyWatch()
    return [
        watch.add(sample, started or run(), training=place not in resting, samples_trained=samples)
        for place, (sample, samples) in enumerate(looks)
    ]


# ------------------------------------------------------------------------------------ one look


def test_a_look_while_nothing_trains_ends_nothing_and_begins_nothing() -> None:
    looks = [(look(float(t), 100.0 * t), 64 * t) for t in range(6)]
    spans = watched(looks, resting=[2])
    assert [item is not None for item in spans] == [False, True, False, False, True, True]


def test_a_counter_that_went_back_tells_nothing_until_the_look_after() -> None:
    looks = [(look(1.0, 5000.0), 0), (look(2.0, 3.0), 64), (look(3.0, 203.0), 128)]
    assert watched(looks) == [None, None, spent(200.0, 64)]


@pytest.mark.parametrize("joules", [None, math.nan, math.inf])
def test_a_counter_that_is_no_number_tells_nothing(joules: float | None) -> None:
    looks = [(look(1.0, 0.0), 0), (look(2.0, joules), 64), (look(3.0, 200.0), 128), (look(4.0, 300.0), 192)]
    assert watched(looks) == [None, None, None, spent(100.0, 64)]


def test_without_a_known_training_gpu_or_an_allocator_there_is_no_energy() -> None:
    looks = [(look(float(t), 100.0 * t), 64 * t) for t in range(3)]
    assert watched(looks, started=run(gpu_uuid=None)) == [None] * 3
    assert watched([(replace(sample, allocator=None), count) for sample, count in looks]) == [None] * 3


@example([(1.0, 300.0, 0), (1.0, 300.0, 64), (1.5, 50.0, 64)])  # the first in the middle of a long step
@given(
    st.lists(st.tuples(st.floats(0, 10), st.floats(0, 1e4), st.integers(0, 10**6)), min_size=1, max_size=30)
)
def test_looks_without_an_interruption_add_up_to_the_whole(parts: list[tuple[float, float, int]]) -> None:
    first = now = (100.0, 1e6, 7)
    looks, whole = [first], first
    for part_seconds, part_joules, part_samples in parts:
        now = (now[0] + part_seconds, now[1] + part_joules, now[2] + part_samples)
        looks.append(now)
        whole = now if part_samples else whole
    result = [item for item in watched([(look(t, joules), count) for t, joules, count in looks]) if item]
    assert len(result) == sum(count > 0 for _, _, count in parts)
    assert sum(item.seconds for item in result) == pytest.approx(whole[0] - first[0])
    assert sum(item.joules for item in result) == pytest.approx(whole[1] - first[1], abs=1e-6)
    assert sum(item.samples for item in result) == whole[2] - first[2]


# ------------------------------------------------------------------------------------ their sum


def test_a_few_looks_say_nothing() -> None:
    total = EnergySum()
    assert total.joules_per_1000_samples() is None
    total.add(spent(100.0, 1000, seconds=MIN_SECONDS - 0.5))
    assert total.joules_per_1000_samples() is None
    total.add(spent(300.0, 1000, seconds=0.5))
    assert total.joules_per_1000_samples() == pytest.approx(200.0)


# ------------------------------------------------------------------------------------ in a whole run


def second(number: int, watts: float, precision: str = "fp32", **changes: object) -> list[Record]:
    """A second's 100 steps of 256 samples and then a look, in a run that always takes ``watts``."""
    first = 100 * number + 1
    return [
        *steps(first, first + 99, precision=precision, **changes),
        look(100.0 + number, 1e6 + watts * number, precision),
    ]


def energies(*records: Record) -> dict[str, float | None]:
    session = fold([run(), *records])
    return {row.precision: row.joules_per_1000_samples for row in session.view().comparison.rows}


def flat(seconds: Sequence[list[Record]]) -> list[Record]:
    return [record for part in seconds for record in part]


def test_each_precision_has_its_own_energy_after_ten_seconds_of_looks() -> None:
    fp32 = flat([second(number, 512.0) for number in range(12)])
    switch = PrecisionChanged(time=112.0, step=1201, previous="fp32", current="fp16")
    fp16 = flat([second(number, 256.0, "fp16") for number in range(12, 22)])
    assert energies(*fp32, switch, *fp16) == {"fp32": pytest.approx(20.0), "fp16": None}
    last = second(22, 256.0, "fp16")
    assert energies(*fp32, switch, *fp16, *last) == {"fp32": pytest.approx(20.0), "fp16": pytest.approx(10.0)}


INTERRUPTED: list[list[Record]] = [
    [PauseChanged(time=1.0, step=1, paused=True), PauseChanged(time=1.0, step=1, paused=False)],
    [PhaseChanged(time=1.0, phase="validating"), PhaseChanged(time=1.0, phase="training")],
    [
        PrecisionChanged(time=1.0, step=1, previous="fp32", current="fp16"),
        PrecisionChanged(time=1.0, step=1, previous="fp16", current="fp32"),
    ],
    [xray(1)],
    [traced(1)],
    [run()],
]


@pytest.mark.parametrize("interruption", INTERRUPTED, ids=lambda records: type(records[0]).__name__)
def test_what_passes_between_two_looks_still_interrupts_the_training(interruption: list[Record]) -> None:
    looks = [second(number, 512.0) for number in range(int(MIN_SECONDS) + 1)]
    assert energies(*flat(looks)) == {"fp32": pytest.approx(20.0)}
    looks[5] = [*interruption, *looks[5]]
    assert energies(*flat(looks)) == {"fp32": None}, "a second of the ten is missing"
    more = second(len(looks), 512.0)
    assert energies(*flat(looks), *more) == {"fp32": pytest.approx(20.0)}


def test_settling_steps_are_left_out() -> None:
    settling = flat([second(number, 512.0, settling=True, samples=1) for number in range(3)])
    settled = flat([second(number, 512.0) for number in range(3, 14)])
    assert energies(*settling, *settled) == {"fp32": pytest.approx(20.0)}
