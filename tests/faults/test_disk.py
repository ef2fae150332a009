"""A disk that fills, a journal that is deleted, a folder that is taken away, while a training goes on."""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.faults.watched import Lives, headless_run, lost, stop
from tests.living import last_step, records_of, run_pid, wait_until
from tests.terminal import FRAMES, Terminal, amptui_command
from tests.warm import WarmSource

DISK_BYTES = 4 * 2**20


@contextmanager
def small_disk(place: Path) -> Iterator[Path]:
    """A file system of a few MB in memory."""
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
    """Write until there is no room."""
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
        with Terminal(amptui_command("attach", str(run), *FRAMES), warm=warm) as screen:
            screen.wait_for(r"step\s+[\d,]+")
            fill(disk / "junk")
            screen.wait_for("journal.* not saved")
            kept = last_step(run)
            reached = kept + 500
            wait_until(
                lambda: shown_step(screen) > reached, f"training stood still with a full disk:\n{screen.text}"
            )
            (disk / "junk").unlink()
            wait_until(lambda: last_step(run) > reached, "nothing is kept again")
            wait_until(lambda: "not saved" not in (screen.read(0.1), screen.text)[1], "it still says so")
            screen.press("d")
            assert screen.wait() == 0
        stop(run)
        steps_lost, records_lost = lost(run)
        assert (steps_lost, records_lost) == (0, 0)


def delete_journal(run: Path) -> None:
    (run / "journal.jsonl").unlink()


def take_folder_away(run: Path) -> None:
    run.rename(run.with_name("elsewhere"))


@pytest.mark.ci
@pytest.mark.parametrize("take", [delete_journal, take_folder_away])
def test_what_is_taken_away_is_written_again_whole(
    take: Callable[[Path], None], lives: Lives, tmp_path: Path
) -> None:
    with headless_run(lives, tmp_path / "run") as run:
        pid = run_pid(run)
        assert pid is not None
        before = last_step(run)
        take(run)
        wait_until(
            lambda: (run / "journal.jsonl").exists() and last_step(run) > before + 100,
            "the journal was not written again",
        )
        os.kill(pid, 15)
        wait_until(lambda: any(type(r).__name__ == "RunFinished" for r in records_of(run)), "no last word")
        steps_lost, records_lost = lost(run)
    assert (steps_lost, records_lost) == (0, 0)


def shown_step(screen: Terminal) -> int:
    """What the screen shows after reading on for a moment."""
    screen.read(0.1)
    return int(screen.wait_for(r"step\s+([\d,]+)")[1].replace(",", ""))
