"""A run that outlives its process: checkpoints, another process that goes on, screens that come and go."""

import math
from dataclasses import replace
from typing import Any, Literal

import pytest

from amptui.diagnosis.event_words import event_text
from amptui.records.findings import PhaseSeconds, StepTimed
from amptui.records.keeping import CheckpointWritten, KeepingChanged, ViewersChanged, WeightsSaved
from amptui.records.run import (
    EpochFinished,
    PauseChanged,
    PhaseChanged,
    Record,
    RunFailed,
    RunFinished,
    Validation,
)
from amptui.telemetry.session import Session
from amptui.telemetry.view import EMPTY_VIEW, PrecisionSwitch, SessionView
from tests.builders import make_switch as switch
from tests.telemetry.memory_samples import memory
from tests.telemetry.record_samples import backoff, compared, device, growth, resumed, run, skip, step, steps

VALIDATION = Validation(loss=0.4, accuracy=None, samples=8)


def view_of(*records: Record) -> SessionView:
    session = Session()
    session.fold(records)
    return session.view()


def newest_text(*records: Record) -> str:
    return event_text(view_of(*records).events[0])


def checkpoint(number: int, **changes: Any) -> CheckpointWritten:
    record = CheckpointWritten(
        time=100 + number / 1000,
        step=number,
        name=f"step-{number:09}.pt",
        size_bytes=12 * 2**20,
        reason="interval",
        blocked_seconds=0.012,
        seconds=0.41,
    )
    return replace(record, **changes)


def viewers(
    change: Literal["attached", "detached", "hung up", "lost", "refused"], count: int, detail: str = ""
) -> ViewersChanged:
    return ViewersChanged(time=101.0, viewers=count, change=change, detail=detail)


DONE = RunFinished(time=105.0, steps=50, seconds=5.0, reason="done")
STOPPED = replace(DONE, reason="stopped")
FAILED = RunFailed(time=105.0, step=50, error="out of memory", traceback="...")


# ------------------------------------------------------------------------------------- events


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (
            checkpoint(1200),
            "checkpoint step-000001200.pt: 12.0 MiB in 410 ms, training blocked for 12.0 ms",
        ),
        (
            checkpoint(1200, seconds=83.0),
            "checkpoint step-000001200.pt: 12.0 MiB in 1:23, training blocked for 12.0 ms",
        ),
        (
            WeightsSaved(time=101.0, step=1200, path="mine.pt", averaged=True),
            "averaged weights saved to mine.pt",
        ),
        (resumed(1200), "resumed after step 1,200 from step-000001200.pt on NVIDIA H200"),
        (
            resumed(12, lost_steps=1),
            "resumed after step 12 from step-000000012.pt on NVIDIA H200; 1 step is repeated",
        ),
        (
            resumed(12, lost_steps=1037),
            "resumed after step 12 from step-000000012.pt on NVIDIA H200; 1,037 steps are repeated",
        ),
        (viewers("attached", 1), "screen attached, 1 watching"),
        (viewers("attached", 2), "screen attached, 2 watching"),
        (viewers("detached", 0), "screen detached; training continues, 0 watching"),
        (viewers("hung up", 0), "terminal closed; training continues, 0 watching"),
        (viewers("lost", 1), "screen disconnected; training continues, 1 watching"),
        (viewers("refused", 1, "user 7"), "connection refused: user 7, 1 watching"),
    ],
)
def test_each_record_has_its_line(record: Record, text: str) -> None:
    event = view_of(run(), record).events[0]
    assert (event_text(event), event.kind, event.severity) == (text, "note", "info")


def test_another_device_is_named_with_what_follows_from_it() -> None:
    text = newest_text(run(), resumed(7, device_name="CPU", lost_steps=2))
    assert text.endswith("on CPU (previously NVIDIA H200): the comparison restarts; 2 steps are repeated")


