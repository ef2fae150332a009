"""A run writes and removes files in its own folder only, whatever its path comes to mean."""

from pathlib import Path

import pytest

from amptui.cli import main
from tests.terminal import KNOBS

_CHDIR = "os.chdir(place / 'other')"
_LINK = "(place / 'new').unlink(); (place / 'new').symlink_to(place / 'other')"


def train(folder: str, steps: int, model: str = KNOBS) -> int:
    fixed = ["--headless", "--device", "cpu", "--checkpoint-every", "10", "--set", "step_ms=0"]
    return main(["train", model, *fixed, "--steps", str(steps), "--run-dir", folder])


def content(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize(("change", "folder"), [(_CHDIR, "run"), (_LINK, "new")], ids=["chdir", "link"])
def test_another_run_s_folder_is_left_as_it_is(
    change: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert train("other", 30) == 0
    before = content(tmp_path / "other")
    (tmp_path / "run").mkdir()
    (tmp_path / "new").symlink_to(tmp_path / "run")
    at = "            self.calls += 1\n"
    changed = (
        Path(KNOBS)
        .read_text()
        .replace(at, f"{at}            if self.calls == 25:\n                {change}\n")
    )
    model = f"import os, pathlib\nplace = pathlib.Path({str(tmp_path)!r})\n{changed}"
    (tmp_path / "m.py").write_text(model)
    assert train(folder, 60, str(tmp_path / "m.py")) == 0
    assert content(tmp_path / "other") == before
    assert (tmp_path / "run" / "checkpoints" / "step-000000060.pt").exists()
