"""How a run stands is told from its lock and both ends of its journal."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.records import codec
from amptui.records.run import PauseChanged, PrecisionChanged, Record, RunFailed, RunFinished
from amptui.records.samples import DeviceSample, HostSample
from amptui.runs import kept_run
from amptui.runs.kept_run import KeptRun, look_at
from amptui.runs.lock import RunLock
from amptui.runs.recent import kept_names
from amptui.runs.rundir import RunDir, default_base
from tests.single_steps import joined
from tests.telemetry.record_samples import resumed, run, step, steps
from tests.telemetry.record_strategies import RECORDS

DONE = RunFinished(time=300.0, steps=2340, seconds=5.0, reason="done")
STOPPED = RunFinished(time=300.0, steps=6, seconds=5.0, reason="stopped")
FAILED = RunFailed(time=300.0, step=6, error="out of memory", traceback="a\nb")


def device(time: float) -> DeviceSample:
    return DeviceSample(time=time, gpus=(), host=HostSample())


def kept(name: str, records: Sequence[Record], *, written: float | None = None) -> RunDir:
    run_dir = RunDir(default_base() / name)
    run_dir.path.mkdir(parents=True)
    run_dir.journal_path.write_text("".join(f"{codec.dumps(record)}\n" for record in records))
    if written is not None:
        os.utime(run_dir.journal_path, (written, written))
    return run_dir


def test_all_that_a_run_is_comes_from_its_files() -> None:
    run_dir = kept(
        "mnist-deep-1", [device(120.0), run(), *steps(1, 5), step(6, precision="fp16")], written=900.0
    )
    assert look_at(run_dir) == KeptRun(
        name="mnist-deep-1",
        folder=run_dir.path,
        state="died",
        model="mnist-deep",
        precision="fp16",
        step=6,
        total_steps=2340,
        started=100.0,
        began=None,
        written=900.0,
        device="cuda:0",
        device_name="NVIDIA H200",
        host=None,
        pid=None,
        is_here=True,
        error=None,
    )


PAUSED = PauseChanged(time=200.0, step=6, paused=True)


@pytest.mark.parametrize(
    ("records", "held", "left"),
    [
        ([], "starting", "died"),
        ([device(120.0)], "starting", "died"),
        ([run()], "running", "died"),
        ([run(), *steps(1, 6)], "running", "died"),
        ([run(), *steps(1, 6), PAUSED], "paused", "died"),
        ([run(), *steps(1, 5), PAUSED, step(6), device(250.0)], "paused", "died"),
        ([run(), *steps(1, 6), PAUSED, step(7)], "running", "died"),
        ([run(), *steps(1, 6), PAUSED, PauseChanged(time=210.0, step=6, paused=False)], "running", "died"),
        ([run(), *steps(1, 6), DONE, device(310.0)], "starting", "finished"),
        ([run(), *steps(1, 6), STOPPED], "starting", "stopped"),
        ([run(), *steps(1, 6), FAILED], "starting", "failed"),
        ([FAILED], "starting", "failed"),
        ([run(), *steps(1, 6), FAILED, resumed(6)], "running", "died"),
        ([run(), *steps(1, 6), FAILED, resumed(6), step(7)], "running", "died"),
    ],
)
def test_a_run_that_lives_is_told_from_one_that_died(records: list[Record], held: str, left: str) -> None:
    run_dir = kept("m", records)
    assert look_at(run_dir).state == left
    with RunLock.take(run_dir.path):
        found = look_at(run_dir)
    assert found.state == held, "who holds it now began after the last word, and goes on"
    assert found.is_live
    assert (found.pid, found.is_here) == (os.getpid(), True)


def test_a_run_that_said_its_last_word_and_is_still_closing_has_ended() -> None:
    run_dir = kept("m", [run(), step(1)])
    with RunLock.take(run_dir.path):
        began = look_at(run_dir).began
        assert began is not None
        last = RunFinished(time=began + 1, steps=1, seconds=1.0, reason="done")
        run_dir.journal_path.write_text(f"{codec.dumps(last)}\n")
        assert look_at(run_dir).state == "finished"


def test_why_a_run_failed_is_told() -> None:
    assert look_at(kept("m", [run(), FAILED])).error == "out of memory"


def test_a_journal_that_cannot_be_opened_is_told() -> None:
    run_dir = kept("m", [])
    run_dir.journal_path.unlink()
    os.mkfifo(run_dir.journal_path)
    found = look_at(run_dir)
    assert (found.state, found.error) == (
        "unreadable",
        f"cannot read {run_dir.journal_path}: not a regular file",
    )
    assert kept_names() == ["m"]


def test_a_run_on_another_machine_is_told() -> None:
    run_dir = kept("m", [run(), step(1)])
    with RunLock.take(run_dir.path):
        run_dir.lock_path.write_text(json.dumps({"pid": 5, "host": "elsewhere", "started": 90.0}))
        found = look_at(run_dir)
    assert (found.state, found.host, found.pid, found.is_here) == ("running", "elsewhere", 5, False)


def test_the_precision_is_that_of_the_newest_step_or_of_the_next() -> None:
    switch = PrecisionChanged(time=1.0, step=4, previous="fp32", current="bf16")
    assert look_at(kept("a", [run(precision="tf32")])).precision == "tf32"
    assert look_at(kept("b", [run(), *steps(1, 3), switch])).precision == "bf16"
    assert look_at(kept("c", [run(), *steps(1, 3), switch, step(4, precision="bf16")])).precision == "bf16"
    assert look_at(kept("d", [run(), *steps(1, 3), switch, step(4), step(5)])).precision == "fp32"
    assert look_at(kept("e", [run(), step(3), resumed(3, precision="fp16")])).precision == "fp16"


def test_steps_may_be_recorded_in_blocks_or_one_by_one() -> None:
    block = joined(steps(4, 9, precision="bf16"))
    found = look_at(kept("a", [run(), *steps(1, 3), block, device(250.0)]))
    assert (found.step, found.precision) == (9, "bf16")
    found = look_at(kept("b", [run(), block, *steps(10, 11), device(250.0)]))
    assert (found.step, found.precision) == (11, "fp32")
    of_critic = joined(steps(1, 50, optimizer="critic"))
    assert look_at(kept("c", [run(), block, of_critic, device(250.0)])).step == 9
    assert look_at(kept("d", [run(), of_critic, device(250.0)])).step == 50


def test_a_run_that_went_on_elsewhere_is_on_its_new_device() -> None:
    found = look_at(kept("m", [run(), step(3), resumed(3, device="cpu", device_name="EPYC")]))
    assert (found.device, found.device_name, found.step) == ("cpu", "EPYC", 3)


def test_a_journal_that_lost_its_beginning_is_known_by_run_json() -> None:
    run_dir = kept("m", [step(7)])
    run_dir.write_run_json({"model": "vit", "started": 50.0, "device": "cpu", "device_name": "EPYC"})
    found = look_at(run_dir)
    assert (found.model, found.started, found.device, found.step) == ("vit", 50.0, "cpu", 7)
    run_dir.run_json_path.write_text('{"model": 3, "started": "x", "device": []}')
    found = look_at(run_dir)
    assert (found.model, found.started, found.device) == (None, None, None)


def test_the_goal_of_a_run_that_goes_on_is_its_newest() -> None:
    run_dir = kept("m", [run(), step(3), resumed(3, total_steps=5000), step(4)])
    assert look_at(run_dir).total_steps == 5000
    run_dir.write_run_json({"total_steps": 6000, "device": "cuda:1"})
    assert (look_at(run_dir).total_steps, look_at(run_dir).device) == (6000, "cuda:1")
    assert look_at(kept("n", [run(), step(3), resumed(3, total_steps=None)])).total_steps == 2340


def test_of_long_journals_only_the_ends_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_run, "_HEAD_BYTES", (300, 3000, 30_000))
    monkeypatch.setattr(kept_run, "_TAIL_BYTES", (300, 3000, 30_000))
    downloading, pausing = [device(t) for t in range(100, 110)], [device(t) for t in range(200, 210)]
    run_dir = kept("m", [*downloading, run(), *steps(1, 999), *pausing])
    assert run_dir.journal_path.stat().st_size > 300_000
    found = look_at(run_dir)
    assert (found.model, found.step) == ("mnist-deep", 999)
    far = [device(t) for t in range(100, 300)]
    found = look_at(kept("n", [*far, run(), step(1), *far]))
    assert (found.model, found.step) == (None, None), "what is too far from both ends is not known"


def test_records_of_a_later_version_hide_nothing() -> None:
    later = '{"type":"FromTheFuture","time":1.0,"step":99,"steps":[7,8,9]}\n'
    run_dir = kept("m", [run(), *steps(1, 6)])
    with run_dir.journal_path.open("a") as journal:
        journal.write(later + later)
    assert (look_at(run_dir).state, look_at(run_dir).step) == ("died", 6)
    with run_dir.journal_path.open("a") as journal:
        journal.write(f"{codec.dumps(DONE)}\n{later}")
    assert (look_at(run_dir).state, look_at(run_dir).step) == ("finished", 6)


def test_runs_are_listed_from_the_one_that_was_written_last() -> None:
    kept("a", [run()], written=10.0)
    kept("b", [run()], written=30.0)
    kept("c", [run()], written=20.0)
    no_journal = RunDir(default_base() / "d")
    no_journal.path.mkdir()
    (default_base() / "e").mkdir()
    (default_base() / "file").touch()
    no_journal.write_run_json({"model": "m"})
    assert kept_names() == ["d", "b", "c", "a"], "one without a journal may be starting now"
    assert kept_names(lambda name: name in "ad") == ["d", "a"]


def test_where_no_run_was_ever_kept_none_is_listed() -> None:
    assert kept_names() == []


@given(
    lines=st.lists(
        RECORDS.map(lambda record: codec.dumps(record).encode())
        | st.binary(max_size=9)
        | st.sampled_from(
            [
                *(b'{"type":"RunStarted"', b'{"type":"StepRecord","time":1}', b'{"type":"RunFailed"'),
                *(b'{"type":"Steps"', b'{"type":"Steps","time":1}'),
            ]
        ),
        max_size=20,
    ),
    run_json=st.none() | st.binary(max_size=20) | st.sampled_from([b"[]", b"{}", b"[" * 4000]),
)
def test_no_content_makes_a_run_that_cannot_be_listed(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], run_json: bytes | None
) -> None:
    run_dir = RunDir(tmp_path_factory.mktemp("run"))
    run_dir.journal_path.write_bytes(b"\n".join(lines))
    if run_json is not None:
        run_dir.run_json_path.write_bytes(run_json)
    found = look_at(run_dir)
    assert found.state in ("died", "finished", "stopped", "failed")
    assert not found.is_live
    with RunLock.take(run_dir.path):
        assert look_at(run_dir).is_live


def test_a_run_given_by_the_folder_that_one_is_in_has_that_folder_s_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(kept("mine", [run()]).path)
    assert look_at(RunDir(Path())).name == "mine"


@pytest.mark.parametrize("between", [b"", b"\n"])
def test_what_only_looks_like_many_records_is_given_up_soon(
    between: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = kept("m", [run(), step(3)])
    words = ("StepRecord", "Steps", "RunFailed", "RunStarted")
    crowd = between.join([f'{{"type":"{word}"'.encode() for word in words] * 2000)
    run_dir.journal_path.write_bytes(run_dir.journal_path.read_bytes() + crowd + b"\n")
    reads = heard(monkeypatch)
    assert look_at(run_dir).model == "mnist-deep"
    assert sum(map(len, reads)) < 3 * len(crowd) + 100_000
    assert len(reads) < 1000


def heard(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines that are read from now on."""
    reads, loads = list[str](), codec.loads

    def hear(line: str) -> Record | None:
        reads.append(line)
        return loads(line)

    monkeypatch.setattr(codec, "loads", hear)
    return reads
