"""The code is as the settings in pyproject.toml want it."""

import pytest

from tests.style import COMMANDS, JUDGES, ROOT


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_the_code_is_clean(command: tuple[str, ...], request: pytest.FixtureRequest) -> None:
    judge = request.config.stash[JUDGES][command]
    said, _ = judge.communicate()
    assert judge.returncode == 0, said


def test_no_file_is_long() -> None:
    """400 lines or so: longer files own more than one thing."""
    long = {
        str(path.relative_to(ROOT)): lines
        for folder in ("amptui", "models", "tests")
        for path in (ROOT / folder).rglob("*.py")
        if (lines := len(path.read_text().splitlines())) > 450
    }
    assert long == {}
