"""`amptui run --observe`: a script that replaces itself by ``os.exec`` is observed, and no child of it."""

from pathlib import Path

import pytest

from amptui.records.steps import StepRecord
from tests.builders import of
from tests.unmodified import LOOP, same_outcome


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a script is, with the loop that it imports."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "loop.py").write_text(LOOP)
    return folder


_ANEW = """
import os, subprocess, sys, traceback
again = [sys.executable, *sys.argv]
if os.environ.get("AGAIN") is None:
    os.environ["AGAIN"] = "1"
    for start, *env in ((os.execv,), (os.execve, os.environ)):
        try:
            start("/no/such/program", again, *env)
        except FileNotFoundError:
            traceback.print_exc()
    {call}
print(sorted(os.environ), sys.path, sys.argv)
from loop import train
train(3)
"""


@pytest.mark.parametrize(
    "call",
    [
        pytest.param("os.execlp('env', 'env', *again)", marks=pytest.mark.ci),
        *(
            pytest.param(call, marks=pytest.mark.nightly)
            for call in (
                "os.execv(sys.executable, again)",
                "os.execve(sys.executable, again, {**os.environ, 'PYTHONPATH': os.getcwd()})",
                "os.execv('/bin/sh', ['sh', '-c', 'exec \"$@\"', 'sh', *again])",
            )
        ),
    ],
)
def test_a_script_that_starts_itself_anew_in_its_process_is_observed(call: str, folder: Path) -> None:
    (folder / "train.py").write_text(_ANEW.format(call=call))
    result, journal = same_outcome(folder, "train.py", "--lr", "1")
    assert result.status == 0, result.errors
    assert "AMPTUI" not in result.output
    losses = [line.split()[0] for line in result.output.splitlines()[-3:]]
    assert [str(record.loss) for record in of(StepRecord, journal)] == losses


@pytest.mark.parametrize(
    "call",
    [
        pytest.param("sys.exit(subprocess.call(again))", marks=pytest.mark.ci, id="subprocess"),
        pytest.param(
            "os.execv('/bin/sh', ['sh', '-c', '\"$@\"; exit $?', 'sh', *again])",
            marks=pytest.mark.nightly,
            id="a shell's child",
        ),
        pytest.param(
            "if os.fork() == 0: os.execv(sys.executable, again)\n    sys.exit(os.WEXITSTATUS(os.wait()[1]))",
            marks=pytest.mark.nightly,
            id="fork",
        ),
    ],
)
def test_a_script_that_starts_itself_in_a_child_is_not(call: str, folder: Path) -> None:
    (folder / "train.py").write_text(_ANEW.format(call=call))
    result, journal = same_outcome(folder, "train.py")
    assert (result.status, journal) == (0, [])
    assert "AMPTUI" not in result.output


@pytest.mark.ci
def test_the_functions_that_start_a_program_are_python_s_own_in_the_end(
    folder: Path,
) -> None:
    text = "import os\nfrom loop import train\ntrain(1, quiet=True)\nprint(os.execv, os.execve)\n"
    (folder / "train.py").write_text(text)
    result, journal = same_outcome(folder, "train.py")
    assert result.output == "<built-in function execv> <built-in function execve>\n"
    assert len(of(StepRecord, journal)) == 1
