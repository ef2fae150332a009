"""Hostile paths: no file is written that the command line does not name, and none that amptui owns.

Nothing of another user's is used without a word.
"""

import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from amptui.base.errors import RunFolderError
from amptui.checkpoint import file as checkpoint_file
from amptui.checkpoint.file import checkpoint_name
from amptui.cli import main
from amptui.process.capture import redirect_output
from amptui.recipe.request import TrainRequest
from amptui.reports.export.exporting import export
from amptui.runs import socket_place
from amptui.runs.find import find_run
from amptui.runs.journal import Journal, cut_after
from amptui.runs.lock import RunLock
from amptui.runs.rundir import RunDir, create_run_dir
from tests.builders import make_run, write_journal
from tests.checkpoint.test_file import checkpoint_at
from tests.reports.compare.compared_runs import whole_run
from tests.terminal import KNOBS

SECRET = b"the only copy\n"


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Everything below ``folder``: its kind, and its bytes or where it leads."""
    found = {}
    for each in sorted(folder.rglob("*")):
        status = each.lstat()
        is_file = stat.S_ISREG(status.st_mode)
        held = each.read_bytes() if is_file else os.fsencode(each.readlink()) if each.is_symlink() else b""
        found[str(each.relative_to(folder))] = (stat.S_IFMT(status.st_mode), held)
    return found


@contextmanager
def nothing_written(folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> Iterator[None]:
    """What happens inside leaves all below ``folder`` as it was, and one line that contains ``words``."""
    before = contents(folder)
    yield
    said = capsys.readouterr().err
    assert said.startswith("amptui: ")
    assert said.count("\n") == 1
    assert [word for word in words if word not in said] == []
    assert contents(folder) == before


@pytest.fixture
def read(tmp_path: Path) -> Path:
    return whole(tmp_path / "read")


def whole(folder: Path) -> Path:
    write_journal(folder, whole_run())
    run_dir = RunDir(folder)
    run_dir.write_run_json({"asked": {"model": KNOBS}})
    (run_dir.checkpoints_path / "step-000000002.x-1.shards").mkdir(parents=True)
    (run_dir.checkpoints_path / checkpoint_name(3)).write_bytes(SECRET)
    for name in ("run.lock", "output.log", "journal.before-1.jsonl", "journal.after-step-3-1.jsonl"):
        (folder / name).write_bytes(SECRET)
    return folder


TRAIN = ("train", KNOBS, "--headless", "--device", "cpu", "--steps", "1", "--set", "step_ms=0")

ARGUMENTS: dict[str, Sequence[str]] = {
    "csv": ("export", "{read}", "--csv", "{out}"),
    "html": ("export", "{read}", "--html", "{out}"),
    "compare": ("compare", "{read}", "{other}", "--html", "{out}"),
    "weights": (*TRAIN, "--run-dir", "{new}", "--save-weights", "{out}"),
}

TARGETS = (
    ("csv", "read/journal.jsonl"),
    ("csv", "link to run.json"),
    ("html", "other/checkpoints/../run.lock"),
    ("compare", "read/journal.before-2.jsonl"),
    ("compare", "other/output.log"),
    ("weights", "read/journal.after-step-3-1.jsonl"),
    ("csv", "copied.jsonl"),
    ("compare", "copied.jsonl"),
)
"""What is asked for, and where it would be written, also such as is not there yet.

