"""Advice on real trainings, from the command line: the class of verdict, never a speed; how it ends."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.checkout import ROOT
from tests.living import steps_of, wait_until
from tests.terminal import amptui_command
from tests.warm import WarmSource

EXPERIMENTS = str(ROOT / "tests" / "reports" / "advise" / "experiments.py")
LIMITS, KNOBS = (str(ROOT / "tests" / "recipes" / name) for name in ("limits.py", "knobs.py"))


SCRIPT = """
import sys, time, torch
from torch import nn
import amptui
torch.set_num_threads(1)
model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
monitor = amptui.watch(model, optimizer)
open(sys.argv[1], "w").write("mine")
for inputs in monitor.steps(torch.randn(4, 8) for _ in range({steps})):
    time.sleep({pause})
    targets = inputs.argmax(1) % 4
    monitor.train_step(lambda: nn.functional.cross_entropy(model(inputs), targets))
"""

OBSERVES = """
import torch, amptui
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
amptui.observe(model, optimizer)
while True:
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
"""


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def advise(
    warm: WarmSource,
    *words: str,
    status: int | None = 0,
    minutes: float = 0.2,
    device: Sequence[str] = ("--device", "cpu"),
) -> dict[str, Any]:
    """The advice as JSON, of a process of its own."""
    process = warm.run("advise", *device, "--minutes", str(minutes), "--json", *words, seconds=600)
    errors = process.stderr.decode()
    assert status in (None, process.returncode), errors
    lines: dict[str, Any] = json.loads(process.stdout, parse_constant=pytest.fail) if process.stdout else {}
    return lines | {"errors": errors}


def of(told: dict[str, Any], precision: str) -> dict[str, Any]:
    result: dict[str, Any] = next(item for item in told["candidates"] if item["precision"] == precision)
    return result


def states(candidate: dict[str, Any]) -> dict[str, str]:
    return {item["subject"]: item["state"] for item in candidate["answer"]["findings"]}


def has_tried(precision: str, scratch: Path) -> bool:
    """Whether a training that was made there has a step in ``precision``."""
    runs = [journal.parent for journal in scratch.glob("amptui-advise-*/*/journal.jsonl")]
    return any(step.precision == precision for run in runs for step in steps_of(run))


def interrupted(scratch: Path, precision: str, *words: str) -> str:
    """What is printed when Ctrl-C is pressed after the first step in ``precision``."""
    command = [*amptui_command(), "advise", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        wait_until(lambda: has_tried(precision, scratch), "no such step was made", seconds=120)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    return out


# -------------------------------------------------------------------------------- models, as nightly


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("words", "kind", "detail", "reason"),
    [
        ((LIMITS, "--set", "refuses=bfloat16"), "failed", "not implemented for", "nothing to compare"),
        ((f"{EXPERIMENTS}:LateNaN",), "weights lost", "", "unsafe"),
    ],
)
def test_a_precision_that_fails_is_left_out_with_its_error(
    warm: WarmSource, words: Sequence[str], kind: str, detail: str, reason: str
) -> None:
    """In its first steps, or by losing the weights."""
    lines = advise(warm, *words, "--precisions", "bf16", minutes=0.5)
    excluded = of(lines, "bf16")["excluded"]
    assert excluded["kind"] == kind
    assert detail in (excluded["detail"] or "")
    assert lines["recommended"] == "fp32"
    assert lines["reason"] == reason


# -------------------------------------------------------------------- what every change must not break


@pytest.mark.ci
def test_a_training_that_diverges_in_fp32_is_an_error(warm: WarmSource) -> None:
    knobs = ("--set", "trouble=nan", "--set", "at=31", "--set", "step_ms=0")
    lines = advise(warm, KNOBS, *knobs, status=1)
    assert re.search(r"amptui: in FP32, .*nan since step 31\b", lines["errors"])


@pytest.mark.ci
def test_ctrl_c_prints_what_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    out = interrupted(tmp_path, "bf16", LIMITS, "--device", "cpu", "--loss-steps", "100000")
    assert "Interrupted: based on what was measured so far." in out
    assert "  loss in each precision: it was interrupted" in out.splitlines()


@pytest.mark.ci
def test_a_script_is_driven_and_stopped(warm: WarmSource, tmp_path: Path) -> None:
    script, own = tmp_path / "trains.py", tmp_path / "own.txt"
    script.write_text(SCRIPT.format(steps=10**9, pause=0))
    lines = advise(warm, str(script), str(own), device=())
    assert "amptui stops it after the measurement" in lines["errors"]
    assert own.read_text() == "mine"
    bf16 = of(lines, "bf16")
    assert bf16["measured"]["speedup"] > 0
    assert states(bf16)["agreement"] == "agree"
    assert any(text.startswith("loss in each precision: ") for text in lines["not_measured"])
    assert "amptui" not in lines["lines"]


@pytest.mark.ci
def test_ctrl_c_ends_a_script_that_ignores_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a session of its own: nobody else would end it."""
    script, own, scratch = tmp_path / "deaf.py", tmp_path / "own.txt", tmp_path / "scratch"
    trains = SCRIPT.format(steps=10**9, pause=0).replace("monitor.steps(", "(")
    trains = trains.replace('.write("mine")', ".write(str(os.getpid()))")
    script.write_text(f"import os, signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n{trains}")
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    interrupted(scratch, "fp32", str(script), str(own))
    with pytest.raises(ProcessLookupError):
        os.kill(int(own.read_text()), signal.SIGKILL)
    assert list(scratch.glob("amptui-*")) == []


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("source", "status", "said"),
    [
        (OBSERVES, 1, "is only observed: its own loop chooses the precision; let amptui.watch()"),
        (SCRIPT.format(steps=300, pause=0.01), 0, "the rest: the script ended after"),
        (SCRIPT.format(steps=8, pause=0) + "sys.exit(3)\n", 1, "let it train longer"),
    ],
    ids=["observed", "ends early", "ends at once"],
)
def test_a_script_that_cannot_be_measured_whole_says_so(
    warm: WarmSource, tmp_path: Path, source: str, status: int, said: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text(source)
    process = warm.run("advise", "--minutes", "0.2", str(script), str(tmp_path / "own.txt"), seconds=600)
    assert process.returncode == status
    assert said in " ".join((process.stdout + process.stderr).decode().split())
