"""A run has stalled if it makes no headway for much longer than a step takes; a pause is none of that."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.records import codec
from amptui.records.answers import RequestMade
from amptui.records.run import PauseChanged, PhaseChanged, Record, RunFinished
from amptui.records.samples import DeviceSample, HostSample
from amptui.runs.kept_run import look_at
from amptui.runs.lock import RunLock
from amptui.runs.newest_steps import (
    BUSY_SECONDS,
    NOTHING,
    STALLED_SECONDS,
    STALLED_STEPS,
    newest_steps,
    silent_seconds,
)
from amptui.runs.rundir import RunDir
from tests.single_steps import joined
from tests.telemetry.record_samples import run, step, steps
from tests.telemetry.record_strategies import RECORDS

LAST = 106.0
"""When the last of six steps ended."""


def six_steps(seconds: float = 1.0) -> list[Record]:
    return [run(), *(replace(one, time=100.0 + one.step, step_seconds=seconds) for one in steps(1, 6))]


def sample(time: float) -> DeviceSample:
    return DeviceSample(time=time, gpus=(), host=HostSample())


def kept(folder: Path, records: Sequence[Record]) -> RunDir:
    run_dir = RunDir(folder)
    run_dir.journal_path.write_text("".join(f"{codec.dumps(record)}\n" for record in records))
    return run_dir


def silent(folder: Path, records: Sequence[Record], after: float) -> float | None:
    """How long the run, which is live, is said to be silent so many seconds after its last step."""
    run_dir = kept(folder, records)
    with RunLock.take(folder):
        return silent_seconds(look_at(run_dir), newest_steps(run_dir.journal_path), LAST + after)


def test_a_run_that_makes_no_step_for_long_has_stalled(tmp_path: Path) -> None:
    assert silent(tmp_path, six_steps(), STALLED_SECONDS) is None
    assert silent(tmp_path, six_steps(), STALLED_SECONDS + 1) == STALLED_SECONDS + 1


def test_what_its_sampler_and_its_screens_write_is_no_headway(tmp_path: Path) -> None:
    request = RequestMade(time=LAST + 300, number=1, kind="pause")
    after = [sample(LAST + second) for second in range(600)]
    assert silent(tmp_path, [*six_steps(), *after, request], 600.0) == 600.0


def test_long_steps_are_waited_for(tmp_path: Path) -> None:
    assert silent(tmp_path, six_steps(60.0), STALLED_STEPS * 60.0) is None
    assert silent(tmp_path, six_steps(60.0), STALLED_STEPS * 60.0 + 1) is not None


@pytest.mark.parametrize(
    "last",
    [
        PhaseChanged(time=LAST, phase="validating"),
        PhaseChanged(time=LAST, phase="stopping", detail="writing a checkpoint"),
    ],
)
def test_what_it_says_it_does_between_steps_is_waited_for(last: Record, tmp_path: Path) -> None:
    assert silent(tmp_path, [*six_steps(), last], BUSY_SECONDS) is None
    assert silent(tmp_path, [*six_steps(), last], BUSY_SECONDS + 1) is not None
    training = PhaseChanged(time=LAST, phase="training")
    assert silent(tmp_path, [*six_steps(), last, training], STALLED_SECONDS + 1) is not None


def test_a_first_step_may_take_as_long(tmp_path: Path) -> None:
    began = replace(run(), time=LAST)
    assert silent(tmp_path, [began], BUSY_SECONDS) is None
    assert silent(tmp_path, [began], BUSY_SECONDS + 1) is not None


def test_a_paused_run_and_one_that_has_ended_have_not_stalled(tmp_path: Path) -> None:
    paused = PauseChanged(time=LAST, step=6, paused=True)
    assert silent(tmp_path, [*six_steps(), paused], 10**6) is None
    done = RunFinished(time=LAST, steps=6, seconds=6.0, reason="done")
    run_dir = kept(tmp_path, [*six_steps(), done])
    assert silent_seconds(look_at(run_dir), newest_steps(run_dir.journal_path), LAST + 10**6) is None


def test_a_run_on_another_machine_is_not_judged_by_this_clock(tmp_path: Path) -> None:
    run_dir = kept(tmp_path, six_steps())
    with RunLock.take(tmp_path):
        run_dir.lock_path.write_text('{"pid": 5, "host": "elsewhere", "started": 90.0}')
        assert silent_seconds(look_at(run_dir), newest_steps(run_dir.journal_path), LAST + 10**6) is None


def test_long_silence_is_found_behind_its_samples(tmp_path: Path) -> None:
    samples = [sample(LAST + second) for second in range(2000)]
    run_dir = kept(tmp_path, [*six_steps(), *samples])
    assert run_dir.journal_path.stat().st_size > 2**16
    newest = newest_steps(run_dir.journal_path)
    assert (newest.headway, newest.last_time) == (LAST, LAST + 1999)
    assert len(newest.losses) == 6


def test_losses_are_those_of_the_first_optimizer_in_blocks_or_one_by_one(tmp_path: Path) -> None:
    block = joined([replace(one, loss=float(one.step)) for one in steps(1, 4)])
    other = joined(steps(1, 50, optimizer="critic"))
    run_dir = kept(tmp_path, [run(), block, other, replace(step(5), loss=None)])
    assert newest_steps(run_dir.journal_path).losses == (1.0, 2.0, 3.0, 4.0, None)
    assert len(newest_steps(kept(tmp_path, [run(), other]).journal_path).losses) == 50


def test_of_a_long_journal_only_the_end_is_read(tmp_path: Path) -> None:
    run_dir = kept(tmp_path, [run(), *steps(1, 5000)])
    newest = newest_steps(run_dir.journal_path)
    assert 0 < len(newest.losses) < 400


@given(
    st.lists(
        RECORDS.map(lambda record: codec.dumps(record).encode())
        | st.binary(max_size=9)
        | st.sampled_from([b'{"type":"Steps"', b'{"type":"StepRecord","time":1}']),
        max_size=20,
    )
)
def test_no_content_makes_it_fail(tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]) -> None:
    run_dir = RunDir(tmp_path_factory.mktemp("run"))
    run_dir.journal_path.write_bytes(b"\n".join(lines))
    newest = newest_steps(run_dir.journal_path)
    with RunLock.take(run_dir.path):
        silent_seconds(look_at(run_dir), newest, LAST)


def test_a_journal_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    assert newest_steps(tmp_path / "journal.jsonl") == NOTHING
