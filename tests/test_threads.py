"""Scripts with threads under `amptui run`: they train as without it, and what is not watched is told."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkout import ROOT
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
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

def tell(*models):
    weights = b"".join(p.detach().numpy().tobytes() for model in models for p in model.parameters())
    print("weights", hashlib.sha256(weights).hexdigest())

def work(model, seed, **options):
    return lambda: train(model, seed, 60, **options)
"""

IN_PARALLEL = {
    "two loops": """
models, barrier = (net(0), net(1)), threading.Barrier(2)
in_threads(*(work(model, seed, barrier=barrier) for seed, model in enumerate(models)))
tell(*models)
""",
    "a scaler each": """
models, barrier = (net(0), net(1)), threading.Barrier(2)
in_threads(*(work(model, seed, scaled=True, barrier=barrier) for seed, model in enumerate(models)))
tell(*models)
""",
    "federated": """
server, barrier = net(0), threading.Barrier(4)
def client(job):
    model = copy.deepcopy(server)
    train(model, job, 5, barrier=barrier)
    return model.state_dict()
with ThreadPoolExecutor(4) as pool:
    for turn in range(6):
        states = list(pool.map(client, range(turn * 4, turn * 4 + 4)))
        server.load_state_dict({n: torch.stack([s[n] for s in states]).mean(0) for n in states[0]})
tell(server)
""",
    "one of them named": """
models = net(0), net(1)
first = torch.optim.SGD(models[0].parameters(), lr=0.01)
if "bare" not in sys.argv:
    import amptui
    monitor = amptui.observe(models[0], first)
barrier = threading.Barrier(2)
in_threads(*(work(model, seed, barrier=barrier) for seed, model in enumerate(models)))
tell(*models)
""",
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
thread = threading.Thread(target=evaluate)
thread.start()
train(model, 0, 60)
over.set()
thread.join()
tell(model)
""",
}


def run(script: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, str(script)], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )


def weights_of(process: subprocess.CompletedProcess[str]) -> str:
    """What the script says of its weights: equal if these are."""
    return next(line for line in process.stdout.splitlines() if line.startswith("weights"))


def script_in(folder: Path, body: str) -> Path:
    script = folder / "script.py"
    script.write_text(HEAD + body)
    return script


def watched(folder: Path, script: Path) -> subprocess.CompletedProcess[str]:
    options = ("--observe", "--headless", "--run-dir", str(folder / "run"))
    return run(script, *amptui_command("run", *options))


def bare(script: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(script), "bare"], cwd=ROOT, capture_output=True, text=True, check=True
    )


@pytest.mark.parametrize("body", IN_PARALLEL.values(), ids=IN_PARALLEL)
def test_a_script_that_trains_in_several_threads_is_not_watched_and_trains_on(
    body: str, tmp_path: Path
) -> None:
    script = script_in(tmp_path, body)
    process = watched(tmp_path, script)
    assert weights_of(process) == weights_of(bare(script))
    assert "the script trains in several threads at once" in process.stderr
    assert process.returncode == 3, process.stderr
    assert "done after" not in process.stderr


@pytest.mark.parametrize("body", ONE_TRAINS.values(), ids=ONE_TRAINS)
def test_a_thread_that_trains_alone_is_watched(body: str, tmp_path: Path) -> None:
    script = script_in(tmp_path, body)
    process = watched(tmp_path, script)
    assert weights_of(process) == weights_of(bare(script))
    assert process.returncode == 0, process.stderr
    export = run(tmp_path / "run", *amptui_command("export", "--csv", str(tmp_path / "run.csv")))
    assert export.returncode == 0, export.stderr
    with (tmp_path / "run.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == [*range(1, 61)]
    assert {row["precision"] for row in rows} == {"fp32"}
