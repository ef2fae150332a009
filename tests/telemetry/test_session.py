"""The session: whatever records come, in whatever order, the view says what is known and no more."""

import math
import threading
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.diagnosis.event_words import event_text
from amptui.records.run import (
    BlockFinished,
    Note,
    PauseChanged,
    PhaseChanged,
    Record,
    RunFailed,
    RunFinished,
)
from amptui.telemetry.optimizer_steps import OptimizerSteps
from amptui.telemetry.session import Session
from amptui.telemetry.view import EMPTY_VIEW, PrecisionSwitch, RunStatus, SessionView
from tests.builders import make_switch as switch
from tests.telemetry.record_samples import backoff, device, growth, run, step, steps
from tests.telemetry.record_strategies import RECORDS


def view_of(*records: Record) -> SessionView:
    session = Session()
    session.fold(records)
    return session.view()


FINISHED = RunFinished(time=105.0, steps=50, seconds=5.0, reason="done")
FAILED = RunFailed(time=105.0, step=50, error="out of memory", traceback="...")


def test_a_session_without_records_is_the_empty_view() -> None:
    view = Session("runs/a").view()
    assert view.run_dir == "runs/a"
    assert replace(view, run_dir="", comparison=EMPTY_VIEW.comparison) == EMPTY_VIEW


@pytest.mark.parametrize(
    ("records", "state"),
    [
        ([PhaseChanged(time=1.0, phase="data")], "starting"),
        ([run()], "running"),
        (steps(7, 8), "running"),
        ([run(), PauseChanged(time=101.0, step=1, paused=True)], "paused"),
        (
            [
                run(),
                PauseChanged(time=101.0, step=1, paused=True),
                PauseChanged(time=102.0, step=1, paused=False),
            ],
            "running",
        ),
        ([run(), FINISHED], "finished"),
        ([run(), FAILED], "failed"),
        ([FAILED], "failed"),
        ([run(), FINISHED, PauseChanged(time=106.0, step=50, paused=False)], "finished"),
        ([run(), FAILED, run(time=200.0)], "running"),
    ],
)
def test_the_state_follows_the_records(records: list[Record], state: str) -> None:
    view = view_of(*records)
    assert view.state == state
    assert (view.outcome is not None) == (state in ("finished", "failed"))


def test_the_reason_of_a_pause_holds_for_as_long_as_the_pause() -> None:
    paused = PauseChanged(time=101.0, step=1, paused=True, reason="at the floor")
    assert view_of(run(), paused).pause_reason == "at the floor"
    assert view_of(run(), replace(paused, reason="")).pause_reason == ""
    ends: list[Record] = [replace(paused, paused=False), FINISHED, FAILED, run(time=200.0)]
    for end in ends:
        assert view_of(run(), paused, end).pause_reason == ""
    assert view_of(run(), FINISHED, paused).pause_reason == ""


def test_the_newest_step_its_epoch_and_its_place_in_it_are_known() -> None:
    view = view_of(run(), *steps(1, 234), *steps(235, 250, epoch=2))
    assert (view.step, view.epoch, view.epoch_step) == (250, 2, 16)
    assert view.last == step(250, epoch=2)
    assert view.elapsed_seconds == pytest.approx(0.25)


def test_a_run_that_resumes_in_mid_epoch_knows_its_place() -> None:
    view = view_of(run(time=100.0), *steps(300, 301, epoch=2))
    assert (view.step, view.epoch, view.epoch_step) == (301, 2, 301 - 234)
    unknown = view_of(run(steps_per_epoch=None), *steps(300, 301, epoch=2))
    assert unknown.epoch_step == 2, "only what was seen"


def test_the_loss_is_smoothed_without_a_pull_to_zero() -> None:
    assert view_of(*steps(1, 3, loss=2.5)).smoothed_loss == pytest.approx(2.5)
    falling = view_of(*[step(number, loss=1 / number) for number in range(1, 500)])
    assert falling.smoothed_loss is not None
    assert 1 / 499 < falling.smoothed_loss < 1 / 300


def test_the_best_loss_is_the_lowest_finite_one() -> None:
    losses = [0.5, math.nan, 0.25, None, -math.inf, 0.25, 0.75, None]
    view = view_of(*[step(number, loss=loss) for number, loss in enumerate(losses, 1)])
    assert (view.best_loss, view.best_loss_step) == (0.25, 3)
    assert view.unmeasured_steps == 2
    assert view.step == 8
    assert view.last == step(7, loss=0.75)


def test_all_curves_share_one_axis_of_steps() -> None:
    view = view_of(
        *steps(101, 102, step_seconds=0.004),
        step(103, loss=None, step_seconds=None),
        step(104, precision="fp16", skipped=True, loss=math.inf, step_seconds=0.002),
    )
    for series in (view.loss, view.samples_rate, view.loss_scale, view.skips, view.numerics.headrooms):
        assert (series.first_step, series.last_step) == (101, 104)
    np.testing.assert_allclose(view.loss.recent, [0.5, 0.5, np.nan, np.nan])
    assert view.loss.recent_nonfinite.tolist() == [False, False, False, True]
    np.testing.assert_allclose(view.samples_rate.recent, [64_000, 64_000, np.nan, np.nan])
    np.testing.assert_allclose(view.loss_scale.recent, [np.nan, np.nan, np.nan, 65536])
    np.testing.assert_allclose(view.skips.recent, [0, 0, np.nan, 1])


