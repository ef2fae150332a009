"""Whoever watches a loop, each behind the same door: train in a situation, with somebody who asks."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

import amptui
from amptui.records.run import AMP_PRECISIONS
from tests.checkout import ROOT
from tests.conformance.situations import EPOCHS, SITUATIONS, Situation, Training, train_by_hand


def precision(situation: Situation) -> Any:
    return situation.precision(1)


class Watcher:
    """What every watcher has; one that switches precisions asks as a screen does."""

    name: str = ""
    cannot: Mapping[str, str] = {}
    """Which situations it cannot have, and why."""
    growth_interval: int = 4
    """Of the loss scaler that the loop has."""
    switches: bool = True
    """Whether it owns the precision; else the loop switches by itself."""
    names_epochs: bool = True
    tier: Literal["quick", "ci"] = "quick"
    end: tuple[str, str] = ("RunFinished", "done")
    """How its run says that the script has ended."""
    refuses: Mapping[str, str] = {}
    """Of all requests but those for a precision and a pause, those that are refused, and the reason."""

    package: str = ""
    """What has to be installed for it."""

    @staticmethod
    def pauses_schedule(situation: Situation) -> bool:
        """Whether a schedule stands still where a step is skipped."""
        return False

    @staticmethod
    def counts_samples(situation: Situation) -> bool:
        """Whether it sees the batches, and so knows the samples of each step."""
        return True

    def need(self) -> None:
        if self.package:
            pytest.importorskip(self.package, exc_type=ImportError)

    def train(self, training: Training, runs: Path) -> dict[str, Any] | None:
        """Train as the situation says; return the loss scaler's state, if anyone has it."""
        raise NotImplementedError


class Watch(Watcher):
    """``amptui.watch`` in a loop written in one of three forms."""

    def __init__(self, form: Literal["monitor", "scaler", "closure"]) -> None:
        self.name, self.form = f"watch, {form}", form
        self.cannot = {"closure": "LBFGS calls monitor.backward() within its step"}
        refused = ("checkpoint",) if form == "closure" else ("checkpoint", "x-ray")
        self.refuses = dict.fromkeys(refused, "unavailable")

    def train(self, training: Training, runs: Path) -> dict[str, Any]:
        situation, optimizer = training.situation, training.optimizer
        with amptui.watch(
            training.model,
            optimizer,
            precision=precision(situation),
            amp=None if precision(situation) in AMP_PRECISIONS else "fp16",
            clip_norm=situation.clip_norm,
            scaler=torch.amp.GradScaler("cpu", growth_interval=self.growth_interval),
        ) as monitor:
            for _ in monitor.epochs(EPOCHS):
                waiting: list[Any] = []
                for batch in monitor.steps(training.batches):
                    waiting.append(batch)
                    if len(waiting) == situation.accumulate:
                        self._step(monitor, training, waiting)
                        training.after_step()
                        waiting = []
            return monitor.scaler.state_dict()

    def _step(self, monitor: amptui.AmpMonitor, training: Training, batches: list[Any]) -> None:
        if self.form == "closure":
            monitor.train_step(*[lambda batch=batch: training.loss(batch) for batch in batches])
            return
        scaler, optimizer, count = monitor.scaler, training.optimizer, len(batches)
        if training.situation.zeroes:
            optimizer.zero_grad(set_to_none=False)
        for batch in batches:
            with monitor.autocast():
                loss = training.loss(batch)
            if self.form == "monitor":
                monitor.backward(loss / count)
            else:
                scaler.scale(loss / count).backward()
        if self.form == "monitor":
            monitor.step()
            return
        scaler.unscale_(optimizer)
        training.clip()
        scaler.step(optimizer)
        scaler.update()
        if not training.situation.zeroes:
            optimizer.zero_grad()


class Observe(Watcher):
    """``amptui.observe`` beside the loop by hand, which switches by itself."""

    name = "observe"
    switches = False
    cannot: Mapping[str, str] = {
        "float8": "float8 layers of a script's own have another name, and tests of their own"
    }
    refuses: Mapping[str, str] = dict.fromkeys(
        ("x-ray", "trace", "histogram", "checkpoint", "precision", "pause"), "unavailable"
    )

    def train(self, training: Training, runs: Path) -> dict[str, Any]:
        with amptui.observe(training.model, training.optimizer) as monitor:
            truth = train_by_hand(training, monitor=monitor, growth_interval=self.growth_interval)
        return truth.scaler


SCRIPT = """
import json, sys
import torch
from tests.conformance.situations import SITUATIONS, Training, train_by_hand
torch.set_num_threads(1)
training = Training(SITUATIONS[sys.argv[1]])
truth = train_by_hand(training)
print(json.dumps([training.digests(), truth.scaler]))
sys.exit(3)
"""


class RunObserve(Observe):
    """``amptui run --observe`` of a script that is the loop by hand and knows nothing of amptui."""

    name = "run --observe"
    names_epochs = False
    tier = "ci"
    cannot: Mapping[str, str] = {**Observe.cannot} | dict.fromkeys(
        ("fp32", "bf16", "fp16", "switches", "switches, fused, clipped"), "each takes two processes"
    )
    end = ("RunFailed", "the script exited with status 3")

    @staticmethod
    def counts_samples(situation: Situation) -> bool:
        return False

    def train(self, training: Training, runs: Path) -> dict[str, Any]:
        (name,) = [name for name, each in SITUATIONS.items() if each is training.situation]
        script = runs.parent / "train.py"
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(SCRIPT)
        command = ["run", "--observe", "--headless", "--run-dir", str(runs / "run"), str(script), name]
        result = subprocess.run(
            [sys.executable, "-m", "amptui", *command],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 3, result.stderr
        digests, scaler = json.loads(result.stdout)
        training.digests = lambda: digests  # type: ignore[method-assign] # of the script's own process
        return scaler  # type: ignore[no-any-return]