def test_a_restart_by_the_launcher_is_a_warning_with_its_number_and_cause() -> None:
    cause = "rank 1 was killed: pid 7 is gone"
    event = view_of(run(), resumed(12, restarts=2, cause=cause)).events[0]
    assert event.severity == "warning"
    assert event_text(event).startswith(f"restart 2, {cause}: resumed after step 12 from ")
    assert "started from the beginning" in newest_text(run(), resumed(0, checkpoint="", restarts=1))


def test_another_number_of_ranks_is_known_after_a_resume() -> None:
    reference = run(world_size=4, parallel="ddp", batch_size=8, global_batch_size=32)
    alone = resumed(12, world_size=1, parallel="", batch_size=32)
    two = resumed(14, world_size=2, parallel="ddp", batch_size=16, global_batch_size=32)
    for records, expected in (
        ((reference, resumed(12)), (4, "ddp", 8, 32)),
        ((reference, alone), (1, "", 32, None)),
        ((reference, alone, two), (2, "ddp", 16, 32)),
    ):
        result = view_of(*records).run
        assert result is not None
        assert (result.world_size, result.parallel, result.batch_size, result.global_batch_size) == expected


def test_a_journal_that_begins_with_a_resume_knows_of_no_other_device() -> None:
    assert newest_text(resumed(12)) == "resumed after step 12 from step-000000012.pt on NVIDIA H200"


def test_weights_are_those_of_this_end_of_the_run() -> None:
    weights = WeightsSaved(time=102.0, step=20, path="/home/me/mine.pt", averaged=False)
    assert view_of(run(), weights).weights == weights
    assert view_of(run(), weights, resumed(20)).weights is None


def test_the_newest_checkpoint_and_the_screens_are_known() -> None:
    view = view_of(run(), checkpoint(10), checkpoint(20), viewers("attached", 1), viewers("attached", 2))
    assert (view.checkpoint, view.viewers) == (checkpoint(20), 2)
    assert (EMPTY_VIEW.checkpoint, EMPTY_VIEW.viewers) == (None, 0)


def test_what_is_not_kept_is_known_until_it_is_kept_again() -> None:
    full = KeepingChanged(time=101.0, what="journal", trouble="journal: no space left on device")
    later = KeepingChanged(time=102.0, what="checkpoints", trouble="no checkpoint in runs/x/checkpoints")
    view = view_of(run(), full, later)
    assert view.not_kept == (full, later)
    assert [event.severity for event in view.events[:2]] == ["error", "error"]
    again = view_of(run(), full, later, replace(full, trouble=""))
    assert again.not_kept == (later,)
    assert event_text(again.events[0]) == "saving the journal again"
    assert view_of(run(), full, later, resumed(1)).not_kept == ()


def test_a_process_that_goes_on_has_no_screens_yet() -> None:
    assert view_of(run(), viewers("attached", 2), resumed(5)).viewers == 0


# -------------------------------------------------------------------------------------- state


@pytest.mark.parametrize(
    "before",
    [
        [],
        [DONE],
        [STOPPED],
        [FAILED],
        [PauseChanged(time=104.0, step=50, paused=True, reason="the loss scale fell")],
        [PhaseChanged(time=104.0, phase="stopping", detail="writing the checkpoint")],
    ],
)
def test_a_resumed_run_runs_whatever_it_was_before(before: list[Record]) -> None:
    view = view_of(run(), *steps(1, 50), *before, resumed(50), *steps(51, 60, time=901.0))
    assert (view.state, view.outcome, view.pause_reason, view.phase) == ("running", None, "", None)
    assert view.step == view.loss.count == 60


def test_a_resumed_run_trains_where_the_other_process_says() -> None:
    view = view_of(run(), resumed(5, device="cpu", device_name="CPU", gpu_uuid=None, precision="bf16"))
    assert view.run == run(device="cpu", device_name="CPU", gpu_uuid=None)
    assert view.precision == "bf16"


def test_a_run_that_was_made_longer_ends_later() -> None:
    reference = view_of(run(), *steps(1, 5), resumed(5, total_epochs=99, total_steps=9900)).run
    assert reference is not None
    assert (reference.total_epochs, reference.total_steps) == (99, 9900)
    unknown = view_of(run(), *steps(1, 5), resumed(5, total_epochs=None, total_steps=None)).run
    assert unknown is not None
    assert (unknown.total_epochs, unknown.total_steps) == (run().total_epochs, run().total_steps)


