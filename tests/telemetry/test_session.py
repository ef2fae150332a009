"""The session: whatever records come, in whatever order, the view says what is known and no more."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from amptui.diagnosis.event_words import event_text
from amptui.records.answers import RequestMade, RequestRefused, RequestTaken
from amptui.records.findings import PhaseSeconds, StepTimed
from amptui.records.keeping import CheckpointWritten, KeepingChanged, WeightsSaved
from amptui.records.run import (
    BlockFinished,
    EpochFinished,
    PauseChanged,
    PhaseChanged,
    Record,
    RunFailed,
    RunFinished,
    Validation,
)
from amptui.records.steps import Steps
from amptui.telemetry.view import PrecisionSwitch, SessionView
from tests.builders import (
    assert_holds,
    fold,
    in_one,
    make_resumed,
    make_started,
    make_step,
    make_steps,
    make_switch,
    view_of,
)
from tests.diagnosis.wording import event_lines, table
from tests.golden import Goldens
from tests.record_values import BLOCKS, OTHER_RECORDS, RECORDS
from tests.telemetry.record_samples import backoff, compared, device, memory, run, skip, step, steps

START = make_started()
PAUSED = PauseChanged(time=101.0, step=1, paused=True, reason="at the floor")
GOING_ON = replace(PAUSED, time=102.0, paused=False)
FINISHED = RunFinished(time=105.0, steps=50, seconds=5.0, reason="done")
FAILED = RunFailed(time=105.0, step=50, error="out of memory", traceback="...")


def in_fp16(first: int, last: int, **changes: Any) -> list[Any]:
    return make_steps(first, last, precision="fp16", **changes)


@pytest.mark.parametrize(
    ("records", "state", "pause"),
    [
        ([PhaseChanged(time=1.0, phase="data")], "starting", ""),
        ([START], "running", ""),
        (make_steps(7, 8), "running", ""),
        ([START, PAUSED], "paused", "at the floor"),
        ([START, PAUSED, GOING_ON], "running", ""),
        ([START, PAUSED, FINISHED], "finished", ""),
        ([START, PAUSED, FAILED], "failed", ""),
        ([START, PAUSED, make_started(time=200.0)], "running", ""),
        ([FAILED], "failed", ""),
        ([START, FINISHED, GOING_ON], "finished", ""),
        ([START, FINISHED, PAUSED], "finished", ""),
    ],
)
def test_the_state_and_the_reason_of_a_pause_follow_the_records(
    records: list[Record], state: str, pause: str
) -> None:
    view = view_of(*records)
    assert (view.state, view.pause_reason) == (state, pause)
    assert (view.outcome is not None) == (state in ("finished", "failed"))


VALIDATION = Validation(loss=0.4, accuracy=None, samples=8)


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


EPOCH = EpochFinished(time=105.0, step=40, epoch=1, seconds=1.0, mean_loss=0.5, validation=VALIDATION)
WEIGHTS = WeightsSaved(time=102.0, step=20, path="/home/me/mine.pt", averaged=False)
UNSAVED = KeepingChanged(time=101.0, what="journal", trouble="journal: no space left on device")
NO_CHECKPOINT = KeepingChanged(time=102.0, what="checkpoints", trouble="no checkpoint in runs/x/checkpoints")
GOING = compared(40, over=False, reason="running")

RUNNING = {"state": "running", "outcome": None, "pause_reason": "", "phase": None}

ENDS: dict[str, list[Record]] = {
    "nothing": [],
    "its end": [FINISHED],
    "a failure": [FAILED],
    "a pause": [PauseChanged(time=104.0, step=50, paused=True, reason="the loss scale fell")],
}


LOSSES = [0.5, math.nan, 0.25, None, -math.inf, 0.25, 0.75, None]

KNOWN: dict[str, tuple[Sequence[Record], dict[str, Any]]] = {
    "place": (
        [START, *make_steps(1, 234), *make_steps(235, 250, epoch=2)],
        {
            "step": 250,
            "epoch": 2,
            "last": make_step(250, epoch=2),
            "elapsed_seconds": 0.25,
        },
    ),
    "best loss": (
        make_steps(1, 8, loss=LOSSES),
        {
            "best_loss": 0.25,
            "best_loss_step": 3,
            "unmeasured_steps": 2,
            "step": 8,
            "last": make_step(7, loss=0.75),
        },
    ),
    "precision before the first step": ([make_started(precision="bf16")], {"precision": "bf16"}),
    "switch": (
        [
            START,
            *make_steps(1, 598),
            make_switch(600, "fp32", "fp16"),
            make_step(599),
            *in_fp16(600, 610),
        ],
        {"precision": "fp16", "switches": (PrecisionSwitch(1, "fp32"), PrecisionSwitch(600, "fp16"))},
    ),
    "switch before its steps": (
        [START, make_switch(5, "fp32", "fp16"), *make_steps(1, 4), *in_fp16(5, 9)],
        {"switches": (PrecisionSwitch(1, "fp32"), PrecisionSwitch(5, "fp16"))},
    ),
    "lost switch": (
        [*make_steps(1, 4), *make_steps(5, 9, precision="bf16")],
        {"switches": (PrecisionSwitch(1, "fp32"), PrecisionSwitch(5, "bf16"))},
    ),
    "switch taken back": (
        [
            *make_steps(1, 4),
            make_switch(5, "fp32", "fp16"),
            make_switch(5, "fp16", "fp32"),
            *make_steps(5, 6),
        ],
        {"switches": (PrecisionSwitch(1, "fp32"),)},
    ),
    "no end known": ([make_started(total_steps=None), *make_steps(1, 50)], {"eta_seconds": None}),
    "pace of the last 50 timed steps": (
        [
            *make_steps(1, 100, step_seconds=9.0),
            *make_steps(101, 150, step_seconds=0.5),
            make_step(151, step_seconds=None),
        ],
        {"step_seconds": 0.5, "samples_per_second": 512.0},
    ),
    "scaler": (
        [
            START,
            *in_fp16(1, 5, growth_tracker=17),
            make_step(6, precision="fp16", skipped=True),
            backoff(6, 65536.0),
        ],
        {
            "scaler.scale": 32768.0,
            "scaler.growth_tracker": 0,
            "scaler.growth_interval": 2000,
            "scaler.applied": 5,
            "scaler.skipped": 1,
            "scaler.last_change": backoff(6, 65536.0),
        },
    ),
    "loss that was lost long ago": (
        [
            *in_fp16(1, 5),
            make_step(6, precision="fp16", skipped=True, loss=math.inf, loss_scale=65536.0),
            skip(6, loss_scale=65536.0, loss=math.inf),
            *in_fp16(7, 90, loss_scale=32768.0),
        ],
        {
            "numerics.scaler.state": "loss not finite",
            "numerics.scaler.step": 6,
            "numerics.scaler.loss_scale": 65536.0,
        },
    ),
    "step that was not measured": (
        [
            make_step(1, precision="fp16"),
            make_step(2, precision="fp16", loss=None, loss_scale=None, growth_tracker=None),
            make_step(3, precision="bf16"),
        ],
        {"scaler.applied": 1, "scaler.skipped": 0, "scaler.scale": 65536.0},
    ),
    "peaks of blocks and of samples": (
        [
            *make_steps(1, 30),
            BlockFinished(time=103.0, step=30, precision="fp32", steps=30, peak_allocated_bytes=2000),
            *in_fp16(31, 60),
            device(104.0, "fp16", 1500),
            device(105.0, "fp16", 1000),
        ],
        {"comparison.memory_saving": 0.25, "device": device(105.0, "fp16", 1000)},
    ),
    "why there is no GPU's data, in a run on a CPU": (
        [run(device="cpu"), replace(device(104.0, "fp32", None), note="no NVIDIA GPU")],
        {"device": device(104.0, "fp32", None)},
    ),
    "why there is no GPU's data, in a run on a GPU": (
        [run(), replace(device(104.0, "fp32", None), note="NVML does not answer")],
        {"device.note": "NVML does not answer"},
    ),
    "sample without an allocator": (
        [device(104.0, "fp16", 1500), replace(device(105.0, "fp16", None), allocator=None)],
        {"allocator": device(104.0, "fp16", 1500).allocator},
    ),
    # ------------------------------------------- a run that goes on in another process, and what it forgets
    **{
        f"runs after {name}": (
            [START, *make_steps(1, 50), *before, make_resumed(50), *make_steps(51, 60, time=901.0)],
            {**RUNNING, "step": 60, "loss.count": 60},
        )
        for name, before in ENDS.items()
    },
    "another device": (
        [START, make_resumed(5, device="cpu", device_name="CPU", gpu_uuid=None, precision="bf16")],
        {"run": make_started(device="cpu", device_name="CPU", gpu_uuid=None), "precision": "bf16"},
    ),
    "made longer": (
        [START, *make_steps(1, 5), make_resumed(5, total_epochs=99, total_steps=9900)],
        {"run.total_epochs": 99, "run.total_steps": 9900},
    ),
    "as long as before": (
        [START, *make_steps(1, 5), make_resumed(5, total_epochs=None, total_steps=None)],
        {"run.total_epochs": START.total_epochs, "run.total_steps": START.total_steps},
    ),
    # ------------------------------------------------------------------------- what a process has kept
    "weights": ([START, WEIGHTS], {"weights": WEIGHTS}),
    "weights of the process before": ([START, WEIGHTS, make_resumed(20)], {"weights": None}),
    "checkpoint": ([START, checkpoint(10), checkpoint(20)], {"checkpoint": checkpoint(20)}),
    "not kept": ([START, UNSAVED, NO_CHECKPOINT], {"not_kept": (UNSAVED, NO_CHECKPOINT)}),
    "not kept by the process before": ([START, UNSAVED, make_resumed(1)], {"not_kept": ()}),
    "comparison cut off": (
        [START, *make_steps(1, 50), GOING, make_resumed(50), make_switch(51, "fp32", "fp16")],
        {"compared": None},
    ),
    "comparison that was over": ([START, compared(40), make_resumed(50)], {"compared": compared(40)}),
    # -------------------------------------------------------------------------------- steps done again
    "lost steps": (
        [
            START,
            *make_steps(1, 50),
            checkpoint(30),
            checkpoint(44),
            replace(EPOCH, step=45),
            make_resumed(40, lost_steps=10),
        ],
        {"step": 40, "loss.last_step": 40, "last": None, "validated": None, "checkpoint": None},
    ),
    "what came before the checkpoint": (
        [START, *make_steps(1, 40), checkpoint(40), EPOCH, make_resumed(40)],
        {"step": 40, "last": make_step(40), "validated": EPOCH, "checkpoint": checkpoint(40)},
    ),
    "steps after a resume before all that is known": (
        [START, *make_steps(500, 600, epoch=3), make_resumed(300), *make_steps(301, 310, epoch=2)],
        {"loss.first_step": 301, "step": 310, "epoch": 2},
    ),
}


@pytest.mark.parametrize(("records", "expected"), KNOWN.values(), ids=KNOWN)
def test_what_records_tell_is_known(records: Sequence[Record], expected: dict[str, Any]) -> None:
    assert_holds(view_of(*records), expected)


def test_the_time_left_comes_from_the_newest_settled_steps_of_one_precision() -> None:
    session = fold([make_started(total_steps=1000)])
    for records, eta_seconds in (
        (make_steps(1, 10, settling=True, step_seconds=5.0), None),
        (make_steps(11, 100, step_seconds=0.5), 900 * 0.5),
        ([PAUSED], None),
        ([GOING_ON], 900 * 0.5),
        (in_fp16(101, 105, settling=True, step_seconds=3.0), 895 * 0.5),
        (in_fp16(106, 110, step_seconds=0.25), 890 * 0.25),
        (in_fp16(111, 115, settling=True, step_seconds=3.0), 885 * 0.25),  # as beside a trace
        ([FINISHED], None),
    ):
        session.fold(records)
        assert session.view().eta_seconds == (None if eta_seconds is None else pytest.approx(eta_seconds))


# ---------------------------------------------------------------------------------------- the view


def numbers(view: SessionView) -> SessionView:
    """All but the events, which are taken as they come, and the order in which optimizers were met."""
    optimizers = tuple(sorted(view.optimizers, key=lambda optimizer: optimizer.name))
    metrics: Any = [(metric.kind, metric.name, metric.read()) for metric in view.metrics]
    return replace(view, events=(), warnings=0, errors=0, optimizers=optimizers, metrics=metrics)


@pytest.mark.ci
@given(records=st.lists(RECORDS, max_size=60), data=st.data())
def test_no_records_in_any_order_are_ever_too_much(records: list[Record], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(records)))
    halves, view = fold(records[:cut]), view_of(*records)
    halves.view()
    halves.fold(records[cut:])
    assert repr(numbers(halves.view())) == repr(numbers(view)), "batching does not matter"
    curves = (view.loss, view.samples_rate, view.loss_scale, view.skips, view.numerics.headrooms)
    assert len({(series.first_step, series.count) for series in curves}) == 1
    assert all(event_text(event) for event in view.events if event.kind != "print")
    assert [item.step for item in view.switches] == sorted({item.step for item in view.switches})
    assert view.best_loss is None or math.isfinite(view.best_loss)


# ---------------------------------------------------------------------------------- blocks of steps


EXACT = st.integers(0, 2**20).map(lambda units: units / 1024)
"""Times and durations whose sums need no rounding."""


def timed(record: Record, time: float, seconds: list[float | None]) -> Record:
    """``record`` at ``time``; the steps of a block took ``seconds``."""
    if isinstance(record, Steps):
        return replace(record, time=time, step_seconds=(seconds * 6)[: record.count])
    return replace(record, time=time)


def exactly_timed(records: st.SearchStrategy[Any]) -> st.SearchStrategy[Record]:
    return st.builds(timed, records, EXACT, st.lists(st.none() | EXACT, min_size=1, max_size=6))


OF_ALL_KINDS = [
    run(time=100.0),
    in_one(steps(1, 4, time=102.0, step_seconds=0.5, precision="fp16", loss_scale=65536.0, settling=True)),
    in_one(steps(5, 7, time=103.0, step_seconds=0.25, precision="fp16", loss_scale=65536.0, skipped=True)),
    in_one([*steps(8, 10, time=105.0, step_seconds=0.5), step(11, time=105.0, step_seconds=0.5, loss=None)]),
    in_one(steps(1, 3, time=106.0, step_seconds=0.25, optimizer="critic", grad_norm=None)),
    in_one([step(12, step_seconds=700.0), *steps(13, 14, time=900.0, step_seconds=1.0, grad_max=2.0)]),
]
"""Warm-up steps, skipped ones, some of another optimizer, one that was not measured, one of many minutes."""


@example(OF_ALL_KINDS)
@given(st.lists(exactly_timed(BLOCKS) | exactly_timed(OTHER_RECORDS), max_size=12))
def test_a_session_knows_the_same_of_steps_in_blocks_and_one_by_one(records: list[Record]) -> None:
    rows = [
        record.part(index, index + 1) if isinstance(record, Steps) else record
        for record in records
        for index in range(record.count if isinstance(record, Steps) else 1)
    ]
    assert fold(records).state() == fold(rows).state()


# -------------------------------------------------------------------------- what was asked of a run


MADE = [RequestMade(time=101.0, number=number, kind="x-ray") for number in range(4)]
TAKEN = RequestTaken(time=102.0, step=5, request=MADE[1])
REFUSED = RequestRefused(time=102.0, step=5, request=MADE[2], reason="failed", detail="out of memory")


def test_a_request_is_pending_until_its_answer_comes() -> None:
    session = fold([run(), *steps(1, 5), *MADE[1:]])
    assert session.view().pending == (*MADE[1:],)
    session.fold([REFUSED, TAKEN, MADE[1]])
    assert (session.view().pending, session.view().answers) == ((MADE[3],), (REFUSED, TAKEN))


# ------------------------------------------------------- a run that goes on in another process
EVENTS: dict[str, Sequence[Record]] = {
    "checkpoint": [checkpoint(1200)],
    "averaged weights": [replace(WEIGHTS, averaged=True)],
    "resume": [START, make_resumed(1200)],
    "resume without a start": [make_resumed(12)],
    "resume that repeats steps": [START, make_resumed(12, lost_steps=1037)],
    "resume on another device": [START, make_resumed(7, device_name="CPU", lost_steps=2)],
    "restart": [START, make_resumed(12, restarts=2, cause="rank 1 was killed: pid 7 is gone")],
    "not saved": [UNSAVED, NO_CHECKPOINT],
    "saved again": [UNSAVED, NO_CHECKPOINT, replace(UNSAVED, trouble="")],
}


def test_what_is_told_of_checkpoints_and_resumes(goldens: Goldens) -> None:
    said = {name: list(event_lines(view_of(*records).events)) for name, records in EVENTS.items()}
    goldens.check("words/events of a run that goes on", table(said))


def test_two_devices_are_not_compared() -> None:
    phases = (PhaseSeconds(name="forward", host_seconds=1e-3, device_seconds=None),)
    timed = StepTimed(time=100.0, step=1, precision="fp32", settling=False, phases=phases)
    measured: list[Record] = [START, *make_steps(1, 50), timed]
    measured += [memory("fp32", activations=1, peak=10**9), compared(40)]
    same = view_of(*measured, make_resumed(50))
    assert len(same.comparison.rows) == len(same.timings) == len(same.memory) == 1
    assert same.compared is not None
    other = view_of(*measured, make_resumed(50, device_name="CPU", device="cpu", gpu_uuid=None))
    assert (other.comparison.rows, other.timings, other.memory, other.compared) == ((), (), (), None)
    assert other.comparison.missing == "steps"
    assert other.loss.count == 50, "the curves are of the run"
    resumed = make_resumed(50, device_name="CPU")
    again = view_of(*measured, resumed, make_step(51, precision="bf16"), replace(timed, step=52))
    assert [row.precision for row in again.comparison.rows] == ["bf16"]
    assert [timing.steps for timing in again.timings] == [1]


# --------------------------------------------------------------------------------- the running time


def test_the_running_time_is_that_of_all_processes_and_no_clock_that_is_set_back_lessens_it() -> None:
    begun = [make_started(time=100.0), *make_steps(1, 2, time=110.0), make_step(3, time=50.0)]
    session = fold([*begun, make_step(4, time=112.0), make_resumed(4, time=5000.0)])
    assert session.view().elapsed_seconds == 12.0
    session.fold([make_step(5, time=5003.0)])
    assert session.view().elapsed_seconds == 15.0
