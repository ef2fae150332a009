"""What is installed, and what is too old or broken."""

import re
import tomllib
from pathlib import Path

import pytest

from amptui.doctor.software import NEEDED, check_package, release, software_checks

ROOT = Path(__file__).parent.parent.parent


def test_where_everything_is_installed_nothing_is_to_be_mended() -> None:
    checks = software_checks()
    assert [check.severity for check in checks] == ["info"] * len(checks)
    assert {*NEEDED, "amptui", "torch-loads"} == {check.name for check in checks}


def test_a_package_that_is_not_installed_is_named_with_the_command_that_installs_it() -> None:
    check = check_package("no-such-package-of-anybody", (1, 2))
    assert (check.severity, check.mend) == ("error", "pip install 'no-such-package-of-anybody>=1.2'")


def test_a_package_that_is_too_old_is_named_with_its_version() -> None:
    check = check_package("numpy", (999,))
    assert check.severity == "error"
    assert re.fullmatch(r"numpy \d.* is too old", check.text)


def test_the_needed_packages_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = (re.match(r"([a-z-]+)>=([\d.]+)", line) for line in project["dependencies"])
    assert {found[1]: release(found[2]) for found in asked if found} == NEEDED


@pytest.mark.parametrize(
    ("version", "numbers"), [("2.15.0+cu132", (2, 15, 0)), ("2.10.0a0+git", (2, 10, 0)), ("unknown", ())]
)
def test_a_version_is_compared_by_its_numbers(version: str, numbers: tuple[int, ...]) -> None:
    assert release(version) == numbers