def test_steps_that_never_came_are_a_gap() -> None:
    view = view_of(*steps(1, 2), *steps(6, 7))
    np.testing.assert_array_equal(np.isnan(view.loss.recent), [False, False, True, True, True, False, False])
    assert view.step == 7


def test_a_step_that_comes_late_is_left_out_of_the_curves() -> None:
    view = view_of(*steps(1, 10), step(4, loss=0.001))
    assert (view.step, view.loss.count, view.best_loss) == (10, 10, 0.5)


def test_a_resumed_run_does_its_steps_again_from_the_checkpoint_on() -> None:
    session = Session()
    session.fold([run(), *steps(1, 50, loss=9.0), switch(41, "fp32", "fp16")])
    session.fold([FAILED, run(time=900.0), *steps(31, 40, loss=1.0, time=901.0)])
    view = session.view()
    assert (view.step, view.loss.count, view.state) == (40, 40, "running")
    assert view.loss.recent.tolist() == [9.0] * 30 + [1.0] * 10
    assert view.switches == (PrecisionSwitch(1, "fp32"),)
    assert view.precision == "fp32"
    assert view.elapsed_seconds == pytest.approx(1.0)


def test_a_run_that_resumes_before_all_that_is_known_starts_its_curves_anew() -> None:
    view = view_of(*steps(500, 600, epoch=3), run(), *steps(301, 310, epoch=2))
    assert (view.loss.first_step, view.step, view.epoch_step) == (301, 310, 310 - 234)


def test_the_precision_is_the_one_the_engine_confirmed() -> None:
    assert view_of(run(precision="bf16")).precision == "bf16"
    view = view_of(
        run(), *steps(1, 598), switch(600, "fp32", "fp16"), step(599), *steps(600, 610, precision="fp16")
    )
    assert view.precision == "fp16"
    assert view.switches == (PrecisionSwitch(1, "fp32"), PrecisionSwitch(600, "fp16"))


def test_the_first_steps_may_come_after_the_first_switch() -> None:
    view = view_of(run(), switch(5, "fp32", "fp16"), *steps(1, 4), *steps(5, 9, precision="fp16"))
    assert view.switches == (PrecisionSwitch(1, "fp32"), PrecisionSwitch(5, "fp16"))


def test_a_switch_whose_record_was_lost_shows_in_the_steps() -> None:
    view = view_of(*steps(1, 4), *steps(5, 9, precision="bf16"))
    assert view.switches == (PrecisionSwitch(1, "fp32"), PrecisionSwitch(5, "bf16"))


def test_a_switch_taken_back_before_a_step_ran_leaves_no_trace() -> None:
    view = view_of(*steps(1, 4), switch(5, "fp32", "fp16"), switch(5, "fp16", "fp32"), *steps(5, 6))
    assert view.switches == (PrecisionSwitch(1, "fp32"),)


@pytest.mark.ci
def test_the_newest_thousand_switches_are_kept() -> None:
    session = Session()
    for number in range(1, 3001):
        precision = "fp16" if number % 2 else "fp32"
        session.fold([step(number, precision=precision)])
    switches = session.view().switches
    assert [item.step for item in switches] == list(range(2001, 3001))


def test_the_time_left_comes_from_settled_steps_of_this_precision_alone() -> None:
    session = Session()
    session.fold([run(total_steps=1000), *steps(1, 10, settling=True, step_seconds=5.0)])
    assert session.view().eta_seconds is None, "settling"
    session.fold(steps(11, 100, step_seconds=0.5))
    assert session.view().eta_seconds == pytest.approx(900 * 0.5)
    session.fold([PauseChanged(time=101.0, step=100, paused=True)])
    assert session.view().eta_seconds is None, "paused"
    session.fold([PauseChanged(time=102.0, step=100, paused=False)])
    session.fold(steps(101, 105, precision="fp16", settling=True, step_seconds=3.0))
    assert session.view().eta_seconds is None, "settling again"
    session.fold(steps(106, 110, precision="fp16", step_seconds=0.25))
    assert session.view().eta_seconds == pytest.approx(890 * 0.25)
    session.fold([FINISHED])
    assert session.view().eta_seconds is None, "over"


def test_no_time_left_is_told_when_the_end_is_not_known() -> None:
    assert view_of(run(total_steps=None), *steps(1, 50)).eta_seconds is None
    assert view_of(*steps(1, 50)).eta_seconds is None


def test_the_pace_is_the_median_of_the_last_fifty_timed_steps() -> None:
    view = view_of(
        *steps(1, 100, step_seconds=9.0), *steps(101, 150, step_seconds=0.5), step(151, step_seconds=None)
    )
    assert view.step_seconds == 0.5
    assert view.samples_per_second == pytest.approx(512)


