"""The code is as the settings in pyproject.toml want it, and its names can be searched."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(("ruff", "check", "--no-cache", "."), id="ruff check"),
        pytest.param(("ruff", "format", "--check", "--no-cache", "."), id="ruff format"),
        # Half a minute of a core at its first look.
        pytest.param(("mypy",), id="mypy", marks=pytest.mark.ci),
        # What only Linux has stands behind a look at the platform.
        pytest.param(
            ("mypy", "--platform", "darwin", "--cache-dir", ".mypy_cache/darwin", "amptui"),
            id="mypy for macOS",
            marks=pytest.mark.ci,
        ),
    ],
)
@pytest.mark.timeout(300)
def test_the_code_is_clean(command: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


MAX_LINES = 51_402
"""Of all files below ``amptui``; it only falls. Whoever raises it says in the commit what that buys."""


def test_the_package_does_not_grow() -> None:
    written = (".py", ".html", ".js", ".css", ".tcss")
    files = [path for path in (ROOT / "amptui").rglob("*") if path.suffix in written]
    assert sum(len(path.read_bytes().splitlines()) for path in files) <= MAX_LINES


VAGUE = {"asked", "each", "found", "known", "made", "told"}
"""Names that say nothing of a value, and that a search finds in every sentence."""

RECORDED = {("amptui/records/findings.py", "asked")}
"""Fields of journals."""


def _assigned(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.arg):
            yield node.arg


def test_names_say_what_a_value_is() -> None:
    vague = set()
    for folder in ("amptui", "models", "demo"):
        for path in (ROOT / folder).rglob("*.py"):
            file = str(path.relative_to(ROOT))
            names = {name.strip("_") for name in _assigned(ast.parse(path.read_bytes()))}
            vague |= {(file, name) for name in names & VAGUE}
    assert vague == RECORDED
