"""What keeps AMP from gaining: only what something measured shows, and nothing where AMP pays."""

from dataclasses import replace

import pytest

from amptui.records.run import PauseChanged, PhaseChanged, PrecisionChanged, Record
from amptui.telemetry.comparison import held_back_by
from amptui.telemetry.view import Comparison, PrecisionStats
from tests.builders import view_of
from tests.telemetry.record_samples import device, run, steps


def stats(precision: str, data: float | None = 0.0, busy: float | None = None) -> PrecisionStats:
    return PrecisionStats(
        precision=precision,
        steps=100,
        warm_up_steps=10,
        median_step_seconds=0.002,
        samples_per_second=1000.0,
        peak_allocated_bytes=None,
        last_loss=0.5,
        skipped=0,
        data_fraction=data,
        utilization_percent=busy,
    )


def held_back(
    data: tuple[float | None, float | None] = (0.0, 0.0),
    busy: tuple[float | None, float | None] = (None, None),
    *,
    speedup: float | None = 1.0,
) -> str:
    return held_back_by(stats("fp32", data[0], busy[0]), stats("fp16", data[1], busy[1]), speedup)


def compared(*records: Record) -> Comparison:
    return view_of(run(), *records).comparison


@pytest.mark.parametrize(
    ("data", "busy", "speedup", "reason"),
    [
        ((0.62, 0.641), (None, None), 1.0, "input"),
        ((0.0, 0.0), (60.0, 55.0), 1.0, "launch"),
        ((0.0, 0.0), (60.0, 55.0), 0.8, "launch"),
        ((0.62, 0.64), (None, None), 1.05, ""),  # AMP pays all the same
        ((0.62, 0.64), (None, None), 0.9, ""),  # waiting does not make AMP slower
        ((0.62, 0.29), (None, None), 1.0, ""),
        ((0.62, None), (None, None), 1.0, ""),
        ((0.62, 0.64), (95.0, 95.0), 1.0, ""),  # the device computes while the host waits
        ((0.0, 0.0), (60.0, 70.0), 1.0, ""),
        ((0.0, 0.0), (60.0, None), 1.0, ""),
        ((0.0, 0.0), (60.0, 60.0), 1.94, ""),
        ((0.62, 0.64), (None, None), None, ""),
    ],
)
def test_only_what_something_measured_shows_is_a_reason(
    data: tuple[float, float], busy: tuple[float, float], speedup: float | None, reason: str
) -> None:
    assert held_back(data, busy, speedup=speedup) == reason


# ------------------------------------------------------------------------------------- data's part


def test_the_data_s_part_is_of_the_counted_steps_alone() -> None:
    (row,) = compared(
        *steps(1, 10, settling=True, data_seconds=9.0),
        *steps(11, 20, step_seconds=0.004, data_seconds=0.001),
        *steps(21, 21, step_seconds=None, data_seconds=9.0),
        *steps(22, 22, step_seconds=0.006, data_seconds=None),
    ).rows
    assert row.steps == 11
    assert row.data_fraction == pytest.approx(0.25)


def test_a_wait_that_was_never_measured_has_no_part() -> None:
    (row,) = compared(*steps(1, 30, data_seconds=None)).rows
    assert row.data_fraction is None


# ------------------------------------------------------------------------------------- utilization


def test_the_utilization_is_the_mean_of_looks_without_a_switch_a_pause_or_a_validation() -> None:
    def looks(precision: str, *percents: float) -> list[Record]:
        return [device(1.0, precision, None, percent) for percent in percents]

    pause = PauseChanged(time=1.0, step=60, paused=True)
    records = [
        *steps(1, 30),
        *looks("fp32", 10.0, 50.0),  # the first has no look before it
        PrecisionChanged(time=1.0, step=31, previous="fp32", current="fp16"),
        *steps(31, 60, precision="fp16"),
        *looks("fp16", 7.0, 90.0),
        pause,
        *looks("fp16", 0.0, 0.0),
        replace(pause, paused=False),
        *looks("fp16", 3.0, 92.0),
        PhaseChanged(time=1.0, phase="validating"),
        *looks("fp16", 12.0, 12.0),
        PhaseChanged(time=1.0, phase="training"),
        *looks("fp16", 12.0),
    ]
    fp32, fp16 = compared(*records).rows
    assert fp32.utilization_percent == pytest.approx(50.0)
    assert fp16.utilization_percent == pytest.approx(91.0)


# --------------------------------------------------------------------------------- in a whole run


def test_before_there_is_a_speed_up_nothing_holds_it_back() -> None:
    slow = {"step_seconds": 0.01, "data_seconds": 0.006}
    fp32 = steps(1, 30, **slow)
    assert compared(*fp32, *steps(31, 60, precision="fp16", **slow)).held_back_by == "input"
    assert compared(*fp32, *steps(31, 49, precision="fp16", **slow)).held_back_by == ""
    assert compared(*fp32).held_back_by == ""