def test_the_scaler_is_as_of_the_newest_step() -> None:
    scaled = steps(1, 5, precision="fp16", growth_tracker=17)
    view = view_of(run(), *scaled, step(6, precision="fp16", skipped=True), backoff(6, 65536.0))
    assert view.scaler.scale == 32768
    assert (view.scaler.growth_tracker, view.scaler.growth_interval) == (0, 2000)
    assert (view.scaler.applied, view.scaler.skipped) == (5, 1)
    assert view.scaler.last_change == backoff(6, 65536.0)


def test_a_step_after_the_scale_moved_tells_more_than_the_move() -> None:
    view = view_of(growth(5, 65536.0), step(6, precision="fp16", loss_scale=131072.0, growth_tracker=1))
    assert (view.scaler.scale, view.scaler.growth_tracker) == (131072, 1)


def test_a_step_that_was_not_measured_is_neither_applied_nor_skipped() -> None:
    view = view_of(
        step(1, precision="fp16"),
        step(2, precision="fp16", loss=None, loss_scale=None, growth_tracker=None),
        step(3, precision="bf16"),
    )
    assert (view.scaler.applied, view.scaler.skipped, view.scaler.scale) == (1, 0, 65536)


def test_peaks_come_from_finished_blocks_and_from_live_samples() -> None:
    block = BlockFinished(time=103.0, step=30, precision="fp32", steps=30, peak_allocated_bytes=2000)
    view = view_of(
        *steps(1, 30),
        block,
        *steps(31, 60, precision="fp16"),
        device(104.0, "fp16", 1500),
        device(105.0, "fp16", 1000),
    )
    assert view.comparison.memory_saving == pytest.approx(0.25)
    assert view.allocator is not None
    assert view.device == device(105.0, "fp16", 1000)


def test_a_sample_without_an_allocator_keeps_torch_s_last_word() -> None:
    view = view_of(device(104.0, "fp16", 1500), replace(device(105.0, "fp16", None), allocator=None))
    assert view.allocator == device(104.0, "fp16", 1500).allocator


@given(records=st.lists(RECORDS, max_size=60))
def test_the_status_is_what_the_view_says(records: list[Record]) -> None:
    session = Session("runs/x")
    session.fold(records)
    status, view = session.status(), session.view()
    for attribute in fields(RunStatus):
        assert repr(getattr(status, attribute.name)) == repr(getattr(view, attribute.name))


def test_the_status_needs_no_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is taken once a second beside the training, in the same process."""
    session = Session()
    session.fold([run(), *steps(1, 9)])

    def compose(*_: object) -> None:
        raise AssertionError("the curves were read")

    monkeypatch.setattr(OptimizerSteps, "in_front", compose)
    assert session.status().step == 9
    with pytest.raises(AssertionError, match="the curves were read"):
        session.view()


def test_the_view_is_shared_for_as_long_as_nothing_new_comes() -> None:
    session = Session()
    session.fold([run(), *steps(1, 50)])
    view = session.view()
    assert session.view() is view
    session.fold([Note(time=101.0, severity="info", text="hello")])
    newer = session.view()
    assert newer is not view
    assert newer.loss is view.loss
    assert newer.comparison is view.comparison


def numbers(view: SessionView) -> SessionView:
    """All but the events, which are taken as they come."""
    return replace(view, events=(), warnings=0, errors=0)


@pytest.mark.ci
@given(records=st.lists(RECORDS, max_size=60), data=st.data())
def test_no_records_in_any_order_are_ever_too_much(records: list[Record], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(records)))
    halves, whole = Session(), Session()
    halves.fold(records[:cut])
    halves.view()
    halves.fold(records[cut:])
    whole.fold(records)
    view = whole.view()
    assert repr(numbers(halves.view())) == repr(numbers(view)), "batching does not matter"
    curves = (view.loss, view.samples_rate, view.loss_scale, view.skips, view.numerics.headrooms)
    assert len({(series.first_step, series.count) for series in curves}) == 1
    assert all(event_text(event) for event in view.events if event.kind != "print")
    assert [item.step for item in view.switches] == sorted({item.step for item in view.switches})
    assert view.best_loss is None or math.isfinite(view.best_loss)


def test_threads_may_fold_and_look_at_once() -> None:
    session, process = Session(), threading.Event()
    history: list[SessionView] = []

    def look() -> None:
        while not process.is_set():
            history.append(session.view())

    watcher = threading.Thread(target=look)
    watcher.start()
    for first in range(1, 5001, 50):
        session.fold(steps(first, first + 49))
    process.set()
    watcher.join()
    counts = [view.loss.count for view in history]
    assert counts == sorted(counts)
    assert all(view.step == view.loss.last_step for view in history if view.loss.count)
    assert session.view().step == 5000


@pytest.mark.ci
def test_a_long_run_is_folded_whole_and_its_view_stays_small() -> None:
    session = Session()
    batch = steps(1, 1000)
    for thousand in range(200):
        session.fold([replace(record, step=record.step + thousand * 1000) for record in batch])
    view = session.view()
    assert view.step == view.loss.count == 200_000
    assert len(view.loss.mean) <= 2048
    assert len(view.loss.recent) == 2048