def test_a_comparison_that_its_process_never_ended_is_over() -> None:
    going = compared(40, over=False, reason="running")
    view = view_of(run(), *steps(1, 50), going, resumed(50), switch(51, "fp32", "fp16"))
    assert view.compared is None
    assert event_text(view.events[0]) == "FP32 → AMP fp16", "switches are told again"
    assert view_of(run(), compared(40), resumed(50)).compared == compared(40), "a result stays"
    assert view_of(run(), going, run(time=900.0)).compared is None


# -------------------------------------------------------------------------- steps done again


def test_lost_steps_are_forgotten_at_once() -> None:
    epoch = EpochFinished(time=105.0, step=45, epoch=1, seconds=1.0, mean_loss=0.5, validation=VALIDATION)
    session = Session()
    session.fold([run(), *steps(1, 50, loss=9.0), checkpoint(30), checkpoint(44), epoch])
    session.fold([resumed(40, lost_steps=10)])
    view = session.view()
    assert (view.step, view.loss.last_step, len(view.loss.recent)) == (40, 40, 40)
    assert (view.last, view.validated, view.checkpoint) == (None, None, None)
    session.fold(steps(41, 42, loss=1.0, time=901.0))
    view = session.view()
    assert view.loss.recent.tolist() == [9.0] * 40 + [1.0] * 2
    assert view.last == step(42, loss=1.0, time=901.0)


def test_what_came_before_the_checkpoint_stays() -> None:
    epoch = EpochFinished(time=105.0, step=40, epoch=1, seconds=1.0, mean_loss=0.5, validation=VALIDATION)
    view = view_of(run(), *steps(1, 40), checkpoint(40), epoch, resumed(40))
    assert (view.step, view.last, view.validated, view.checkpoint) == (40, step(40), epoch, checkpoint(40))


def test_a_resume_before_all_that_is_known_starts_the_curves_anew() -> None:
    view = view_of(run(), *steps(500, 600, epoch=3), resumed(300))
    assert (view.step, view.loss.count) == (0, 0)
    view = view_of(run(), *steps(500, 600, epoch=3), resumed(300), *steps(301, 310, epoch=2))
    assert (view.loss.first_step, view.step, view.epoch_step) == (301, 310, 310 - 234)


def test_switches_of_lost_steps_are_forgotten() -> None:
    records: list[Record] = [
        run(),
        *steps(1, 40),
        switch(41, "fp32", "fp16"),
        *steps(41, 50, precision="fp16"),
    ]
    view = view_of(*records, resumed(30))
    assert (view.switches, view.precision) == ((PrecisionSwitch(1, "fp32"),), "fp32")
    view = view_of(*records, resumed(45, precision="fp16"), *steps(46, 50, precision="fp16"))
    assert view.switches == (PrecisionSwitch(1, "fp32"), PrecisionSwitch(41, "fp16"))
    view = view_of(*records, resumed(30, precision="bf16"), *steps(31, 35, precision="bf16"))
    assert view.switches == (PrecisionSwitch(1, "fp32"), PrecisionSwitch(31, "bf16"))


def test_the_scale_of_lost_steps_is_forgotten() -> None:
    scaled = steps(1, 50, precision="fp16")
    records: list[Record] = [run(), *scaled, skip(45), backoff(45, 65536.0), growth(48, 32768.0)]
    view = view_of(*records, resumed(40, precision="fp16"))
    assert (view.scaler.scale, view.scaler.last_change) == (None, None)
    view = view_of(*records, resumed(40, precision="fp16"), step(41, precision="fp16", loss_scale=65536.0))
    assert view.scaler.scale == 65536.0
    view = view_of(*records, resumed(50, precision="fp16"))
    assert (view.scaler.scale, view.scaler.last_change) == (65536.0, growth(48, 32768.0))


