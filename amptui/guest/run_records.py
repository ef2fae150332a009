"""The first and the last record of a script's run, and what the run is called."""

import math
import os
import sys
import time
import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from amptui.base.amp_errors import known_hint
from amptui.base.fork import how_ended
from amptui.base.text import one_line
from amptui.loops.description import here
from amptui.loops.script.observed_optimizer import ObservedOptimizer
from amptui.loops.script.parameter_owner import kind_of
from amptui.loops.script.script import ObservedScript, WatchedScript
from amptui.loops.script.switched_amp import SwitchedScaler
from amptui.records.run import DataInfo, RunFailed, RunFinished, RunStarted

_KERNELS = ("ipykernel_launcher", "colab_kernel_launcher")
"""The scripts that Python runs for a notebook."""

_DEFAULT_GROWTH_INTERVAL = 2000
"""torch.amp.GradScaler's."""


@dataclass(slots=True)
class RunLength:
    """How long a run is, as far as its script has said."""

    total_epochs: int = 0
    """The number of the last one, counted from 1; 0 if unknown."""
    epochs_before: int = 0
    """Those of them that were made before, by a script that is resumed; as the next."""
    start_step: int = 0
    batches_per_epoch: int = 0
    """0 if unknown."""
    steps_per_epoch: int | None = None
    """None if it follows from the batches."""
    total_steps: int = 0
    """0 if only the epochs are counted."""

    def add_to(self, started: RunStarted, batches_per_step: int) -> RunStarted:
        """``started`` with it; its first step took so many batches."""
        steps_per_epoch = self.steps_per_epoch
        if steps_per_epoch is None and self.batches_per_epoch and batches_per_step:
            steps_per_epoch = math.ceil(self.batches_per_epoch / batches_per_step)
        steps_left = (steps_per_epoch or 0) * max(0, self.total_epochs - self.epochs_before)
        total_steps = self.total_steps or (steps_left and self.start_step + steps_left)
        return replace(
            started,
            steps_per_epoch=steps_per_epoch,
            total_epochs=self.total_epochs,
            total_steps=total_steps or None,
        )


def describe(
    script: ObservedScript | WatchedScript,
    optimizer: ObservedOptimizer,
    *,
    name: str,
    precision: str,
    length: RunLength,
) -> RunStarted:
    """The first record of a run whose first ``optimizer`` is making its first step, in ``precision``."""
    scaler = script.scaler
    growth_interval = _DEFAULT_GROWTH_INTERVAL
    if scaler is not None and (scaler.is_enabled() or isinstance(scaler, SwitchedScaler)):
        growth_interval = scaler.get_growth_interval()
    started = RunStarted(
        **here(optimizer.device),
        model=name,
        precision=precision,
        amp_precision=script.amp_precision,
        unsupported=script.not_switchable(precision),
        config={
            "arguments": sys.argv[1:],
            "model": kind_of(script.model),
            "optimizer": type(script.optimizer).__name__,
        },
        data=DataInfo(name="the script's own data", real=True, samples=None),
        parameters=sum(p.numel() for p in script.model.parameters()),
        batch_size=script.samples_per_step,
        steps_per_epoch=None,
        total_epochs=0,
        total_steps=None,
        growth_interval=growth_interval,
        observed=isinstance(script, ObservedScript),
        refuses=script.refuses(),
        optimizer=script.first.name,
    )
    return length.add_to(started, optimizer.batches)


def failure_of(error: BaseException | None) -> str:
    """What a script has failed with that ``error`` ends; empty if it has not."""
    if error is None or isinstance(error, KeyboardInterrupt):
        return ""
    if isinstance(error, SystemExit):
        return "" if error.code in (None, 0) else _exit_words(error.code)
    message, hint = known_hint(f"{type(error).__name__}: {error}")
    what = one_line(message).removesuffix(":")
    return f"{what.removesuffix('.')}; {hint}" if hint else what


def last_record(
    error: BaseException | None, *, step: int, seconds: float, stopped: bool, at_exit: bool
) -> RunFinished | RunFailed:
    """How the script ended, by the ``error`` that ended it."""
    now = time.time()
    if failure := failure_of(error):
        trace = "".join(traceback.format_exception(error))
        return RunFailed(time=now, step=step, error=failure, traceback=trace)
    reason: Literal["done", "stopped", "ended"] = "ended" if at_exit else "done"
    if stopped or isinstance(error, KeyboardInterrupt):
        reason = "stopped"
    return RunFinished(time=now, steps=step, seconds=seconds, reason=reason)


def own_script_name() -> str:
    """What the run is called: the file that Python was told to run, or the notebook."""
    stem = Path(sys.argv[0] if sys.argv else "").stem
    if stem in _KERNELS:
        return _notebook_name()
    if stem == "__main__":
        return Path(sys.argv[0]).parent.name
    return stem if stem not in ("", "-c", "-m") else "script"


def _notebook_name() -> str:
    """The notebook's name as far as its front end tells the kernel; Colab and Kaggle do not."""
    path = getattr(sys.modules.get("__main__"), "__vsc_ipynb_file__", None)  # Visual Studio Code
    if not isinstance(path, str):
        path = os.environ.get("JPY_SESSION_NAME", "")  # jupyter_server 2: the notebook's path
    return Path(path).stem or "notebook"


def _exit_words(code: object) -> str:
    """The exit status that Python makes of a ``SystemExit``: 1 of what is no number, which it prints."""
    status, words = (code, "") if isinstance(code, int) else (1, f": {code}")
    return one_line(f"the script {how_ended(status & 0xFF)}{words}")