A copied journal is the one that is read.
"""


@pytest.mark.ci
@pytest.mark.parametrize(("kind", "name"), TARGETS)
def test_no_journal_and_no_file_beside_it_is_the_target_of_a_command(
    kind: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The run that the command reads, one that it has nothing to do with, but to compare with it, a new one.
    paths = {each: whole(tmp_path / each) for each in ("read", "other")} | {"new": tmp_path / "new"}
    out = tmp_path / name
    (tmp_path / "link to run.json").symlink_to(paths["other"] / "run.json")
    if name == "copied.jsonl":
        out.write_bytes((paths["read"] / "journal.jsonl").read_bytes())
        paths["read"] = out
    with nothing_written(tmp_path, capsys, str(out), "a run"):
        assert main([part.format(out=out, **paths) for part in ARGUMENTS[kind]]) == 2


def test_files_of_other_names_and_folders_without_a_run_are_the_user_s(read: Path, tmp_path: Path) -> None:
    mine = [read / name for name in ("run.csv", "w.json", "journal.csv", "checkpoints.csv", "page.html")]
    for path in (*mine, tmp_path / "mine" / "run.json"):
        assert main(["export", str(read), "--csv", str(path)]) == 0
        assert path.is_file()


def test_nothing_that_somebody_else_s_run_names_is_run_without_trust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home, run_dir = tmp_path / "home", RunDir(tmp_path / "handed on")
    home.mkdir()
    (home / "victim").write_bytes(SECRET)
    (home / "their model.py").write_text(f"open({str(home / 'victim')!r}, 'w')\n")
    monkeypatch.chdir(home)
    write_journal(run_dir.path, whole_run())
    run_dir.checkpoints_path.mkdir()
    (run_dir.checkpoints_path / checkpoint_name(3)).write_bytes(b"")
    request = TrainRequest(model=str(home / "their model.py"), save_weights=str(home / "victim"))
    run_dir.write_run_json({"asked": request.as_json()})
    run_dir.run_json_path.chmod(0o622)
    arguments = ["train", "--headless", "--steps", "1", "--resume", str(run_dir.path)]
    with nothing_written(tmp_path, capsys, f"{run_dir.run_json_path} is another user's", "--trust"):
        assert main(arguments) == RunFolderError.exit_status
    main([*arguments, "--trust"])
    assert "no checkpoint in" in capsys.readouterr().err, "it was to be resumed"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user for a while")
def test_a_run_of_another_user_is_read_with_trust_only(capsys: pytest.CaptureFixture[str]) -> None:
    with TemporaryDirectory() as folder:
        place = Path(folder)
        place.chmod(0o777)
        journal = whole(place / "run") / "journal.jsonl"
        os.chown(journal, 1, 1)
        journal.chmod(0o644)
        journal.parent.chmod(0o755)
        os.seteuid(65534)
        try:
            for trust, status in ((), 1), (("--trust",), 0):
                assert main(["export", str(journal), "--csv", str(place / "run.csv"), *trust]) == status
        finally:
            os.seteuid(0)
        said = capsys.readouterr()
        (refusal,) = said.err.splitlines()
        assert refusal == f"amptui: {journal} is another user's; add --trust to read it"
        assert (place / "run.csv").stat().st_uid == 65534


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user for a while")
def test_no_run_is_started_in_another_user_s_folder() -> None:
    with TemporaryDirectory() as folder:
        place = Path(folder)
        place.chmod(0o777)
        (place / "run").mkdir(mode=0o777)
        (place / "run").chmod(0o777)
        os.chown(place / "run", 1, 1)
        os.seteuid(65534)
        try:
            with pytest.raises(RunFolderError, match=r"the run folder .* is another user's"):
                create_run_dir(place / "run", "m")
            assert create_run_dir(place / "mine", "m").path.is_dir()
        finally:
            os.seteuid(0)


def test_what_a_link_in_the_place_of_a_lock_leads_to_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "victim").write_bytes(SECRET)
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "run.lock").symlink_to(tmp_path / "victim")
    with nothing_written(tmp_path, capsys, f"cannot lock {tmp_path / 'shared'}"):
        main(["train", KNOBS, "--headless", "--steps", "1", "--run-dir", str(tmp_path / "shared")])


CHDIR = "os.chdir(place / 'other')"
RELINK = "(place / 'new').unlink(); (place / 'new').symlink_to(place / 'other')"


@pytest.mark.parametrize(("change", "folder"), [(CHDIR, "run"), (RELINK, "new")], ids=["chdir", "link"])
def test_a_run_s_own_folder_stays_that_whatever_its_path_comes_to_mean(
    change: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(folder: str, steps: int, model: str = KNOBS) -> int:
        options = ["--headless", "--device", "cpu", "--checkpoint-every", "10", "--set", "step_ms=0"]
        return main(["train", model, *options, "--steps", str(steps), "--run-dir", folder])

    monkeypatch.chdir(tmp_path)
    assert train("other", 30) == 0
    before = contents(tmp_path / "other")
    (tmp_path / "run").mkdir()
    (tmp_path / "new").symlink_to(tmp_path / "run")
    at = "            self.calls += 1\n"
    changed = f"{at}            if self.calls == 25:\n                {change}\n"
    model = f"import os, pathlib\nplace = pathlib.Path({str(tmp_path)!r})\n"
    (tmp_path / "m.py").write_text(model + Path(KNOBS).read_text().replace(at, changed))
    assert train(folder, 60, str(tmp_path / "m.py")) == 0
    assert contents(tmp_path / "other") == before
    assert (tmp_path / "run" / "checkpoints" / "step-000000060.pt").exists()


def test_a_journal_that_a_person_names_may_be_a_link(tmp_path: Path) -> None:
    kept = write_journal(tmp_path / "run", make_run(9))
    (tmp_path / "best.jsonl").symlink_to(kept / "journal.jsonl")
    (tmp_path / "latest").symlink_to(kept)
    for name in ("best.jsonl", "latest"):
        assert export(find_run(str(tmp_path / name)), csv=tmp_path / "steps.csv").steps == 9


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
    with RunLock.take(run_dir.path), closing(socket_place.listen(run_dir.path)):
        journal = Journal(run_dir.journal_path)
        journal.append(make_run(9))
        journal.close()
        cut_after(run_dir.journal_path, 3)
        run_dir.write_run_json({"asked": {}})
        redirect_output(run_dir.output_path, [])
        checkpoint_file.write(checkpoint_at(7, numbers=1), run_dir.checkpoints_path)
        modes_by_path = modes(tmp_path)
    folders = {"state", "state/amptui", "state/amptui/runs"}
    folders |= {"state/amptui/runs/m", "state/amptui/runs/m/checkpoints"}
    assert {name for name, mode in modes_by_path.items() if mode == 0o700} == folders
    assert len(modes_by_path) >= len(folders) + 6
    assert {mode for name, mode in modes_by_path.items() if name not in folders} == {0o600}
