"""A full disk under each file of a run: what is missing is named with its number, and the status says so."""

import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile

import pytest

from amptui.records import codec
from amptui.records.keeping import UNSAVED_STATUS, KeepingChanged
from amptui.records.steps import Steps
from amptui.runs.journal import TRUNCATED
from amptui.runs.reader import JournalReader
from tests.checkout import ROOT
from tests.faults.test_disk import fill, small_disk
from tests.living import ended_afterwards, last_step, records_of, run_pid, steps_of, wait_until
from tests.terminal import FRAMES, KNOBS, Terminal, amptui_command
from tests.warm import PATIENCE_SECONDS, Process, WarmSource

NO_ROOM_BYTES, RUN_JSON_BYTES = 700, 8192
"""Files that may grow so far have room for none of a run's, or for its ``run.json`` and some records."""

SCRIPT = """
import sys, time
import amptui
from tests.observed import Loop
loop = Loop("fp16")
with amptui.observe(loop.model, loop.optimizer, loop.scaler, samples_per_step=8):
    for step in range(1, 101):
        loop.train_step(step)
sys.exit(int(sys.argv[1]))
"""


LIMITED = """
import resource, sys
sys.dont_write_bytecode = True  # each module would be kept cut off
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit_bytes}, {limit_bytes}))
from amptui.cli import main
sys.exit(main(sys.argv[1:]))
"""
"""To the program, a file size limit is what a quota or a full disk is; it needs no rights."""

FORGETFUL = """
import sys
from amptui.cli import main
from amptui.runs import journal
journal._FIRST_BYTES, journal._LAST_BYTES = 1, 1
sys.exit(main(sys.argv[1:]))
"""
"""Of the lines that it wrote, it keeps the first and the newest in memory."""


def limited_command(limit_bytes: int, *arguments: str) -> list[str]:
    """`amptui`, none of whose files grows beyond the limit."""
    return [sys.executable, "-c", LIMITED.format(limit_bytes=limit_bytes), *arguments]


@pytest.fixture(autouse=True)
def _no_bytecode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # of scripts, too


class Started:
    """A program; what it says goes through pipes, which have room where files have none."""

    def __init__(self, warm: WarmSource, command: Sequence[str]) -> None:
        self._said = TemporaryFile("w+"), TemporaryFile("w+")  # noqa: SIM115
        pipes = os.pipe(), os.pipe()
        self._copies = [
            subprocess.Popen(["cat"], stdin=reading, stdout=file)
            for (reading, _), file in zip(pipes, self._said, strict=True)
        ]
        with open(os.devnull) as nothing:  # noqa: PTH123
            self.process: Process = warm.start(command, nothing.fileno(), pipes[0][1], pipes[1][1])
        for descriptor in (*pipes[0], *pipes[1]):
            os.close(descriptor)

    def end(self) -> tuple[int, str, str]:
        """The exit status, and what it said on both streams."""
        status = self.process.wait(PATIENCE_SECONDS)
        texts = []
        for copy, file in zip(self._copies, self._said, strict=True):
            copy.wait(PATIENCE_SECONDS)
            file.seek(0)
            texts.append(file.read())
            file.close()
        return status, texts[0], texts[1]


def limited(warm: WarmSource, limit_bytes: int, *arguments: str) -> Started:
    """`amptui` where there is no room."""
    return Started(warm, limited_command(limit_bytes, *arguments))


def training(folder: Path, *options: str) -> list[str]:
    often = ["--checkpoint-every", "20", "--device", "cpu", "--run-dir", str(folder)]
    return ["train", KNOBS, *often, *options]


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
    run = limited(warm, RUN_JSON_BYTES, *training(folder, "--steps", "100", "--json"))
    status, out, err = run.end()
    # The line after the last record is the answer about AMP, which is no record.
    emitted = [record for line in out.splitlines() if (record := codec.loads(line)) is not None]
    assert sum(record.count for record in emitted if isinstance(record, Steps)) == 100
    kept = list(JournalReader(folder / "journal.jsonl"))
    # The last word on what is lost comes when the journal is closed.
    lost = len(emitted) - 1 - len(kept)
    assert lost > 0
    assert (status, unsaved(err)) == (UNSAVED_STATUS, {"journal": lost, "checkpoints": 5})


@pytest.mark.ci
def test_a_run_json_that_finds_no_room_is_named_too(warm: WarmSource, tmp_path: Path) -> None:
    run = limited(warm, NO_ROOM_BYTES, *training(tmp_path / "run", "--steps", "30", "--headless"))
    status, _, err = run.end()
    assert status == UNSAVED_STATUS
    assert set(unsaved(err)) == {"journal", "checkpoints", "run.json"}


WIDE = """
from torch import nn
from tests.recipes.knobs import Knobs

class Wide(Knobs):
    def build_model(self):
        super().build_model()
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 4096), nn.Linear(4096, 64), nn.Linear(64, 4))
"""


@pytest.mark.ci
def test_checkpoints_alone_that_find_no_room_are_enough(warm: WarmSource, tmp_path: Path) -> None:
    model, folder = tmp_path / "wide.py", tmp_path / "run"
    model.write_text(WIDE)
    command = ["train", str(model), "--device", "cpu", "--run-dir", str(folder), "--steps", "30"]
    status, _, err = limited(warm, 2**19, *command, "--headless").end()
    assert (status, unsaved(err)) == (UNSAVED_STATUS, {"checkpoints": 1})