@pytest.mark.parametrize("steps_per_epoch", [30, None])
def test_the_place_in_the_epoch_is_known_on_both_sides_of_a_resume(steps_per_epoch: int | None) -> None:
    started = run(steps_per_epoch=steps_per_epoch)
    reference: list[Record] = [started, *steps(1, 30), *steps(31, 50, epoch=2)]
    view = view_of(*reference, resumed(50))
    assert (view.epoch, view.epoch_step) == (2, 20)
    view = view_of(*reference, resumed(50), *steps(51, 55, epoch=2))
    assert (view.epoch, view.epoch_step) == (2, 25)
    view = view_of(*reference, resumed(40), *steps(41, 45, epoch=2))
    assert (view.epoch, view.epoch_step) == (2, 15)
    view = view_of(*reference, resumed(20), *steps(21, 30), *steps(31, 32, epoch=2))
    assert (view.epoch, view.epoch_step) == (2, 2)
    view = view_of(*reference, resumed(20), *steps(21, 24))
    assert (view.epoch, view.epoch_step) == (1, 24)


# ---------------------------------------------------------------------- what is measured in time


def test_the_time_left_is_told_by_steps_of_the_new_process_alone() -> None:
    session = Session()
    session.fold([run(total_steps=100), *steps(1, 50, step_seconds=2.0)])
    assert session.view().eta_seconds == pytest.approx(100.0)
    session.fold([resumed(50)])
    view = session.view()
    assert (view.eta_seconds, view.step_seconds, view.samples_per_second) == (None, None, None)
    session.fold(steps(51, 60, step_seconds=0.5, time=901.0))
    assert session.view().eta_seconds == pytest.approx(20.0)


def test_no_look_spans_two_processes() -> None:
    """A utilization of one second, and joules between two looks: the device did other things meanwhile."""
    session = Session()
    looks: list[Record] = []
    for second in range(12):
        looks.append(device(110.0 + second, "fp32", None, 50.0, 100.0 * second))
        looks.append(step(second + 1, time=110.5 + second))
    session.fold([run(), *looks])
    before = session.view().comparison
    session.fold([resumed(12), device(901.0, "fp32", None, 100.0, 1e6), *steps(13, 14)])
    row, row_before = session.view().comparison.rows[0], before.rows[0]
    assert row.utilization_percent == row_before.utilization_percent == 50.0
    assert row.joules_per_1000_samples == row_before.joules_per_1000_samples
    session.fold([device(902.0, "fp32", None, 100.0, 1e6 + 512.0)])
    row = session.view().comparison.rows[0]
    assert row.utilization_percent == pytest.approx((11 * 50 + 100) / 12)
    assert row.joules_per_1000_samples == pytest.approx(1000 * (1100 + 512) / (11 * 256 + 512))


TIMED = StepTimed(
    time=100.0,
    step=1,
    precision="fp32",
    settling=False,
    phases=(PhaseSeconds(name="forward", host_seconds=1e-3, device_seconds=None),),
)


def test_two_devices_are_not_compared() -> None:
    measured: list[Record] = [
        run(),
        *steps(1, 50),
        TIMED,
        memory("fp32", activations=1, peak=10**9),
        compared(40),
    ]
    same = view_of(*measured, resumed(50))
    assert len(same.comparison.rows) == len(same.timings) == len(same.memory) == 1
    assert same.compared is not None
    other = view_of(*measured, resumed(50, device_name="CPU", device="cpu", gpu_uuid=None))
    assert (other.comparison.rows, other.timings, other.memory, other.compared) == ((), (), (), None)
    assert other.comparison.missing == "steps"
    assert other.loss.count == 50, "the curves are of the run"
    again = view_of(
        *measured, resumed(50, device_name="CPU"), step(51, precision="bf16"), replace(TIMED, step=52)
    )
    assert [row.precision for row in again.comparison.rows] == ["bf16"]
    assert [timing.steps for timing in again.timings] == [1]


def test_a_resume_with_times_that_are_no_times_is_taken() -> None:
    view = view_of(run(), step(1), resumed(1, time=math.nan), step(2, time=math.inf), step(3, time=500.0))
    assert view.elapsed_seconds == pytest.approx(0.001)
