"""Runs a script without and with `amptui run --observe`, and holds the two to each other."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from amptui.guest.run_script import NO_STEP
from amptui.records.run import Record
from tests.builders import read

LOOP = """
import os, random, signal, sys, traceback
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 4)

    def forward(self, inputs):
        return self.second(self.first(inputs).relu())

def train(steps=8, after=lambda step: None, quiet=False):
    random.seed(0)
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=3)
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        inputs, labels = torch.randn(8, 16), torch.randint(4, (8,))
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(inputs * (1e6 if step in (1, 5) else 1)), labels)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        if not quiet:
            print(f"\\r{step}/{steps}", end="", file=sys.stderr, flush=True)
            print(repr(loss.item()), scaler.get_scale())
        after(step)
    return model
"""


@dataclass(frozen=True)
class Done:
    """What a script did: all that another person or program can see of it."""

    status: int
    output: str
    errors: str
    files: Mapping[str, bytes]


def outcome(command: Sequence[str], folder: Path, stdin: str) -> Done:
    paths_before = {path for path in folder.iterdir() if path.is_file()}
    of_tests = ("PYTHON", "PYTEST", "AMPTUI")
    env = {name: value for name, value in os.environ.items() if not name.startswith(of_tests)}
    result = subprocess.run(
        [*command], cwd=folder, env=env, input=stdin, capture_output=True, text=True, check=False, timeout=300
    )
    new = {path for path in folder.iterdir() if path.is_file() and path not in paths_before}
    files = {path.name: path.read_bytes() for path in new}
    for path in new:
        path.unlink()
    return Done(result.returncode, result.stdout, result.stderr, files)


def same_outcome(folder: Path, *command: str, stdin: str = "") -> tuple[Done, list[Record]]:
    """Runs a script without and with us, holds the two to each other, and reads what was recorded."""
    bare = outcome([sys.executable, *command], folder, stdin)
    run = folder.parent / "run"
    start = [sys.executable, "-m", "amptui", "run", "--observe", "--headless", "--run-dir", str(run)]
    ours = outcome([*start, *command], folder, stdin)
    first, _, errors = ours.errors.partition("\n")
    assert first == f"amptui: recording {run}"
    path = run / "journal.jsonl"
    journal = list(read(path)) if path.exists() else []
    if not path.exists():
        bare = Done(bare.status, bare.output, f"{bare.errors}amptui: {NO_STEP}\n", bare.files)
    assert errors[: len(bare.errors)] == bare.errors
    status = bare.status if bare.status >= 0 else 128 - bare.status
    assert (ours.status, ours.output, ours.files) == (status, bare.output, bare.files)
    return ours, journal
