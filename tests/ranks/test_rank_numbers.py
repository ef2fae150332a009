"""What a rank measures, what rank 0 makes of all ranks' numbers, and what of them a journal keeps."""

from typing import Any

import pytest
import torch
from torch import nn

from amptui.ranks.meter import (
    RankMeter,
    RankNumbers,
    RankReport,
)
from amptui.ranks.parallel import data_parallel
from amptui.ranks.parallel.data_parallel import ComputeTimer
from amptui.records.ranks import RanksDisagree, RanksSampled, RankValue
from amptui.records.samples import GpuSample
from tests.builders import make_step, make_steps
from tests.tiny import Log


class Reported:
    """Rank 0's report, and the records that it made."""

    def __init__(self) -> None:
        self.log = Log()
        self.report = RankReport(self.log.emit)

    def take(self, *ranks: RankNumbers) -> Log:
        del self.log[:]
        self.report.take(ranks)
        return self.log


def test_a_meter_takes_the_means_of_the_steps_since_it_was_read() -> None:
    meter = RankMeter()
    seconds, norms = [None, 0.2, None, 0.4], [1.0, 2.0, None, None]
    steps = make_steps(1, 4, step_seconds=seconds, precision="fp16", skipped=True, grad_norm=norms)
    for record in [*steps, make_step(5, step_seconds=0.6, grad_norm=None)]:
        meter.add(record)
    numbers = meter.take_numbers(compute_seconds=0.5, peak_bytes=7)
    assert (numbers.steps, numbers.last_step, numbers.skipped) == (5, 5, 4)
    assert numbers.step_seconds == pytest.approx(0.4)
    assert numbers.data_seconds == pytest.approx(1e-5)
    assert (numbers.grad_norm, numbers.compute_seconds, numbers.peak_allocated_bytes) == (2.0, 0.5, 7)
    assert numbers.loss_scale is None
    later = meter.take_numbers(compute_seconds=None, peak_bytes=None)
    assert (later.steps, later.skipped) == (0, 4)
    assert later.step_seconds is later.compute_seconds is None


def test_a_sample_has_the_numbers_of_all_ranks_and_nothing_that_was_not_measured() -> None:
    reported = Reported()
    assert reported.take(RankNumbers(), RankNumbers()) == []  # before the first step there is nothing to tell
    fast = RankNumbers(steps=2, last_step=2, step_seconds=0.2, compute_seconds=0.1)
    slow = fast._replace(compute_seconds=0.15, grad_norm=1.5, skipped=3)
    (sample,) = reported.take(fast, slow).of(RanksSampled)
    assert (sample.step, sample.steps, sample.world_size) == (2, 2, 2)
    assert sample.step_seconds == (0.2, 0.2)
    assert sample.compute_seconds == (0.1, 0.15)
    assert sample.data_seconds == sample.peak_allocated_bytes == ()
    assert sample.grad_norm == (None, 1.5)
    assert sample.skipped == (0, 3)


def test_each_rank_tells_of_its_own_gpu() -> None:
    meter = RankMeter()
    meter.add(make_step(1))
    hot = GpuSample(
        uuid="GPU-1",
        memory_used_bytes=5,
        sm_clock_mhz=1200.0,
        clocks_event_reasons=("thermal (hw)", "power cap"),
    )
    numbers = meter.take_numbers(compute_seconds=None, peak_bytes=None, gpu=hot)
    silent = meter.take_numbers(compute_seconds=None, peak_bytes=None, gpu=GpuSample(uuid="GPU-0"))
    (sample,) = Reported().take(silent._replace(steps=1, last_step=1), numbers).of(RanksSampled)
    assert sample.memory_used_bytes == (None, 5)
    assert sample.sm_clock_mhz == (None, 1200.0)
    assert sample.throttled == {"thermal (hw)": (1,), "power cap": (1,)}


SAME = RankNumbers(steps=1, last_step=4, loss_scale=1024.0, skipped=2)


@pytest.mark.parametrize(
    ("what", "lasts", "most", "value"),
    [
        ("loss scale", [{"loss_scale": 512.0}, {"loss_scale": 512.0}, {}], 1024.0, 512.0),
        ("loss scale", [{"loss_scale": None}, {"loss_scale": None}, {}], 1024.0, 0.0),
        ("found_inf", [{"skipped": 3}, {"skipped": 4}, {"skipped": 4}], 0.0, 1.0),
    ],
)
def test_what_begins_to_differ_is_told_once_and_again_when_it_is_equal(
    what: str, lasts: list[dict[str, Any]], most: float, value: float
) -> None:
    reported = Reported()
    told = []
    for step, last in enumerate(({}, *lasts), 4):
        rows = [each._replace(last_step=step) for each in (SAME, SAME, SAME._replace(**last))]
        told.append(reported.take(*rows).of(RanksDisagree))
    assert told[0] == told[2] == []
    (first,), (second,) = told[1], told[3]
    assert (first.what, first.step, first.count, first.most) == (what, 5, 1, most)
    assert first.others == (RankValue(rank=2, value=value),)
    assert (second.what, second.count, second.others) == (what, 0, ())


def test_ranks_after_different_steps_are_not_compared() -> None:
    reported = Reported()
    assert reported.take(SAME, SAME._replace(last_step=5, loss_scale=512.0)).of(RanksDisagree) == []


@pytest.mark.torch  # hooks of gradients
def test_a_cpu_is_timed_in_all_steps_from_the_first_pass_to_the_last_gradient(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, model = 0.0, nn.Linear(2, 2)
    monkeypatch.setattr(data_parallel, "perf_counter", lambda: now)
    timer = ComputeTimer(model.parameters(), torch.device("cpu"))
    assert timer.take_seconds() is None
    for batches in ((1.0,), (2.0, 1.0)):
        model.zero_grad()
        timer.begin()
        for number, seconds in enumerate(batches, 1):
            timer.ends_step = number == len(batches)
            loss = model(torch.ones(1, 2)).sum()
            now += seconds
            loss.backward()
        now += 100.0  # it waits for others
    assert timer.take_seconds() == 2.0
    assert timer.take_seconds() is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
def test_a_gpu_is_timed_in_one_step_which_is_read_once_it_is_over() -> None:
    device = torch.device("cuda", 0)
    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)]).to(device)
    inputs = torch.ones(32, 64, device=device)
    model(inputs).sum().backward()  # what a first step waits for
    timer = ComputeTimer(model.parameters(), device)

    def steps() -> None:
        for _ in range(2):
            timer.begin()
            torch.cuda._sleep(200_000_000)
            model(inputs).sum().backward()

    steps()
    assert timer.take_seconds() is None  # the device is not there yet
    torch.cuda.synchronize()
    first = timer.take_seconds()
    assert first is not None
    assert first > 0
    assert timer.take_seconds() is None
    steps()
    torch.cuda.synchronize()
    assert timer.take_seconds() is not None
