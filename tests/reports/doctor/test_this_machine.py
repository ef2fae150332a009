"""What is found here: cores, memory, packages, folders and the terminal; and what a precision gains."""

import re
import tomllib
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch

from amptui.loops.setup import choose_device
from amptui.monitor.estimate import Ratio
from amptui.recipe.precision import Tf32Flags
from amptui.reports.doctor.machine import (
    NEEDED,
    check_folder,
    compile_checks,
    machine_checks,
    release,
    software_checks,
)
from amptui.reports.doctor.precisions import measure
from tests.checkout import ROOT

CPU = torch.device("cpu")


def test_this_machine_is_told_without_a_failure() -> None:
    assert [check.name for check in machine_checks()] == ["cores", "memory", "shared-memory"]


# -------------------------------------------------------------------------------------- packages


def test_where_everything_is_installed_nothing_is_to_be_fixed() -> None:
    checks = software_checks()
    assert [(check.name, check.severity) for check in checks] == [("amptui", "info"), ("torch-loads", "good")]


def test_a_missing_compiler_is_told_and_hinders_no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    if choose_device("auto").type != "cpu":
        pytest.skip("on a GPU it is Triton that compiles")
    monkeypatch.setenv("CXX", "no-such-compiler")
    (check,) = compile_checks()
    assert (check.severity, check.hint) == ("info", "install g++, or set CXX")


def test_the_needed_packages_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = (re.match(r"([a-z0-9-]+)>=([\d.]+)", line) for line in project["dependencies"])
    assert {found[1]: release(found[2]) for found in asked if found} == NEEDED


# ------------------------------------------------------------------------- what a precision gains


def test_each_precision_is_measured_in_turns_with_float32_and_has_an_interval() -> None:
    found = measure(CPU, ("fp16", "bf16"), size=32, budget_seconds=0.02)
    assert list(found) == ["fp16", "bf16"]
    for one in found.values():
        assert isinstance(one, Ratio)
        assert one.low is not None
        assert one.high is not None
        assert 0 < one.low <= one.value <= one.high


def test_measuring_leaves_the_tf32_flags_as_they_were() -> None:
    before = Tf32Flags.current()
    try:
        kept = Tf32Flags.full().with_tf32()
        kept.apply()
        measure(CPU, ("bf16",), size=16, budget_seconds=0.0)
        assert Tf32Flags.current() == kept
    finally:
        before.apply()


# --------------------------------------------------------------------------------------- folders


def test_new_folders_are_fine_and_nothing_is_left_there(tmp_path: Path) -> None:
    check = check_folder("runs", tmp_path / "not" / "yet")
    assert check.severity in ("good", "warning")  # a test machine may have little room
    assert check.text.startswith(f"runs are saved in {tmp_path / 'not' / 'yet'}, ")
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_stops_runs_and_only_bothers_data(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    runs, data = (
        check_folder("runs", tmp_path / "file" / "runs"),
        check_folder("data-folder", tmp_path / "file" / "data"),
    )
    assert (runs.severity, data.severity) == ("error", "warning")
    assert "not a directory" in runs.text
    assert "--run-dir" in runs.hint
    assert "--data-dir" in data.hint


def test_a_read_only_folder_cannot_be_written(nobody: Callable[[], AbstractContextManager[Path]]) -> None:
    with nobody() as folder:
        folder.chmod(0o500)
        assert check_folder("runs", folder / "runs").text.endswith(": permission denied")
