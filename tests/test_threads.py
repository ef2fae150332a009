"""Scripts with threads under `amptui run`: they train as without it, and what is not watched is told."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkout import ROOT
from tests.living import steps_of
from tests.terminal import amptui_command

pytestmark = pytest.mark.ci

HEAD = """
import copy, hashlib, sys, threading
from concurrent.futures import ThreadPoolExecutor
import torch
from torch import nn

torch.set_num_threads(1)

def net(seed, width=64):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, 1))

def train(model, seed, steps, scaled=False, barrier=None):
    numbers = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, enabled=scaled)
    for number in range(steps):
        x = torch.randn(32, 16, generator=numbers)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), x[:, :1])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if barrier and not number:
            barrier.wait()  # all train at once

def in_threads(*works):
    with ThreadPoolExecutor() as threads:
        list(threads.map(lambda work: work(), works))

def tell(*models):
    weights = b"".join(p.detach().numpy().tobytes() for model in models for p in model.parameters())
    print("weights", hashlib.sha256(weights).hexdigest())

def work(model, seed, **options):
    return lambda: train(model, seed, 60, **options)
"""

TWO_LOOPS = """
models, barrier = (net(0), net(1)), threading.Barrier(2)
{first}
in_threads(*(work(model, seed, scaled={scaled}, barrier=barrier) for seed, model in enumerate(models)))
tell(*models)
"""

NAMED = """
first = torch.optim.SGD(models[0].parameters(), lr=0.01)
if "bare" not in sys.argv:
    import amptui
    monitor = amptui.observe(models[0], first)
"""

IN_PARALLEL = {
    "two loops": TWO_LOOPS.format(first="", scaled=True),
    "one of them named": TWO_LOOPS.format(first=NAMED, scaled=False),
}

ONE_TRAINS = {
    "in a thread": """
model = net(0)
in_threads(work(model, 0))
tell(model)
""",
    "beside an evaluation": """
model, other, over = net(0), net(1), threading.Event()
def evaluate():
    while not over.is_set():
        with torch.autocast("cpu", torch.bfloat16):
            other(torch.ones(4, 16))
        tuple(p.sum().item() for p in other.parameters())
        torch.optim.SGD(copy.deepcopy(other).parameters(), lr=0.1)
torch.optim.SGD(other.parameters(), lr=0.1)  # from the first one on steps are looked for
with ThreadPoolExecutor() as threads:
    evaluated = threads.submit(evaluate)
    train(model, 0, 60)
    over.set()
evaluated.result()
tell(model)
""",
}


def watched(folder: Path, body: str) -> subprocess.CompletedProcess[str]:
    """Run it bare and watched, which leaves the same weights behind; what was said when it was watched."""
    script = folder / "script.py"
    script.write_text(HEAD + body)
    ours = amptui_command("run", "--observe", "--headless", "--run-dir", str(folder / "run"), str(script))
    done = [
        subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
        for command in ([sys.executable, str(script), "bare"], ours)
    ]
    bare, other = ([line for line in each.stdout.splitlines() if line.startswith("weights")] for each in done)
    assert bare == other != [], done[1].stderr
    return done[1]


@pytest.mark.parametrize("body", IN_PARALLEL.values(), ids=IN_PARALLEL)
def test_a_script_that_trains_in_several_threads_is_not_watched_and_trains_on(
    body: str, tmp_path: Path
) -> None:
    process = watched(tmp_path, body)
    assert "the script trains in several threads at once" in process.stderr
    assert process.returncode == 3, process.stderr
    assert "done after" not in process.stderr


@pytest.mark.parametrize("body", ONE_TRAINS.values(), ids=ONE_TRAINS)
def test_a_thread_that_trains_alone_is_watched(body: str, tmp_path: Path) -> None:
    process = watched(tmp_path, body)
    assert process.returncode == 0, process.stderr
    steps = steps_of(tmp_path / "run")
    assert [(step.step, step.precision) for step in steps] == [(n, "fp32") for n in range(1, 61)]
