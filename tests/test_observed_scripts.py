"""Scripts that call observe() behave as without it, in a process of their own."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import amptui
from amptui.records.run import RunFailed, RunFinished
from tests.builders import read
from tests.observed import Loop

SCRIPT = """
import os, sys
import torch
from tests.observed import Loop
kind = sys.argv[1]
loop = Loop("fp16")
if os.environ.get("WATCHED"):
    import amptui
    monitor = amptui.observe(loop.model, loop.optimizer, loop.scaler)
loop.run(3)
print("trained", loop.state()[0].sum().item())
if kind == "crash":
    loop.scaler.scale(torch.ones(2, requires_grad=True)).backward()
if kind == "interrupt":
    raise KeyboardInterrupt
if kind == "workers":
    import amptui
    from torch.utils.data import DataLoader, TensorDataset
    data = TensorDataset(torch.arange(8.0))
    for context, workers in (("fork", 2), ("spawn", 1)):  # each that is spawned imports torch
        loader = DataLoader(data, batch_size=2, num_workers=workers, multiprocessing_context=context)
        print(sorted(value.item() for (batch,) in loader for value in batch))
    if (child := os.fork()) == 0:
        sys.exit(3)
    print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def _script(tmp_path: Path, kind: str, *, watched: bool) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "train.py"
    path.write_text("if __name__ == '__main__':\n" + textwrap.indent(SCRIPT, "    "))
    root = str(Path(__file__).parents[1])
    env = {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1", "WATCHED": "yes" if watched else ""}
    command = [sys.executable, str(path), kind]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("crash", marks=pytest.mark.ci),
        *(pytest.param(kind, marks=pytest.mark.nightly) for kind in ("workers", "interrupt")),
    ],
)
def test_a_script_behaves_as_without_us(kind: str, tmp_path: Path, runs: Path) -> None:
    bare, ours = _script(tmp_path, kind, watched=False), _script(tmp_path, kind, watched=True)
    attach, _, rest = ours.stderr.partition("\n")
    (run,) = runs.iterdir()
    assert attach == f"amptui attach {run.name}"
    assert (ours.returncode, ours.stdout, rest) == (bare.returncode, bare.stdout, bare.stderr)
    assert "trained" in ours.stdout
    last = list(read(run / "journal.jsonl"))[-1]
    if kind == "crash":
        assert isinstance(last, RunFailed)
        assert last.error.startswith("RuntimeError: grad can be implicitly created only for scalar")
        assert "train.py" in last.traceback
    else:
        assert isinstance(last, RunFinished)
        assert (last.reason, last.steps) == ("stopped" if kind == "interrupt" else "ended", 3)


@pytest.mark.parametrize(
    ("error", "last_words"),
    [
        (SystemExit(3), "the script exited with status 3"),
        (SystemExit("no data"), "the script exited with status 1: no data"),
        (SystemExit(-1), "the script exited with status 255"),
        (SystemExit(0), ""),
        (SystemExit(), ""),
        (AssertionError(), "AssertionError"),
    ],
    ids=repr,
)
def test_what_a_script_raises_is_its_end(error: BaseException, last_words: str, runs: Path) -> None:
    loop = Loop("fp32")

    def script() -> None:
        with amptui.observe(loop.model, loop.optimizer):
            loop.run(2)
            raise error

    with pytest.raises(type(error)):
        script()
    (folder,) = runs.iterdir()
    last = list(read(folder / "journal.jsonl"))[-1]
    if last_words:
        assert isinstance(last, RunFailed)
        assert last.error == last_words
    else:
        assert isinstance(last, RunFinished)
        assert last.reason == "done"
