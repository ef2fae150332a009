"""What a rank measures, and what rank 0 makes of all ranks' numbers."""

import math

import pytest

from amptui.ranks.agreement.rows import RankNumbers, RankRow, RankRows
from amptui.ranks.numbers.meter import RankMeter, RankReport
from amptui.records.ranks import RanksDisagree, RanksSampled, RankValue
from amptui.records.samples import GpuSample
from amptui.records.steps import StepRecord, Steps
from tests.single_steps import in_blocks
from tests.telemetry.record_samples import step
from tests.tiny import Log, Tiny, prepare, train


def rows(*numbers: RankNumbers) -> RankRows:
    return RankRows([RankRow(1, each.last_step, numbers=each).values() for each in numbers])


def test_a_meter_takes_the_means_of_the_steps_since_it_was_read() -> None:
    log, meter = Log(), RankMeter()
    train(prepare(Tiny(epochs=1), precision="fp16"), log)
    steps = log.of(StepRecord)
    for record in in_blocks(log):
        meter.add(record)
    numbers = meter.take_numbers(compute_seconds=0.5, peak_bytes=7)
    assert numbers.steps == len(steps)
    assert numbers.last_step == steps[-1].step
    seconds = [each.step_seconds for each in steps if each.step_seconds is not None]
    assert numbers.step_seconds == pytest.approx(sum(seconds) / len(seconds))
    assert numbers.skipped == sum(each.skipped for each in steps)
    assert numbers.loss_scale == steps[-1].loss_scale
    assert (numbers.compute_seconds, numbers.peak_bytes) == (0.5, 7)
    later = meter.take_numbers(compute_seconds=None, peak_bytes=None)
    assert later.steps == 0
    assert later.skipped == numbers.skipped
    assert math.isnan(later.step_seconds)
    assert math.isnan(later.compute_seconds)


def test_a_sample_has_the_means_over_its_exchanges_and_nothing_that_was_not_measured() -> None:
    log = Log()
    report = RankReport(log.emit)
    report.take(rows(RankNumbers(), RankNumbers()))  # before the first step there is nothing to tell
    assert log == []
    fast = RankNumbers(steps=2, last_step=2, step_seconds=0.2, compute_seconds=0.1)
    slow = fast._replace(compute_seconds=0.15, grad_norm=1.5, skipped=3)
    report.take(rows(fast, slow))
    (sample,) = log.of(RanksSampled)
    assert (sample.step, sample.steps, sample.world_size, sample.ranks) == (2, 2, 2, (0, 1))
    assert sample.step_seconds == (0.2, 0.2)
    assert sample.compute_seconds == (0.1, 0.15)
    assert sample.data_seconds == sample.peak_allocated_bytes == ()
    assert sample.grad_norm == (None, 1.5)
    assert sample.skipped == (0, 3)


def test_the_last_steps_are_told_however_soon_after_the_last_sample() -> None:
    log = Log()
    report = RankReport(log.emit)
    numbers = RankNumbers(steps=2, last_step=2, step_seconds=0.2)
    for last_step in (2, 4, 6):
        report.take(rows(numbers._replace(last_step=last_step), numbers))
    assert [each.step for each in log.of(RanksSampled)] == [2]
    for _ in range(2):
        report.close()
    assert [(each.step, each.steps) for each in log.of(RanksSampled)] == [(2, 2), (6, 4)]


def test_each_rank_tells_of_its_own_gpu() -> None:
    log, meter = Log(), RankMeter()
    meter.add(Steps.of(step(1)))
    hot = GpuSample(
        uuid="GPU-1",
        memory_used_bytes=5,
        sm_clock_mhz=1200.0,
        clocks_event_reasons=("thermal (hw)", "power cap"),
    )
    numbers = meter.take_numbers(compute_seconds=None, peak_bytes=None, gpu=hot)
    silent = meter.take_numbers(compute_seconds=None, peak_bytes=None, gpu=GpuSample(uuid="GPU-0"))
    RankReport(log.emit).take(rows(silent._replace(steps=1, last_step=1), numbers))
    (sample,) = log.of(RanksSampled)
    assert sample.memory_used_bytes == (None, 5)
    assert sample.sm_clock_mhz == (None, 1200.0)
    assert sample.throttled == {"thermal (hw)": (1,), "power cap": (1,)}


def test_a_scale_that_differs_is_told_once_and_again_when_it_is_equal() -> None:
    log = Log()
    report = RankReport(log.emit)
    same = RankNumbers(steps=1, last_step=4, loss_scale=1024.0)
    other = same._replace(loss_scale=512.0)
    for last in (same, other, other, same):
        report.take(rows(same, same, last))
    first, second = log.of(RanksDisagree)
    assert (first.what, first.count, first.most) == ("loss scale", 1, 1024.0)
    assert first.others == (RankValue(rank=2, value=512.0),)
    assert (second.what, second.count) == ("loss scale", 0)


def test_a_step_that_one_rank_alone_skipped_is_told() -> None:
    log = Log()
    report = RankReport(log.emit)
    report.take(rows(*[RankNumbers(steps=1, last_step=4, skipped=2)] * 3))
    report.take(rows(*[RankNumbers(steps=1, last_step=5, skipped=2)] * 2, RankNumbers(1, 5, skipped=3)))
    (told,) = log.of(RanksDisagree)
    assert (told.what, told.most) == ("found_inf", 0.0)
    assert told.others == (RankValue(rank=2, value=1.0),)


def test_weights_are_compared_once_all_hashes_of_a_step_are_there() -> None:
    log = Log()
    report = RankReport(log.emit)
    before = RankNumbers(steps=1, last_step=9)
    report.take(rows(before, before, before))
    hashed = RankNumbers(steps=1, last_step=12, hashed_step=9, weights_hash=77.0)
    report.take(rows(hashed, hashed, before))  # on a GPU a hash arrives later
    assert log.of(RanksDisagree) == []
    other = hashed._replace(weights_hash=78.0)
    for _ in range(2):
        report.take(rows(hashed, hashed, other))
    (told,) = log.of(RanksDisagree)
    assert (told.what, told.step, told.count, told.most) == ("weights", 9, 1, 77.0)
    assert told.others == (RankValue(rank=2, value=78.0),)
    lacking = hashed._replace(hashed_step=20, weights_hash=math.nan)  # for lack of memory
    report.take(rows(lacking, lacking, lacking))
    again = hashed._replace(hashed_step=30)
    report.take(rows(again, again, again))
    assert [(each.step, each.count) for each in log.of(RanksDisagree)[1:]] == [(30, 0)]


def test_ranks_after_different_steps_are_not_compared() -> None:
    log = Log()
    before = RankNumbers(steps=1, last_step=4, loss_scale=1024.0)
    RankReport(log.emit).take(rows(before, before._replace(last_step=5, loss_scale=512.0)))
    assert log.of(RanksDisagree) == []
