"""Watches somebody else's training loop: ``observe()`` opens a run in the script's own process.

The script keeps its loop, its output, its signals and its exit status. Threads in the background keep the
journal and serve screens; a fault of amptui's is told in one line, and the script goes on without it.
"""

import atexit
import operator
import os
import sys
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self, SupportsIndex, TypeVar

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from amptui.base.script_signals import is_from_signal_handler
from amptui.base.text import one_line
from amptui.data.batches import count_samples
from amptui.guest.processes import ranks_of_script
from amptui.guest.run import RunLength, ScriptRun, tell_fault
from amptui.loops.script.script import ObservedScript, Pairs, WatchedScript, named_optimizers

_T = TypeVar("_T")

_OPEN: "weakref.WeakSet[Monitor]" = weakref.WeakSet()
"""The monitors of this process, some of which may be closed."""


def observe(
    model: nn.Module | Pairs,
    optimizer: Optimizer | None = None,
    scaler: GradScaler | None = None,
    *,
    samples_per_step: int | None = None,
    start_step: int = 0,
) -> "Monitor":
    """Watch a training loop without changing it; call it once, before the first step.

    The loop keeps its own autocast and scalers. Every step of ``optimizer`` is seen through hooks: the loss
    of the backward passes whose gradients it used (unscaled; the sum if there were several), the loss scale
    and skipped steps, learning rates, time, memory, and now and then the norm of the gradients of ``model``.
    Nothing waits for the GPU, and the training stays the same bit for bit.

    Of several optimizers, ``model`` is a mapping of names to (model, optimizer) pairs, the most important one
    first: ``observe({"generator": (g, g_optimizer), "critic": (c, c_optimizer)})``. Optimizers that are not
    named are watched too, from their first steps on, up to eight; one of the same parameters, or that comes
    after the only one is gone, continues its steps.

    ``samples_per_step``: how many samples one optimizer step takes, for the throughput. ``start_step``: how
    many steps a resumed script has made before; the first one seen is the next.

    ``scaler`` is needed for what the run is described by; whichever scaler steps an optimizer is followed.

    Raises TypeError for arguments of other kinds and ValueError for a negative ``start_step``. If anything of
    amptui's own fails, it writes one line to standard error and the script continues unobserved.
    """
    first, *others = named_optimizers(model, optimizer)
    if scaler is not None and not isinstance(scaler, GradScaler):
        raise TypeError(f"scaler must be a torch.amp.GradScaler, not {type(scaler).__name__}")
    start_step = checked_start(start_step)
    script = ObservedScript(
        first=first,
        others=tuple(others),
        scaler=scaler,
        samples_per_step=samples_per_step,
    )
    return Monitor(script, start_step=start_step)


def checked_start(start_step: SupportsIndex) -> int:
    """It as an integer. Raises TypeError if it is none, and ValueError if it is negative."""
    if (number := operator.index(start_step)) < 0:
        raise ValueError(f"start_step must be at least 0, but is {number}")
    return number


