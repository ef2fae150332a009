"""A script that trains is told from a model file without running either."""

from pathlib import Path

import pytest

from amptui.command.options import build_parser
from amptui.command.script_source import is_script
from tests.checkout import ROOT

SOURCES = {
    "a model file": ("from amptui import Experiment\nclass Mine(Experiment):\n    pass\n", False),
    "another file's experiment": ("from base import Base\nclass Mine(Base):\n    pass\n", False),
    "watch": ("import amptui\nmonitor = amptui.watch(model, optimizer)\n", True),
    "imported watch": ("from amptui import watch as w\nw(model, optimizer)\n", True),
    "observe": ("import amptui as a\na.observe(model, optimizer)\n", True),
    "a framework": (
        "import amptui.lightning\nt = T(callbacks=[amptui.lightning.PrecisionMonitor()])\n",
        True,
    ),
    "a module of its own": ("class Net(nn.Module):\n    pass\nimport amptui\namptui.watch(Net(), o)\n", True),
    "another watch": ("class Mine(Experiment):\n    pass\nother.watch(1)\n", False),
    "no class": ("print(1)\n", True),
    "broken": ("def (\n", False),
}


@pytest.mark.parametrize(("source", "expected"), SOURCES.values(), ids=SOURCES)
def test_a_script_is_known_by_its_source(tmp_path: Path, source: str, expected: bool) -> None:
    path = tmp_path / "file.py"
    path.write_text(source)
    assert is_script(str(path)) is expected


def test_names_missing_files_and_folders_are_no_scripts(tmp_path: Path) -> None:
    (tmp_path / "folder.py").mkdir()
    for text in ("mnist-deep", "missing.py", str(tmp_path / "folder.py"), "models/unstable.py:Unstable"):
        assert not is_script(text)
    assert not is_script(str(ROOT / "models" / "unstable.py"))


def test_what_follows_a_script_is_its_own_and_options_after_a_model_are_ours() -> None:
    script = str(ROOT / "demo" / "own_loop.py")
    options = build_parser().parse_args(
        ["advise", "--minutes", "2", script, "--minutes", "9", "-x", "--", "y"]
    )
    assert (options.minutes, options.arguments) == (2.0, ["--minutes", "9", "-x", "--", "y"])
    options = build_parser().parse_args(["advise", "mnist-deep", "--minutes", "9", "--compile"])
    assert (options.minutes, options.arguments, options.compile) == (9.0, [], "default")
