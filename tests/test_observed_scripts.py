"""Scripts that call observe() behave as without it, in a process of their own."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import amptui
from amptui.records import RunFailed, RunFinished
from amptui.runs.journal import read
from tests.observed import Loop


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the runs of a test are."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "amptui" / "runs"


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
if kind == "exit":
    sys.exit(7)
if kind == "interrupt":
    raise KeyboardInterrupt
if kind == "workers":
    import amptui
    from torch.utils.data import DataLoader, TensorDataset
    data = TensorDataset(torch.arange(8.0))
    for context in ("fork", "spawn"):
        loader = DataLoader(data, batch_size=2, num_workers=2, multiprocessing_context=context)
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
    ["crash", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("exit", "interrupt", "workers"))],
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
        assert (last.reason, last.steps) == ("stopped" if kind == "interrupt" else "done", 3)


def test_a_second_process_finds_the_run_live(runs: Path) -> None:
    loop = Loop("fp32")
    with amptui.observe(loop.model, loop.optimizer):
        loop.run(2)
        command = [sys.executable, "-m", "amptui", "runs", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    (run,) = map(json.loads, done.stdout.splitlines())
    (folder,) = runs.iterdir()
    assert (run["name"], run["pid"]) == (folder.name, os.getpid())
