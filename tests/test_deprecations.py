"""A deprecation is an error only where the environment asks for it; any other warning always is."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests import deprecations
from tests.checkout import ROOT

CONFTEST = """
from tests.deprecations import filters_for_pytest
def pytest_configure(config):
    for line in filters_for_pytest():
        config.addinivalue_line("filterwarnings", line)
"""

WARNING = """
import warnings
def test_it():
    warnings.warn("this is old", {category})
"""

RESULTS = [
    *((category, "0", 0) for category in deprecations.CATEGORIES),
    *((category, "1", 1) for category in deprecations.CATEGORIES),
    ("UserWarning", "0", 1),
    ("ResourceWarning", "1", 1),
]


@pytest.mark.ci
@pytest.mark.parametrize(("category", "strict", "status"), RESULTS)
def test_which_warnings_end_a_test(category: str, strict: str, status: int, tmp_path: Path) -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    lines = "\n".join(f"    {line}" for line in settings["filterwarnings"])
    (tmp_path / "pytest.ini").write_text(f"[pytest]\nfilterwarnings =\n{lines}\n")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(WARNING.format(category=category))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), deprecations.STRICT: strict},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stdout
    assert f"{category}: this is old" in done.stdout


@pytest.mark.parametrize(("category", "strict", "status"), RESULTS)
def test_which_warnings_end_a_python_that_a_test_starts(
    category: str, strict: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(deprecations.STRICT, strict)
    program = f"import warnings; warnings.warn('this is old', {category})"
    options = deprecations.options_for_python()
    done = subprocess.run([sys.executable, *options, "-c", program], capture_output=True, check=False)
    assert (done.returncode, done.stderr != b"") == (status, status != 0)
