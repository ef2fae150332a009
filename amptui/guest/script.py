"""What any process of somebody else's script knows of its run, and the run's first and last record."""

import math
import os
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from amptui.base.fork import how_ended
from amptui.base.prompt import complain
from amptui.base.text import one_line
from amptui.engine.description import device_name, gpu_uuid, hardware, versions
from amptui.guest.loop.observed_loop import ObservedLoop
from amptui.guest.loop.parallel_layout import ParallelLayout, layout_of
from amptui.guest.loop.parameter_owner import kind_of
from amptui.guest.loop.switched_amp import SwitchedScaler
from amptui.ranks.agreement.guest_control import NO_SCRIPT_XRAY
from amptui.ranks.world import World
from amptui.records.run import DataInfo, RunFailed, RunFinished, RunStarted, Severity

_KERNELS = ("ipykernel_launcher", "colab_kernel_launcher")
"""The scripts that Python runs for a notebook."""

_DEFAULT_GROWTH_INTERVAL = 2000
"""torch.amp.GradScaler's."""


class ScriptRun:
    """A script's run in one of its processes, as monitors and frameworks use it."""

    loop: ObservedLoop

    def __init__(self, world: World | None) -> None:
        self.world = world
        """The ranks of the script; None if it trains in one process."""
        self.total_epochs = 0
        """The number of the last one, counted from 1; 0 if unknown."""
        self.epochs_before = 0
        """Those of them that were made before, by a script that is resumed; as the next."""
        self.start_step = 0
        self.batches_per_epoch = 0
        """0 if unknown."""
        self.steps_per_epoch: int | None = None
        """None if it follows from the batches."""
        self.total_steps = 0
        """0 if only the epochs are counted."""
        self.stops_when_asked = False
        """Whether the script's loop asks whether it should stop."""
        self._warned: set[str] = set()
        self.layout = ParallelLayout(1)
        """How the ranks share the training; a single process takes all samples."""

    def lay_out(self, script: "Script") -> None:
        """See how the ranks share the training of ``script``, unless it says so."""
        if self.world is None:
            return
        layout, given = layout_of(script.model, self.ranks), script.data_parallel
        if given is not None:
            why = f"{self.ranks} ranks cannot be {given} times as many" if self.ranks % given else ""
            layout = replace(layout, data_parallel=0 if why else given, unknown=why)
        self.layout = layout

    @property
    def ranks(self) -> int:
        """How many processes train together."""
        return 1 if self.world is None else self.world.size

    @property
    def path(self) -> Path | None:
        """The run's folder; None in a process that keeps none."""
        return None

    @property
    def stop_reason(self) -> str | None:
        """Why the script should stop now; None if it should go on."""
        return None

    def note(self, severity: Severity, text: str) -> None:
        """Tell the screen, if this process has one."""

    def warn_once(self, text: str) -> None:
        """Tell screen and terminal, unless they were told before."""
        if text not in self._warned:
            self._warned.add(text)
            complain(text)
            self.note("warning", text)

    def close(self, error: BaseException | None, *, at_exit: bool) -> None:
        """End the run; ``at_exit``: the script has ended, for whatever reason if there is no ``error``."""


class Script(Protocol):
    """What a script trains, and what can be done with it."""

    @property
    def model(self) -> nn.Module: ...
    @property
    def optimizer(self) -> Optimizer: ...
    @property
    def scaler(self) -> GradScaler | None: ...
    @property
    def samples_per_step(self) -> int | None: ...
    @property
    def data_parallel(self) -> int | None: ...
    @property
    def amp_precision(self) -> str: ...
    @property
    def name(self) -> str: ...
    def refuses(self) -> Mapping[str, str]: ...
    def unsupported(self, precision: str, /) -> Mapping[str, str]: ...


def describe(
    script: Script, device: torch.device, name: str, precision: str, run: ScriptRun, *, observed: bool
) -> RunStarted:
    """The run's first record; its first step was ``precision``'s."""
    scaler = script.scaler
    growth_interval = _DEFAULT_GROWTH_INTERVAL
    if scaler is not None and (scaler.is_enabled() or isinstance(scaler, SwitchedScaler)):
        growth_interval = scaler.get_growth_interval()
    config: dict[str, Any] = {
        "arguments": sys.argv[1:],
        "model": kind_of(script.model),
        "optimizer": type(script.optimizer).__name__,
    }
    each = script.samples_per_step
    started = RunStarted(
        time=time.time(),
        model=name,
        device=str(device),
        device_name=device_name(device),
        gpu_uuid=gpu_uuid(device),
        precision=precision,
        amp_precision=script.amp_precision,
        unsupported=script.unsupported(precision),
        config=config,
        versions=versions(),
        hardware=hardware(device),
        data=DataInfo(name="the script's own data", real=True, samples=None),
        parameters=sum(p.numel() for p in script.model.parameters()),
        batch_size=each,
        steps_per_epoch=None,
        total_epochs=0,
        total_steps=None,
        growth_interval=growth_interval,
        observed=observed,
        refuses=script.refuses(),
        optimizer=script.name,
    )
    if run.world is None:
        return started
    data_parallel = run.layout.data_parallel
    return replace(
        started,
        refuses={"x-ray": NO_SCRIPT_XRAY, **started.refuses},
        world_size=run.ranks,
        parallel="+".join(run.layout.kinds),
        data_parallel=data_parallel or None,
        global_batch_size=each * data_parallel if each and data_parallel else None,
    )


def with_length(started: RunStarted, run: ScriptRun, batches_per_step: int) -> RunStarted:
    """``started`` with how long the run is, as far as the script has said."""
    steps_per_epoch = run.steps_per_epoch
    if steps_per_epoch is None and run.batches_per_epoch and batches_per_step:
        steps_per_epoch = math.ceil(run.batches_per_epoch / batches_per_step)
    steps_left = (steps_per_epoch or 0) * max(0, run.total_epochs - run.epochs_before)
    total = run.total_steps or (steps_left and run.start_step + steps_left)
    return replace(
        started,
        steps_per_epoch=steps_per_epoch,
        total_epochs=run.total_epochs,
        total_steps=total or None,
    )


def last_record(
    error: BaseException | None, *, step: int, seconds: float, stopped: bool, at_exit: bool
) -> RunFinished | RunFailed:
    """How the script ended, by the ``error`` that ended it."""
    now = time.time()
    if isinstance(error, SystemExit) and error.code in (None, 0):
        error = None
    if error is None or isinstance(error, KeyboardInterrupt):
        reason: Literal["done", "stopped", "ended"] = "ended" if at_exit else "done"
        if error is not None or stopped:
            reason = "stopped"
        return RunFinished(time=now, steps=step, seconds=seconds, reason=reason)
    trace = "".join(traceback.format_exception(error))
    text = one_line(f"{type(error).__name__}: {error}").removesuffix(":")
    if isinstance(error, SystemExit):
        text = _exit_words(error.code)
    return RunFailed(time=now, step=step, error=text, traceback=trace)


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
