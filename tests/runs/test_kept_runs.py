"""How a run stands is told from its lock and its journal's end, and so is whether it has stalled."""

import json
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from amptui.records import codec
from amptui.records.answers import RequestMade
from amptui.records.run import Note, PauseChanged, Record, RunFailed, RunFinished
from amptui.records.samples import DeviceSample, HostSample
from amptui.runs import kept_run
from amptui.runs.find import kept_names
from amptui.runs.kept_run import (
    STALLED_SECONDS,
    KeptRun,
    look_at,
)
from amptui.runs.lock import RunLock
from amptui.runs.rundir import RunDir, default_base
from tests.builders import (
    in_one,
    make_resumed,
    make_started,
    make_step,
    make_steps,
    make_switch,
    write_journal,
)

HERE = socket.gethostname()

DONE = RunFinished(time=300.0, steps=2340, seconds=5.0, reason="done")
STOPPED = RunFinished(time=300.0, steps=6, seconds=5.0, reason="stopped")
FAILED = RunFailed(time=300.0, step=6, error="out of memory", traceback="a\nb")


def sample(time: float) -> DeviceSample:
    return DeviceSample(time=time, gpus=(), host=HostSample())


def kept(name: str, records: Sequence[Record]) -> RunDir:
    return RunDir(write_journal(default_base() / name, records))


BEGUN: list[Record] = [make_started(), *make_steps(1, 6)]
PAUSED = PauseChanged(time=200.0, step=6, paused=True)


@pytest.mark.parametrize(
    ("records", "held", "left"),
    [
        ([sample(120.0)], "starting", "died"),
        (BEGUN, "running", "died"),
        ([*BEGUN, PAUSED, sample(250.0)], "paused", "died"),
        ([*BEGUN, PAUSED, make_step(7)], "running", "died"),
        ([*BEGUN, PAUSED, PauseChanged(time=210.0, step=6, paused=False)], "running", "died"),
        ([*BEGUN, DONE, sample(310.0)], "starting", "finished"),
        ([*BEGUN, STOPPED], "starting", "stopped"),
        ([*BEGUN, replace(STOPPED, reason="ended")], "starting", "ended"),
        ([*BEGUN, FAILED], "starting", "failed"),
        ([*BEGUN, FAILED, make_resumed(6), make_step(7)], "running", "died"),
    ],
)
def test_a_run_that_lives_is_told_from_one_that_died(records: list[Record], held: str, left: str) -> None:
    run_dir = kept("m", records)
    found = look_at(run_dir)
    assert (found.state, found.error) == (left, "out of memory" if left == "failed" else None)
    with RunLock.take(run_dir.path):
        found = look_at(run_dir)
    assert found.state == held, "who holds it now began after the last word, and goes on"
    assert found.is_live
    assert (found.pid, found.is_here) == (os.getpid(), True)


def test_a_run_that_said_its_last_word_and_is_still_closing_has_ended() -> None:
    run_dir = kept("m", BEGUN)
    with RunLock.take(run_dir.path):
        began: Any = look_at(run_dir).began
        last = RunFinished(time=began + 1, steps=1, seconds=1.0, reason="done")
        run_dir.journal_path.write_text(f"{codec.dumps(last)}\n")
        assert look_at(run_dir).state == "finished"


def test_a_journal_that_cannot_be_opened_is_told() -> None:
    run_dir = kept("m", BEGUN)
    run_dir.journal_path.unlink()
    run_dir.journal_path.mkdir()
    found = look_at(run_dir)
    why = f"cannot read {run_dir.journal_path}: is a directory"
    assert (found.state, found.error) == ("unreadable", why)
    assert kept_names() == ["m"]


SWITCH = make_switch(4, "fp32", "bf16")
BLOCK = in_one(make_steps(4, 9, precision="bf16"))
OF_CRITIC = in_one(make_steps(1, 50, optimizer="critic", precision="fp16"))
SECOND_PHASE = make_steps(1, 3000, optimizer="second phase", precision="fp16")


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([make_started(precision="tf32")], {"precision": "tf32", "step": None}),
        ([make_started(), *make_steps(1, 3), SWITCH], {"precision": "bf16", "step": 3}),
        ([make_started(), make_step(3), make_resumed(3, precision="fp16")], {"precision": "fp16"}),
        ([make_started(), *make_steps(1, 3), BLOCK, sample(250.0)], {"step": 9, "precision": "bf16"}),
        ([make_started(), OF_CRITIC], {"step": 50}),
        ([make_started(), *make_steps(1, 30), OF_CRITIC], {"step": 30, "precision": "fp32"}),
        ([make_started(), make_step(1), *SECOND_PHASE], {"step": 3000, "precision": "fp16"}),
        (
            [make_started(), make_step(3), make_resumed(3, device="cpu", device_name="EPYC")],
            {"device": "cpu", "device_name": "EPYC", "step": 3},
        ),
        ([make_started(), make_step(3), make_resumed(3, total_steps=5000)], {"total_steps": 5000}),
    ],
)
def test_its_newest_facts_count(records: list[Record], expected: dict[str, Any]) -> None:
    found = look_at(kept("m", records))
    assert {name: getattr(found, name) for name in expected} == expected


