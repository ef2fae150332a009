"""A run folder that somebody else prepared: no file outside of it is harmed."""

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from amptui.base.errors import AmptuiError, RunFolderError
from amptui.checkpoint.file import (
    DamagedError,
    checkpoint_name,
    checkpoints,
    clear,
    prune,
    read,
    write,
)
from amptui.process.capture import _OutputLog
from amptui.process.training import redirect_output
from amptui.records.run import Record
from amptui.reports.export import export
from amptui.runs import socket_place
from amptui.runs.find import find_run, resumable
from amptui.runs.journal import Journal, JournalReader, cut_after
from amptui.runs.kept_run import look_at
from amptui.runs.lock import RunLock, holder
from amptui.runs.rundir import RunDir, create_run_dir
from amptui.tui.replay.player import span_of
from tests.builders import make_run
from tests.checkpoint.test_file import checkpoint_at

SECRET = b"the only copy\n"


RUN = make_run(9)


def recorded(folder: Path, records: Iterable[Record]) -> Path:
    folder.mkdir(exist_ok=True)
    journal = Journal(RunDir(folder).journal_path)
    journal.append(records)
    journal.close()
    return folder


NAMES = (
    *("run.lock", "journal.jsonl", "run.json", "output.log", "run.sock", "checkpoints"),
    *("journal.after-step-3-1.jsonl", f"checkpoints/{checkpoint_name(7)}"),
    f"checkpoints/{checkpoint_name(7)}.writing",
)
"""All that amptui opens in a run's folder by a name that can be foreseen."""


def print_something(folder: Path) -> None:
    log = _OutputLog(folder / "output.log", lambda _record: None)
    log.write(b"printed\n")
    log.close()


def write_checkpoints(folder: Path) -> None:
    write(checkpoint_at(7, numbers=1), folder / "checkpoints")
    prune(folder / "checkpoints")


def read_checkpoints(folder: Path) -> None:
    for found in checkpoints(folder / "checkpoints"):
        with suppress(DamagedError):
            read(found)
    clear(folder / "checkpoints", after=3)


WRITERS: tuple[Callable[[Path], object], ...] = (
    lambda folder: RunLock.take(folder).release(),
    lambda folder: recorded(folder, RUN),
    lambda folder: cut_after(folder / "journal.jsonl", 3),
    lambda folder: RunDir(folder).write_run_json({"asked": {}}),
    print_something,
    lambda folder: redirect_output(folder / "output.log", []),
    lambda folder: socket_place.listen(folder).close(),
    write_checkpoints,
    read_checkpoints,
    lambda folder: RunDir(folder).set_aside(),
)

READERS: tuple[Callable[[Path], object], ...] = (
    holder,
    lambda folder: look_at(RunDir(folder)),
    lambda folder: list(JournalReader(folder / "journal.jsonl")),
    lambda folder: span_of(folder / "journal.jsonl"),
    lambda folder: export(folder, csv=folder.parent / "steps.csv"),
    socket_place.connect,
    read_checkpoints,
)


@pytest.mark.ci
@pytest.mark.parametrize("name", NAMES)
def test_nothing_outside_of_a_prepared_folder_is_touched(tmp_path: Path, name: str) -> None:
    home = tmp_path / "home"
    home.mkdir()
    victim = home / checkpoint_name(7)
    victim.write_bytes(SECRET)
    victim.chmod(0o640)
    before = victim.stat()
    for number, act in enumerate([*READERS, *WRITERS]):
        prepared = tmp_path / str(number)
        planted = prepared / name
        planted.parent.mkdir(parents=True)
        planted.symlink_to(victim)
        with suppress(AmptuiError, OSError):
            act(prepared)
        after = victim.stat()
        assert victim.read_bytes() == SECRET
        assert (after.st_mode, after.st_ino) == (before.st_mode, before.st_ino)
        assert [each.name for each in home.iterdir()] == [victim.name]


@pytest.mark.parametrize(
    ("name", "act", "told"),
    [
        ("run.lock", WRITERS[0], "cannot lock .*: a symbolic link, and none is followed here"),
        ("journal.jsonl", WRITERS[1], "cannot write the journal .*: a symbolic link"),
        ("checkpoints", lambda folder: resumable(str(folder)), r"cannot read .*checkpoints: a symbolic link"),
    ],
)
def test_a_link_is_told(tmp_path: Path, name: str, act: Callable[[Path], object], told: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).symlink_to(tmp_path)
    if name == "checkpoints":
        RunDir(tmp_path / "run").write_run_json({})
    with pytest.raises(RunFolderError, match=told):
        act(tmp_path / "run")


def test_a_journal_that_a_person_names_may_be_a_link(tmp_path: Path) -> None:
    kept = recorded(tmp_path / "run", RUN)
    (tmp_path / "best.jsonl").symlink_to(kept / "journal.jsonl")
    (tmp_path / "latest").symlink_to(kept)
    for name in ("best.jsonl", "latest"):
        assert export(find_run(str(tmp_path / name)), csv=tmp_path / "steps.csv").steps == 9


# ---------------------------------------------------------------------------------------------- modes


@pytest.fixture
def _no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    found = {str(each.relative_to(folder)): stat.S_IMODE(each.lstat().st_mode) for each in folder.rglob("*")}
    return {re.sub(r"-\d{8}-\d{6}", "", name): mode for name, mode in found.items()}


@pytest.mark.usefixtures("_no_umask")
def test_whatever_the_umask_a_run_is_its_user_s_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run_dir = create_run_dir(None, "m")
    for act in WRITERS[:-1]:
        act(run_dir.path)
    found = modes(tmp_path)
    folders = {"state", "state/amptui", "state/amptui/runs"}
    folders |= {"state/amptui/runs/m", "state/amptui/runs/m/checkpoints"}
    assert {name for name, mode in found.items() if mode == 0o700} == folders
    assert len(found) >= len(folders) + 6
    assert {mode for name, mode in found.items() if name not in folders} == {0o600}
