"""What is installed, and what is too old or broken."""

import re
import tomllib
from pathlib import Path

import pytest

from amptui.engine.setup import choose_device
from amptui.reports.doctor.software import NEEDED, check_package, compile_checks, release, software_checks

ROOT = Path(__file__).parent.parent.parent


def test_where_everything_is_installed_nothing_is_to_be_fixed() -> None:
    checks = software_checks()
    assert [check.severity for check in checks] == ["info"] * len(checks)
    assert [check.name for check in checks] == ["amptui", "torch-loads"]


def test_a_missing_compiler_is_told_and_hinders_no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    if choose_device("auto").type != "cpu":
        pytest.skip("on a GPU it is Triton that compiles")
    monkeypatch.setenv("CXX", "no-such-compiler")
    (check,) = compile_checks()
    assert (check.severity, check.facts["usable"]) == ("info", False)
    assert check.hint == "install g++, or set CXX"


def test_all_versions_stand_in_one_line() -> None:
    versions = software_checks()[0]
    assert {"amptui", "python", *NEEDED} == set(versions.facts)
    assert all(str(version) in versions.text for version in versions.facts.values())


def test_a_package_that_is_not_installed_is_named_with_the_command_that_installs_it() -> None:
    check = check_package("numpy", None, (1, 2))
    assert check is not None
    assert (check.severity, check.text) == ("error", "numpy is not installed")
    assert check.hint == "pip install 'numpy>=1.2'"


def test_a_package_that_is_too_old_is_named_with_its_version() -> None:
    assert check_package("numpy", "2.4.6", (2, 4)) is None
    check = check_package("numpy", "2.4.6", (2, 5))
    assert check is not None
    assert (check.severity, check.text) == ("error", "numpy 2.4.6 is too old")


def test_the_needed_packages_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = (re.match(r"([a-z-]+)>=([\d.]+)", line) for line in project["dependencies"])
    assert {found[1]: release(found[2]) for found in asked if found} == NEEDED


@pytest.mark.parametrize(
    ("version", "numbers"), [("2.15.0+cu132", (2, 15, 0)), ("2.10.0a0+git", (2, 10, 0)), ("unknown", ())]
)
def test_a_version_is_compared_by_its_numbers(version: str, numbers: tuple[int, ...]) -> None:
    assert release(version) == numbers