def test_what_run_json_says_is_what_it_is() -> None:
    run_dir = kept("m", [make_step(7)])
    run_dir.write_run_json({"model": "vit", "started": 50.0, "device": "cpu", "device_name": "EPYC"})
    found = look_at(run_dir)
    assert (found.model, found.started, found.device, found.step) == ("vit", 50.0, "cpu", 7)
    run_dir.run_json_path.write_text('{"model": 3, "started": "x", "device": []}')
    found = look_at(run_dir)
    assert (found.model, found.started, found.device) == (None, None, None)


def test_of_a_long_journal_only_the_end_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_run, "_TAIL_BYTES", (300, 3000, 30_000))
    downloading, pausing = [sample(t) for t in range(100, 110)], [sample(t) for t in range(200, 210)]
    run_dir = kept("m", [*downloading, make_started(), *make_steps(1, 999), *pausing])
    assert run_dir.journal_path.stat().st_size > 300_000
    found = look_at(run_dir)
    assert (found.model, found.step) == ("mnist-deep", 999)
    far = [sample(t) for t in range(100, 300)]
    assert look_at(kept("n", [make_started(), make_step(1), *far])).step is None, "it is too far from the end"


# A run has stalled if it makes no headway for much longer than a step takes; a pause is none of that.

LAST = 106.0
"""When the last of six steps ended."""


def six_steps() -> list[Record]:
    return [make_started(), *(make_step(n, time=100.0 + n) for n in range(1, 7))]


SAMPLES = [sample(LAST + second) for second in range(2000)]


def seen(run_dir: RunDir, now: float, *, began: float = 90.0, host: str = HERE) -> KeptRun:
    """A run that is being trained, at this time."""
    with RunLock.take(run_dir.path), pytest.MonkeyPatch.context() as patch:
        run_dir.lock_path.write_text(json.dumps({"pid": 5, "host": host, "started": began}))
        patch.setattr(time, "time", lambda: now)
        return look_at(run_dir)


@pytest.mark.parametrize(
    "records",
    [
        six_steps(),
        [*six_steps(), *SAMPLES, RequestMade(time=LAST + 300, number=1, kind="pause")],
        [replace(make_started(), time=LAST)],
    ],
)
def test_a_run_that_makes_no_headway_for_long_has_stalled(records: list[Record]) -> None:
    """What its sampler and its screens write is none."""
    run_dir, late = kept("m", records), LAST + STALLED_SECONDS
    assert seen(run_dir, late).state == "running"
    found = seen(run_dir, late + 1)
    assert (found.state, found.silent_seconds) == ("stalled", STALLED_SECONDS + 1)
    assert seen(run_dir, late + 1, began=LAST + 10).state == "running", "it goes on in another process"
    assert seen(run_dir, late * 10, host="elsewhere").state == "running", "its clock is another"


@pytest.mark.parametrize(
    ("last", "state"),
    [(PauseChanged(time=LAST, step=6, paused=True), "paused"), (replace(DONE, time=LAST), "finished")],
)
def test_a_paused_run_and_one_that_has_ended_have_not_stalled(last: Record, state: str) -> None:
    assert seen(kept("m", [*six_steps(), last]), LAST + 10**6).state == state


def test_trouble_is_found_behind_samples_and_after_the_last_steps() -> None:
    failed = Note(time=LAST, severity="error", text="no checkpoint")
    run_dir = kept("m", [make_started(), failed, *six_steps(), *SAMPLES])
    assert run_dir.journal_path.stat().st_size > 2**16
    found = look_at(run_dir)
    assert (found.trouble, found.step) == (failed, 6)
    assert look_at(kept("m", [*six_steps(), failed, make_step(7, time=LAST + 1)])).trouble is None
