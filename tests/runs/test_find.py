"""Finding a run: by folder, journal or name; what is not there is told in one line."""

import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from amptui.base.errors import RunFolderError, UsageError
from amptui.process.plan import can_go_on
from amptui.records import codec
from amptui.records.run import RunFinished
from amptui.runs import lock
from amptui.runs.find import find_run, journal_of, listed_runs, live_run, resumable
from amptui.runs.lock import RunLock
from amptui.runs.rundir import RunDir, default_base


def kept(name: str, age_seconds: int = 0) -> Path:
    """The journal of a kept run, written so long ago."""
    run_dir = RunDir(default_base() / name)
    run_dir.path.mkdir(parents=True)
    run_dir.journal_path.write_text("")
    then = 1_800_000_000 - age_seconds
    os.utime(run_dir.journal_path, (then, then))
    return run_dir.journal_path


def test_a_folder_and_a_journal_are_found_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    journal = RunDir(tmp_path).journal_path
    with pytest.raises(RunFolderError, match=r"no journal\.jsonl; give the folder or the journal of a run"):
        find_run(str(tmp_path))
    journal.touch()
    assert find_run(str(tmp_path)) == find_run(str(journal)) == find_run("~") == journal
    assert journal_of(tmp_path) == journal_of(journal) == journal


def test_a_kept_run_is_found_by_its_name_by_its_model_s_or_by_a_beginning_that_no_other_has() -> None:
    with pytest.raises(UsageError, match=r"^no runs in "):
        find_run("")
    old, new = kept("mnist-20261120-120000", 50), kept("mnist-20261120-120000-2", 10)
    other = kept("mnist-deep-20261121-090000", 20)
    (default_base() / "folder").mkdir()
    (default_base() / "file").touch()
    for text, journal in (
        ("", new),
        ("mnist-20261120-120000", old),
        ("mnist", new),
        ("mnist-deep", other),
        ("mnist-d", other),
        ("mnist-deep-2026", other),
    ):
        assert find_run(text) == journal
    kept("mnist-deeper-20261123-080000", 40)
    with pytest.raises(UsageError) as caught:
        find_run("mnis")
    assert str(caught.value) == (
        "'mnis' matches 4 runs: mnist-20261120-120000-2, mnist-deep-20261121-090000, "
        "mnist-deeper-20261123-080000 and 1 more; give more of the name"
    )


