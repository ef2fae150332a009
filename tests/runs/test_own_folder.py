"""A run writes and removes files in its own folder only, whatever its path comes to mean."""

import shutil
from pathlib import Path

import pytest

from amptui.cli import main
from tests.terminal import KNOBS

_CHDIR = "os.chdir(place / 'other')"
_LINK = "(place / 'new').unlink(); (place / 'new').symlink_to(place / 'other')"


def train(*options: str, model: str = KNOBS) -> int:
    fixed = ["--headless", "--device", "cpu", "--checkpoint-every", "10", "--set", "step_ms=0"]
    return main(["train", model, *fixed, *options])


def content(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.fixture
def other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """The folder of another run that is over."""
    monkeypatch.chdir(tmp_path)
    assert train("--steps", "30", "--run-dir", "other") == 0
    capsys.readouterr()
    return tmp_path / "other"


@pytest.mark.parametrize("change", [_CHDIR, _LINK], ids=["chdir", "link"])
def test_another_folder_is_left_as_it_is(change: str, other: Path, tmp_path: Path) -> None:
    before = content(other)
    (tmp_path / "run").mkdir()
    (tmp_path / "new").symlink_to(tmp_path / "run")
    place = f"place = pathlib.Path({str(tmp_path)!r})"
    source = f"import os, pathlib\n{place}\n{Path(KNOBS).read_text()}"
    at = "            self.calls += 1\n"
    (tmp_path / "m.py").write_text(
        source.replace(at, f"{at}            if self.calls == 25:\n                {change}\n")
    )
    folder = "new" if change == _LINK else "run"
    assert train("--steps", "60", "--run-dir", folder, model=str(tmp_path / "m.py")) == 0
    assert content(other) == before
    assert (tmp_path / "run" / "checkpoints" / "step-000000060.pt").exists()


def test_a_checkpoint_newer_than_the_journal_beside_it_is_not_resumed(
    other: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train("--steps", "60", "--run-dir", "longer") == 0
    for file in (tmp_path / "longer" / "checkpoints").iterdir():
        shutil.copy(file, other / "checkpoints")
    before = content(other)
    capsys.readouterr()
    assert main(["train", KNOBS, "--resume", "other", "--steps", "80", "--headless"]) == 1
    said = capsys.readouterr().err
    assert "journal.jsonl ends at step 30, before the checkpoint of step 60" in said
    assert said.count("\n") == 1
    assert content(other) == before
    (other / "journal.jsonl").rename(other / "journal.old")
    assert main(["train", KNOBS, "--resume", "other", "--steps", "80", "--headless"]) == 0
