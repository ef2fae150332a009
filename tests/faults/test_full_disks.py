"""Disks that are full, gone or read-only under each thing written: what is missing is named, no more lost."""

import errno
import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile

import pytest

from amptui.records import codec
from amptui.records.keeping import UNSAVED_STATUS
from amptui.records.run import RunFinished
from amptui.records.steps import Steps
from amptui.runs.journal import JournalReader
from tests.checkout import ROOT
from tests.living import (
    Lives,
    changed_program,
    ended_afterwards,
    headless_run,
    last_step,
    lost,
    outcome,
    run_pid,
    shown_step,
    steps_of,
    stop,
    train_arguments,
    wait_until,
    witnessed_arguments,
)
from tests.terminal import Terminal, amptui_command
from tests.warm import PATIENCE_SECONDS, WarmSource, start_piped

NO_ROOM_BYTES, RUN_JSON_BYTES = 700, 8192
"""Files that may grow so far have room for none of a run's, or for its ``run.json`` and some records."""

LIMITED = """
import resource
sys.dont_write_bytecode = True  # each module would be kept cut off
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
"""
"""To the program, a file size limit is what a quota or a full disk is; it needs no rights."""


def limited_command(limit: int, *arguments: str) -> list[str]:
    return [sys.executable, "-c", changed_program(LIMITED.format(limit=limit)), *arguments]


@pytest.fixture(autouse=True)
def _no_bytecode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # of scripts, too
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # scripts import from tests


def limited(warm: WarmSource, limit_bytes: int, *arguments: str) -> tuple[int, str, str]:
    """Run `amptui` where there is no room to its end; what it says goes through pipes, which have some."""
    with start_piped(limited_command(limit_bytes, *arguments), warm) as process:
        out, err = process.communicate(PATIENCE_SECONDS)
        return process.wait(), out, err


def training(folder: Path, *options: str) -> list[str]:
    return train_arguments(folder, "--checkpoint-every", "20", *options)


def lines_of_ours(said: str) -> list[str]:
    return [line.removeprefix("amptui: ") for line in said.splitlines() if line.startswith("amptui: ")]


def unsaved(said: str) -> dict[str, int]:
    """What the lines on standard error name, and how much of it is missing."""
    found = {}
    for line in lines_of_ours(said):
        part = "run.json" if "run.json" in line else line.partition(":")[0]
        number = re.search(r"([\d,]+) (?:records are lost|could not be written)", line)
        found[part] = int(number[1].replace(",", "")) if number else 1
    return found