class Monitor:
    """A run that is being watched, from :func:`observe` to :meth:`close` or the end of the script.

    As a context manager it closes at the end of the block.
    """

    def __init__(self, script: ObservedScript | WatchedScript | None, *, start_step: int = 0) -> None:
        self._run: ScriptRun | None = None
        self._length = RunLength(start_step=start_step)
        self._pid = os.getpid()
        if script is not None:
            self._open(script)

    def _open(self, script: ObservedScript | WatchedScript) -> None:
        """Begin to watch: at once, or when a framework has made model and optimizer."""
        self._pid = os.getpid()  # a framework's loop may run in a fork of who made this
        # A notebook's cell was run again.
        close_monitors_of([script.optimizer, *(pair.optimizer for pair in script.others)])
        _OPEN.add(self)
        try:
            self._run = ScriptRun(script, ranks_of_script(), self._length)
            atexit.register(self._close_at_exit)
        except Exception as error:
            if is_from_signal_handler(error):
                raise  # the script's alarm found us at work
            tell_fault("cannot watch this script", error)
            if script.loop is not None:
                script.loop.leave()

    def log(self, loss: Tensor | float | None = None, **values: Tensor | float) -> None:
        """Show ``values`` with the last step, or with the one that is being made; ``loss`` replaces its loss.

        Tensors hold one number each; those on a GPU are not waited for. What is no number is left out, with
        a warning.
        """
        run = self._run
        if run is None:
            return
        numbers: dict[str, Tensor] = {}
        for name, value in (values if loss is None else {"loss": loss, **values}).items():
            try:
                numbers[name] = _one_number(value)
            except Exception as error:
                if is_from_signal_handler(error):
                    raise
                run.warn_once(one_line(f"log({name}=...): {error}"))
        run.first.log(numbers.pop("loss", None), numbers)

    @property
    def should_stop(self) -> bool:
        """Whether a screen asked the script to stop.

        A script that never asks is interrupted as by Ctrl+C, if ``amptui run`` started it.
        """
        run = self._run
        if run is None:
            return False
        run.stops_when_asked = True
        return run.stop_reason is not None

    def epochs(self, epochs: Iterable[_T] | int) -> Iterator[_T | int]:
        """Iterate over ``epochs``, or so many from 0 on, and tell the screen where each one ends.

        The screen counts epochs from 1. ``range(10, 20)`` is what a resumed script has left of 20 epochs that
        it counts from 0: the screen shows 11 of 20. ``range(1, 11)`` is 10 epochs that it counts from 1,
        unless it has named a ``start_step``. Any other iterable counts from 1, whatever it holds.
        """
        all_epochs = range(epochs) if isinstance(epochs, int) else epochs
        length, run = self._length, self._run
        first, length.total_epochs = numbers_of_epochs(all_epochs, resumed=length.start_step > 0)
        length.epochs_before = first - 1
        if run is not None:
            run.first.epoch = max(run.first.epoch, first)
        for epoch in all_epochs:
            yield epoch
            run = self._run
            if run is None:
                continue
            if run.stop_reason is not None:
                return
            run.loop.finish_epoch()

    def steps(self, batches: Iterable[_T]) -> Iterator[_T]:
        """Iterate over ``batches`` until a screen asks to stop; measures the time to load each of them.

        Also counts its samples, unless ``samples_per_step`` was given: the length of its first tensor.
        """
        self._length.batches_per_epoch = _length_of(batches)
        source = iter(batches)
        while not self.should_stop:
            start = time.perf_counter()
            try:
                batch = next(source)
            except StopIteration:
                return
            self._take_batch(start, time.perf_counter() - start, samples_of(batch))
            self._see(batch)
            yield batch

    def _take_batch(self, load_start: float, seconds: float, samples: int) -> None:
        """A batch was loaded."""
        if self._run is not None:
            self._run.loop.take_batch(load_start, seconds, samples * self._run.layout.data_parallel)

    def _see(self, batch: object) -> None:
        """A batch is about to be given to the loop."""

    @contextmanager
    def validation(self) -> Iterator[None]:
        """Within, :meth:`log` tells the results of a validation; its time belongs to no step."""
        run = self._run
        if run is not None:
            run.first.begin_validation()
        try:
            yield
        finally:
            if run is not None:
                run.first.finish_validation()

    def close(self) -> None:
        """Take every hook off and end the run; does nothing the second time."""
        self._close(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._close(error)

    def _close_at_exit(self) -> None:
        # Python keeps the error that ended the script; an interactive session goes on after one.
        error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
        self._close(error, at_exit=True)

    def _close(self, error: BaseException | None, *, at_exit: bool = False) -> None:
        run, self._run = self._run, None
        if run is None or os.getpid() != self._pid:
            return
        atexit.unregister(self._close_at_exit)
        try:
            run.close(error, at_exit=at_exit)
        except Exception as fault:
            if is_from_signal_handler(fault):
                raise
            tell_fault("the run was not closed cleanly", fault)


def close_monitors_of(optimizers: Iterable[Optimizer]) -> None:
    """Close the monitors of this process that watch one of ``optimizers``, since another one will."""
    ids = {id(optimizer) for optimizer in optimizers}
    for monitor in list(_OPEN):
        run = monitor._run
        if run is None or os.getpid() != monitor._pid:
            continue
        if any(id(watcher.optimizer) in ids for watcher in run.loop.script_optimizers):
            run.note("info", "another monitor watches this optimizer now: this run ends here")
            monitor.close()


def samples_of(batch: object) -> int:
    """As ``count_samples``; 0 also for a batch that cannot be counted, which is the script's own matter."""
    try:
        return count_samples(batch)
    except Exception:  # noqa: BLE001 - a class of the script's own may raise anything
        return 0


def numbers_of_epochs(epochs: Iterable[object], *, resumed: bool) -> tuple[int, int]:
    """The numbers of the first and the last epoch, counted from 1; the last is 0 if it is unknown."""
    if not (isinstance(epochs, range) and epochs.step == 1 and 0 < epochs.start < epochs.stop):
        return 1, _length_of(epochs)
    counts_from_one = epochs.start == 1 and not resumed
    return (1, epochs.stop - 1) if counts_from_one else (epochs.start + 1, epochs.stop)


def _length_of(values: Iterable[object]) -> int:
    """How many there are; 0 if that is unknown, or cannot be asked without an error."""
    try:
        return operator.length_hint(values)
    except Exception:  # noqa: BLE001 - as above
        return 0


def _one_number(value: Tensor | float) -> Tensor:
    """A logged number of now, as a tensor wherever it is. Raises ValueError if there are several."""
    tensor = value.detach().clone() if isinstance(value, Tensor) else torch.tensor(float(value), device="cpu")
    if tensor.numel() != 1:
        raise ValueError(f"one number is expected, not a tensor of shape {tuple(tensor.shape)}")
    return tensor.reshape(())
