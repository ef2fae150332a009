"""The first record of a script's run, why it failed, and what it is called."""

import math
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from amptui.base.amp_errors import known_hint
from amptui.base.fork import how_ended
from amptui.base.text import one_line
from amptui.loops.description import here
from amptui.loops.script.observed_optimizer import ObservedOptimizer
from amptui.loops.script.parameter_owner import kind_of
from amptui.loops.script.script import ObservedScript, WatchedScript
from amptui.loops.script.switched_amp import SwitchedScaler
from amptui.records.run import DataInfo, RunStarted

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
    steps_per_epoch = length.steps_per_epoch
    if steps_per_epoch is None and length.batches_per_epoch and optimizer.batches:
        steps_per_epoch = math.ceil(length.batches_per_epoch / optimizer.batches)
    steps_left = (steps_per_epoch or 0) * max(0, length.total_epochs - length.epochs_before)
    total_steps = length.total_steps or (steps_left and length.start_step + steps_left)
    return RunStarted(
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
        steps_per_epoch=steps_per_epoch,
        total_epochs=length.total_epochs,
        total_steps=total_steps or None,
        growth_interval=growth_interval,
        observed=isinstance(script, ObservedScript),
        refuses=script.refuses(),
        optimizer=script.first.name,
    )


def failure_of(error: BaseException | None) -> str:
    """What a script has failed with that ``error`` ends; empty if it has not."""
    if error is None or isinstance(error, KeyboardInterrupt):
        return ""
    if isinstance(error, SystemExit):
        if error.code in (None, 0):
            return ""
        # Python makes the status 1 of what is no number, which it prints.
        status, words = (error.code, "") if isinstance(error.code, int) else (1, f": {error.code}")
        return one_line(f"the script {how_ended(status & 0xFF)}{words}")
    message, hint = known_hint(f"{type(error).__name__}: {error}")
    what = one_line(message).removesuffix(":")
    return f"{what.removesuffix('.')}; {hint}" if hint else what


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