@pytest.mark.ci
def test_records_and_checkpoints_that_find_no_room_are_counted_and_the_status_says_so(
    warm: WarmSource, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    status, out, err = limited(warm, RUN_JSON_BYTES, *training(folder, "--steps", "100", "--json"))
    # The line after the last record is the answer about AMP, which is no record.
    emitted = [codec.loads(line) for line in out.splitlines() if '"AmpAnswer"' not in line]
    assert sum(record.count for record in emitted if isinstance(record, Steps)) == 100
    kept = list(JournalReader(folder / "journal.jsonl"))
    # The last word on what is lost comes when the journal is closed.
    lost = len(emitted) - 1 - len(kept)
    assert lost > 0
    assert (status, unsaved(err)) == (UNSAVED_STATUS, {"journal": lost, "checkpoints": 5})


@pytest.mark.parametrize(
    ("options", "status", "named"),
    [
        pytest.param((), UNSAVED_STATUS, "run.json", marks=pytest.mark.ci),
        (("--set", "trouble=loss", "--set", "at=30"), 1, "ValueError"),
        pytest.param(("--save-weights", "weights.pt"), 1, "weights.pt: ", marks=pytest.mark.ci),
    ],
    ids=["done", "failed", "weights"],
)
def test_what_finds_no_room_is_named_and_a_worse_status_stays(
    options: tuple[str, ...],
    status: int,
    named: str,
    warm: WarmSource,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    command = training(tmp_path / "run", "--headless", "--steps", "30", *options)
    ended, _, err = limited(warm, NO_ROOM_BYTES, *command)
    assert ended == status
    assert {"journal", "checkpoints", "run.json"} <= set(unsaved(err))
    assert named in err


@pytest.mark.ci
def test_the_screen_s_last_lines_and_status_tell_it_too(warm: WarmSource, tmp_path: Path) -> None:
    folder, gate = tmp_path / "run", tmp_path / "gate"
    options = ("--steps", "60", "--set", f"gate={gate}")
    command = limited_command(resource.RLIM_INFINITY, *training(folder, *options))
    with ended_afterwards(folder), Terminal(command, warm=warm) as terminal:
        wait_until(lambda: last_step(folder) or (folder / "run.json").exists(), "no run began")
        pid = run_pid(folder)
        assert pid is not None
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (1000, 1000))
        gate.touch()
        terminal.wait_for("done")
        assert terminal.leave("q") == UNSAVED_STATUS
        after_the_screen = bytes(terminal.written).rpartition(b"\x1b[?1049l")[2].decode()
        assert set(unsaved(after_the_screen.replace("\r\n", "\n"))) == {"journal", "checkpoints"}


SCRIPT = """
import sys
import amptui
from tests.observed import Loop
loop = Loop("fp16")
with amptui.observe(loop.model, loop.optimizer, loop.scaler, samples_per_step=8):
    for step in range(1, 101):
        loop.train_step(step)
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.ci
@pytest.mark.parametrize(("own", "status"), [(0, UNSAVED_STATUS), (7, 7)])
def test_a_script_s_own_status_wins_unless_it_is_0(
    own: int, status: int, warm: WarmSource, tmp_path: Path
) -> None:
    script, folder = tmp_path / "script.py", tmp_path / "run"
    script.write_text(SCRIPT)
    command = ("run", "--headless", "--run-dir", str(folder), str(script), str(own))
    ended, _, err = limited(warm, RUN_JSON_BYTES, *command)
    assert ended == status
    assert unsaved(err)["journal"] > 0
    assert {path.name for path in folder.iterdir()} <= {"journal.jsonl", "run.json", "run.lock"}


@pytest.mark.parametrize("name", ["a.csv", "a.html"])
def test_an_export_that_finds_no_room_fails_names_its_file_and_keeps_the_old_one(
    name: str, warm: WarmSource, tmp_path: Path
) -> None:
    journal, option = ROOT / "demo" / "mnist-deep.jsonl", f"--{name[2:]}"
    (tmp_path / name).write_text("old")
    status, _, err = limited(warm, NO_ROOM_BYTES, "export", str(journal), option, str(tmp_path / name))
    (line,) = lines_of_ours(err)
    assert (status, str(tmp_path / name) in line) == (1, True), line
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


DISK_BYTES = 4 * 2**20


@contextmanager
def small_disk(place: Path) -> Iterator[Path]:
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(place)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.partition(chr(10))[0]}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(file: Path) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT)
    with suppress(OSError):  # no space left
        for _ in range(2 * DISK_BYTES // 1024):
            os.write(descriptor, bytes(1024))
    os.close(descriptor)
    assert file.stat().st_size < 2 * DISK_BYTES


@pytest.mark.ci
def test_a_disk_that_fills_stops_the_keeping_and_not_the_training(
    lives: Lives, warm: WarmSource, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk") as disk, headless_run(lives, disk / "run") as run:
        with Terminal(amptui_command("attach", str(run)), warm=warm) as screen:
            screen.wait_for(r"step\s+[\d,]+")
            fill(disk / "junk")
            screen.wait_for("journal.* not saved")
            reached = last_step(run) + 500
            wait_until(
                lambda: shown_step(screen) > reached, f"training stood still with a full disk:\n{screen.text}"
            )
            (disk / "junk").unlink()
            wait_until(lambda: last_step(run) > reached, "nothing is kept again")
            wait_until(lambda: "not saved" not in (screen.read(0.1), screen.text)[1], "it still says so")
            assert screen.leave("d") == 0
        stop(run)
        assert lost(run) == (0, 0)


@pytest.mark.ci
def test_a_journal_that_is_taken_away_is_told_and_the_training_goes_on(lives: Lives, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = lives.start(*witnessed_arguments(folder, "--set", "step_ms=2", "--steps", "1500"))
    wait_until(lambda: folder.exists() and steps_of(folder), "no step was made")
    (folder / "journal.jsonl").rename(tmp_path / "aside")
    assert process.wait(PATIENCE_SECONDS) == UNSAVED_STATUS
    assert set(unsaved(lives.log.read_text())) == {"journal"}
    *_, last = JournalReader(tmp_path / "aside")
    assert isinstance(last, RunFinished)


FULL = Path("/dev/full")

needs_full = pytest.mark.skipif(not FULL.is_char_device(), reason="needs /dev/full")


@needs_full
@pytest.mark.ci
@pytest.mark.parametrize(("command", "unbuffered"), [("models", ""), ("runs", "1"), ("train --help", "1")])
def test_a_command_whose_output_finds_no_room_says_so_and_fails(command: str, unbuffered: str) -> None:
    with FULL.open("w") as full:
        done = subprocess.run(
            amptui_command(*command.split()),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            check=False,
        )
    (line,) = done.stderr.splitlines()
    assert (done.returncode, line.startswith("amptui: ")) == (1, True)
    assert os.strerror(errno.ENOSPC) in line


def trains_on(warm: WarmSource, run: Path, option: str, out: int) -> list[str]:
    """Train a model that prints in every way there is; the lines on standard error that are ours."""
    command = amptui_command(*training(run, "--steps", "90", option, "--set", "trouble=print"))
    with open(os.devnull) as nothing, TemporaryFile("w+") as err:  # noqa: PTH123
        process = warm.start(command, nothing.fileno(), out, err.fileno())
        assert process.wait(60) == 0
        err.seek(0)
        said = err.read()
    assert outcome(run) is RunFinished
    assert len(steps_of(run)) == 90
    return lines_of_ours(said)


@needs_full
@pytest.mark.ci
@pytest.mark.parametrize("option", ["--headless", "--json"])
def test_a_training_goes_on_without_room_for_its_lines_and_after_their_reader_is_gone(
    option: str, warm: WarmSource, tmp_path: Path
) -> None:
    with FULL.open("w") as full:
        (said,) = trains_on(warm, tmp_path / "full", option, full.fileno())
    assert f"{os.strerror(errno.ENOSPC)}; training continues" in said
    reading, writing = os.pipe()
    os.close(reading)
    assert trains_on(warm, tmp_path / "gone", option, writing) == []
    os.close(writing)