@pytest.mark.parametrize(
    "text", ["resnet", "../a", "x" * 300, "a\nb\x1b[31m", "\udcff", ".\x00", "~nobody-of-that-name"]
)
def test_whatever_is_written_is_a_run_or_a_usage_error_in_one_line(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    kept("mnist-1")
    for find in (find_run, resumable, live_run):
        with pytest.raises(UsageError, match="no run") as caught:
            find(text)
        assert "\n" not in str(caught.value)
        assert (caught.value.exit_status, bool(caught.value.hint)) == (2, True)


def with_checkpoints(name: str, age_seconds: int = 0) -> RunDir:
    run_dir = RunDir(kept(name, age_seconds).parent)
    run_dir.write_run_json({"asked": {"model": "mnist"}})
    run_dir.checkpoints_path.mkdir()
    checkpoint(run_dir).touch()
    return run_dir


def checkpoint(run_dir: RunDir) -> Path:
    return run_dir.checkpoints_path / "step-000000009.pt"


def of_a_script(name: str, age_seconds: int = 0) -> RunDir:
    """The run of a script, in whose folder the script keeps what looks like checkpoints of ours."""
    run_dir = with_checkpoints(name, age_seconds)
    run_dir.write_run_json({"asked": {"script": ["train.py"], "max_restarts": 0}})
    return run_dir


def told(find: Callable[[str], object], text: str) -> str:
    with pytest.raises((UsageError, RunFolderError)) as caught:
        find(text)
    return str(caught.value)


def test_a_run_that_is_running_or_lacks_what_it_needs_cannot_be_gone_on_with() -> None:
    run_dir = with_checkpoints("mnist-1")
    with RunLock.take(run_dir.path):
        running = told(resumable, "mnist-1")
    assert running.startswith(f"mnist-1 is still running, pid {os.getpid()} on ")
    assert running.endswith("watch it with `amptui attach mnist-1`")
    shutil.rmtree(run_dir.checkpoints_path)
    assert told(resumable, "mnist-1").endswith(
        "mnist-1: it has no checkpoints; start a new run, or choose another with --resume RUN"
    )
    run_dir.run_json_path.unlink()
    checkpoint(run_dir).parent.mkdir()
    checkpoint(run_dir).touch()
    assert "mnist-1: it has no run.json; start a new run" in told(resumable, "mnist-1")


def test_the_newest_run_that_can_go_on_is_taken_and_said_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a newer one of a script, nor one without a checkpoint or its options; that of a model, if named."""
    kept("mnist-20261119-120000", 70)
    of_a_script("vit-20261119-120000", 80)
    assert "none of 2 runs can be resumed: the newest, mnist-20261119-120000, has no" in told(resumable, "")
    mnist, vit = with_checkpoints("mnist-20261120-120000", 50), with_checkpoints("vit-20261120-120000", 60)
    (tmp_path / "mine").symlink_to(mnist.path)
    monkeypatch.chdir(mnist.path)
    for text in (str(mnist.path), str(mnist.journal_path), str(tmp_path / "mine"), "."):
        assert resumable(text) == mnist
    lines: list[str] = []
    assert resumable("mnist", say=lines.append) == mnist
    assert resumable("mnist-20261120-120000", say=lines.append) == mnist
    assert lines == ["resuming mnist-20261120-120000"]
    of_a_script("mnist-20261121-120000", 21)
    of_a_script("vit-20261121-120000", 20)
    resumable("", say=lines.append)
    reason = "the newest, vit-20261121-120000, is of a script, which amptui does not resume"
    assert lines[1:] == [f"resuming mnist-20261120-120000: {reason}"]
    for name in ("mnist-20261122-120000", "vit-20261122-120000"):
        checkpoint(with_checkpoints(name, 10)).unlink()
    with_checkpoints("mnist-20261123-120000", 5).run_json_path.unlink()
    kept("observed-20261122-120000")
    assert resumable("") == resumable("mnist") == mnist
    assert resumable("vit") == vit


def test_no_older_run_is_taken_while_the_newest_training_runs_but_while_a_script_does() -> None:
    mnist, script = with_checkpoints("mnist-1", 10), of_a_script("train-1")
    with RunLock.take(script.path):
        assert resumable("") == mnist
    begun = RunDir(kept("vit-1", -10).parent)
    with RunLock.take(begun.path):
        assert told(resumable, "").startswith("vit-1 is still running")
    newest = with_checkpoints("vit-2", -20)
    with RunLock.take(newest.path):
        assert told(resumable, "").startswith("vit-2 is still running")


def test_a_run_that_goes_on_on_another_machine_is_not_taken_over_until_it_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A lock of another machine may not be seen here."""
    signed_elsewhere = with_checkpoints("mnist-1")
    signed_elsewhere.lock_path.write_text(json.dumps({"pid": 5, "host": "elsewhere", "started": 1.0}))
    os.utime(signed_elsewhere.journal_path)
    monkeypatch.setattr(lock, "_LOOK_SECONDS", 0.01)
    ended = threading.Event()

    def write() -> None:
        with signed_elsewhere.journal_path.open("a") as journal:
            while not ended.wait(0.01):
                journal.write("{}\n")
                journal.flush()

    writer = threading.Thread(target=write)
    writer.start()
    running = "mnist-1 is still running, pid 5 on elsewhere: it has just written a record"
    try:
        for text in ("", "mnist-1", str(signed_elsewhere.path)):
            assert told(resumable, text) == f"{running}; log in there to watch or stop it"
        checkpoint(signed_elsewhere).rename(signed_elsewhere.path / "aside")
        with pytest.raises(RunFolderError, match=running):
            can_go_on(signed_elsewhere.path)
        assert signed_elsewhere.journal_path.exists(), "nothing is set aside"
    finally:
        ended.set()
        writer.join()
    monkeypatch.setattr(lock, "_HEARTBEATS_SECONDS", 0.1)
    (signed_elsewhere.path / "aside").rename(checkpoint(signed_elsewhere))
    assert resumable("mnist-1") == signed_elsewhere
    checkpoint(signed_elsewhere).unlink()
    assert can_go_on(signed_elsewhere.path) is False
    assert not signed_elsewhere.journal_path.exists(), "it is set aside for a new start"


def test_the_live_run_is_found_by_nothing_by_name_and_by_folder() -> None:
    kept("mnist-20261121-090000", 0)
    run_dir = RunDir(kept("mnist-20261120-120000", 50).parent)
    paths = (run_dir.path, run_dir.journal_path)
    with RunLock.take(run_dir.path):
        for text in ("", "mnist", "mnist-2026", run_dir.path.name, *map(str, paths)):
            assert live_run(text) == run_dir
        run_dir.lock_path.write_text("")  # it has not signed yet
        assert live_run(run_dir.path.name) == run_dir


def test_of_several_live_runs_the_one_started_last_is_shown_unless_a_name_may_mean_both() -> None:
    first, second = RunDir(kept("mnist-1").parent), RunDir(kept("mnist-2", 50).parent)
    with RunLock.take(first.path), RunLock.take(second.path):
        assert live_run("") == second
        assert live_run("mnist-1") == first
        assert told(live_run, "mnist").startswith("'mnist' matches 2 live runs: mnist-1, mnist-2; give more")


def test_where_no_run_is_live_it_is_told_what_to_do_instead() -> None:
    assert told(live_run, "") == "no run is live; `amptui train MODEL` starts one"
    run_dir = with_checkpoints("mnist-1")
    done = RunFinished(time=1.0, steps=3, seconds=1.0, reason="done")
    run_dir.journal_path.write_text(f"{codec.dumps(done)}\n")
    view = "view it with `amptui replay mnist-1`"
    assert told(live_run, "") == f"no run is live; the newest, mnist-1, finished; {view}"
    run_dir.journal_path.write_text("")
    resume = "or resume it with `amptui train --resume mnist-1`"
    why = "as SIGKILL leaves it: out of memory, a scheduler, or `kill -9`"
    assert told(live_run, "mnist-1") == f"mnist-1 died unexpectedly ({why}); {view}, {resume}"


def test_a_live_run_of_another_machine_is_told() -> None:
    here, there = RunDir(kept("a").parent), RunDir(kept("b").parent)
    with RunLock.take(there.path):
        there.lock_path.write_text(json.dumps({"pid": 5, "host": "elsewhere", "started": 9e9}))
        for text in ("", "b"):
            assert told(live_run, text) == "b is running on elsewhere; log in there to watch it"
        with RunLock.take(here.path):
            assert live_run("") == here


def test_of_all_runs_live_ones_come_first_and_keep_their_places() -> None:
    kept("old", 10)
    kept("newest")
    first, second = kept("first", 20), kept("second", 30)
    with RunLock.take(first.parent), RunLock.take(second.parent):
        os.utime(RunDir(first.parent).lock_path, (100.0, 100.0))
        os.utime(RunDir(second.parent).lock_path, (200.0, 200.0))
        for written in (1_900_000_000.0, 2_000_000_000.0):
            os.utime(first, (written, written))
            entries = listed_runs()
            assert [entry.name for entry in entries] == ["second", "first", "newest", "old"]
            assert [entry.is_live for entry in entries] == [True, True, False, False]
            assert [entry.read().is_live for entry in entries] == [True, True, False, False]
    assert [entry.name for entry in listed_runs()] == ["first", "newest", "old", "second"]