@pytest.mark.parametrize(
    ("options", "status"),
    [
        (("--set", "trouble=loss", "--set", "at=30"), 1),
        (("--save-weights", "weights.pt", "--steps", "30"), 1),
        (("--save-weights", "weights.safetensors", "--steps", "30"), 1),
    ],
)
def test_a_run_that_fails_keeps_its_status(
    options: tuple[str, ...], status: int, warm: WarmSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if "weights.safetensors" in options:
        pytest.importorskip("safetensors")
    ended, _, err = limited(warm, NO_ROOM_BYTES, *training(tmp_path / "run", "--headless", *options)).end()
    assert ended == status
    assert {"journal", "checkpoints"} < set(unsaved(err))
    if "--save-weights" in options:
        (line,) = (line for line in lines_of_ours(err) if options[1] in line)
        assert line.startswith("cannot write ")


def test_a_run_that_is_interrupted_keeps_its_status(warm: WarmSource, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with ended_afterwards(folder):
        run = limited(warm, RUN_JSON_BYTES, *training(folder, "--headless"))
        wait_until(lambda: last_step(folder), "no step was made")
        run.process.send_signal(signal.SIGTERM)
        status, _, err = run.end()
    assert status == 128 + signal.SIGTERM
    assert "checkpoints" in unsaved(err)


@pytest.mark.ci
def test_the_screen_s_last_lines_and_status_tell_it_too(warm: WarmSource, tmp_path: Path) -> None:
    folder, gate = tmp_path / "run", tmp_path / "gate"
    options = ("--steps", "60", "--set", f"gate={gate}")
    command = limited_command(resource.RLIM_INFINITY, *training(folder, *options, *FRAMES))
    with ended_afterwards(folder), Terminal(command, warm=warm) as terminal:
        wait_until(lambda: last_step(folder) or (folder / "run.json").exists(), "no run began")
        pid = run_pid(folder)
        assert pid is not None
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (1000, 1000))
        gate.touch()
        terminal.wait_for("done")
        terminal.press("q")
        assert terminal.wait() == UNSAVED_STATUS
        assert set(unsaved(written(terminal))) == {"journal", "checkpoints"}


def written(terminal: Terminal) -> str:
    """What stands on the terminal after the screen has closed, long lines whole."""
    return bytes(terminal.written).rpartition(b"\x1b[?1049l")[2].decode().replace("\r\n", "\n")


@pytest.mark.ci
@pytest.mark.parametrize(("own", "status"), [(0, UNSAVED_STATUS), (7, 7)])
def test_a_script_s_own_status_wins_unless_it_is_0(
    own: int, status: int, warm: WarmSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))  # the script imports from tests
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    folder = tmp_path / "run"
    run = limited(warm, RUN_JSON_BYTES, "run", "--headless", "--run-dir", str(folder), str(script), str(own))
    ended, _, err = run.end()
    assert ended == status
    assert unsaved(err)["journal"] > 0
    assert {path.name for path in folder.iterdir()} <= {"journal.jsonl", "run.json", "run.lock"}


@pytest.mark.parametrize(
    ("option", "name"), [("--csv", "a.csv"), ("--html", "a.html"), ("--tensorboard", "a")]
)
def test_an_export_that_finds_no_room_fails_and_names_its_file(
    option: str, name: str, warm: WarmSource, tmp_path: Path
) -> None:
    if option == "--tensorboard":
        pytest.importorskip("tensorboard")
    journal = ROOT / "demo" / "mnist-deep.jsonl"
    run = limited(warm, NO_ROOM_BYTES, "export", str(journal), option, str(tmp_path / name))
    status, _, err = run.end()
    (line,) = lines_of_ours(err)
    assert (status, str(tmp_path / name) in line) == (1, True), line


@pytest.mark.ci
def test_a_real_disk_that_stays_full_is_told_by_the_status(warm: WarmSource, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        folder = disk / "run"
        run = limited(warm, resource.RLIM_INFINITY, *training(folder, "--steps", "2000", "--headless"))
        with ended_afterwards(folder):
            wait_until(lambda: last_step(folder) and list(folder.glob("checkpoints/*.pt")), "no checkpoint")
            fill(disk / "junk")
            status, _, err = run.end()
    assert (status, set(unsaved(err))) == (UNSAVED_STATUS, {"journal", "checkpoints"})


@pytest.mark.ci
def test_a_live_journal_that_is_truncated_is_told_at_once_at_the_end_and_by_resume(
    warm: WarmSource, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    options = ("--steps", "200", "--set", "step_ms=8", "--headless")  # a dozen steps each time it is written
    run = Started(warm, [sys.executable, "-c", FORGETFUL, *training(folder, *options)])
    with ended_afterwards(folder):
        wait_until(lambda: last_step(folder) > 60, "too few steps")
        before = set((folder / "journal.jsonl").read_bytes().splitlines())
        os.truncate(folder / "journal.jsonl", 0)
        (told, *_) = wait_until(lambda: changes(folder), "it was not noticed")
        status, out, err = run.end()
    lost = before - set((folder / "journal.jsonl").read_bytes().splitlines())
    assert told.what == "journal"
    assert told.unsaved is not None, "it was counted"
    assert 0 < len(lost) <= told.unsaved, "others may have been written in between"
    assert TRUNCATED in out
    assert (status, unsaved(err)) == (UNSAVED_STATUS, {"journal": told.unsaved})
    kept = {record.step for record in steps_of(folder)}
    missing = sorted(set(range(1, 201)) - kept)
    assert missing
    more = ["train", KNOBS, "--resume", str(folder), "--steps", "210", "--device", "cpu", "--headless"]
    status, out, err = Started(warm, amptui_command(*more)).end()
    assert (status, err) == (0, "")
    (line,) = (line for line in out.splitlines() if "the journal lacks" in line)
    assert f"the journal lacks {len(missing)} of the 200 steps so far: {missing[0]}" in line


def changes(folder: Path) -> list[KeepingChanged]:
    """What the journal tells of its own trouble."""
    return [record for record in records_of(folder) if isinstance(record, KeepingChanged) and record.trouble]
