"""A training without a front, of which only the numbers count: runs it to its end and says how it ended."""

import gc
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn

from amptui.base.errors import AmptuiError
from amptui.process.recorder import Listener
from amptui.process.training import LOOK_INTERVAL_SECONDS, Training, follow, wire
from amptui.recipe.request import ModelSpec, TrainRequest
from amptui.runs.rundir import create_run_dir
from amptui.telemetry.view import SessionView


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingEnd:
    """How a training ended, and all that is known of it."""

    view: SessionView
    error: AmptuiError | None
    """What ended it early."""
    hangs: bool
    """The trainer did not stop when asked: this process can train no more."""


def measure_training(  # noqa: PLR0913 - options by name
    request: TrainRequest,
    spec: ModelSpec,
    folder: Path,
    *,
    begin: Callable[[Training], object] = lambda _training: None,
    look: Callable[[Training], object],
    hurried: Callable[[], bool],
    listeners: Sequence[Listener] = (),
    look_interval_seconds: float = LOOK_INTERVAL_SECONDS,
) -> TrainingEnd:
    """Train in ``folder`` until ``look``, called now and then, asks for a stop, or the run ends.

    ``begin`` is called before the trainer starts; while ``hurried()``, a trainer that was asked to stop is
    not waited for long. Raises RunFolderError.
    """
    from amptui.engine.precision import Tf32Flags

    run_dir, flags = create_run_dir(folder, spec.name), Tf32Flags.current()
    with wire(request, spec, run_dir, listeners=listeners) as training:
        begin(training)
        training.start()
        follow(training, partial(look, training), interval_seconds=look_interval_seconds)
        in_time = training.stopping.wait(hurried=hurried)
        training.close()
    # A run leaves the flags of its last precision, which the next one would take for torch's defaults.
    flags.apply()
    error = training.thread.error
    if not in_time:
        error = AmptuiError(f"the trainer did not stop ({training.thread.doing}); leaving anyway")
    return TrainingEnd(view=training.recording.view(), error=error, hangs=not in_time)


def free_memory() -> None:
    """Free the memory of the previous training."""
    from amptui.device.accelerator import default_device, empty_cache

    gc.collect()
    empty_cache(default_device())


def leave_at_once(status: int) -> NoReturn:
    """Exit without Python's own end.

    A thread inside torch, or pinned memory after a kernel's failure, would abort it.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(status)
