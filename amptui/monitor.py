"""Watches somebody else's training loop: ``observe()`` opens a run in the script's own process.

The script keeps its loop, its output, its signals and its exit status. Threads in the background keep the
journal and serve screens; a fault of amptui's is told in one line, and the script goes on without it.
"""

import atexit
import operator
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from amptui.data.batches import count_samples
from amptui.engine.own_loop.loop_hooks import is_from_signal_handler
from amptui.engine.own_loop.loop_search import FoundLoop
from amptui.engine.own_loop.observed_loop import ObservedLoop
from amptui.process.guest_rank import OtherRank
from amptui.process.guest_run import GuestRun, Observed, Watched, tell_fault
from amptui.process.rank_peer import world_of_script
from amptui.text import one_line

if TYPE_CHECKING:
    from amptui.process.script_run import ScriptRun

_T = TypeVar("_T")


def observe(
    model: nn.Module,
    optimizer: Optimizer,
    scaler: GradScaler | None = None,
    *,
    samples_per_step: int | None = None,
) -> "Monitor":
    """Watch a training loop without changing it; call it once, before the first step.

    The loop keeps its own autocast and ``scaler``. Every step of ``optimizer`` is seen through hooks: the
    loss that was backpropagated (unscaled; the sum if there were several), the loss scale and skipped steps,
    learning rates, time, memory, and now and then the norm of the gradients of ``model``. Nothing waits for
    the GPU, and the training stays the same bit for bit.

    ``samples_per_step``: how many samples one optimizer step takes, for the throughput.

    Raises TypeError for arguments of other kinds. If anything of amptui's own fails, it writes one line to
    standard error and the script continues unobserved.
    """
    check_trained(model, optimizer)
    if scaler is not None and not isinstance(scaler, GradScaler):
        raise TypeError(f"scaler must be a torch.amp.GradScaler, not {type(scaler).__name__}")
    return Monitor(Observed(model, optimizer, scaler, samples_per_step))


def check_trained(model: object, optimizer: object) -> None:
    """Raise TypeError if these are not a model and its optimizer."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, not {type(model).__name__}")
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer must be a torch.optim.Optimizer, not {type(optimizer).__name__}")


def observe_found(loop: FoundLoop) -> ObservedLoop | None:
    """As :func:`observe`, from the middle of the first step; None if that failed, which is told."""
    return Monitor(Observed(loop.model, loop.optimizer, loop.scaler, None, loop.first_step)).loop


class Monitor:
    """A run that is being watched, from :func:`observe` to :meth:`close` or the end of the script.

    As a context manager it closes at the end of the block.
    """

    def __init__(self, script: Observed | Watched | None) -> None:
        self._run: ScriptRun | None = None
        self._error: BaseException | None = None
        self._total_epochs = self._batches_per_epoch = 0
        self._pid = os.getpid()
        self._excepthook = sys.excepthook
        if script is not None:
            self._open(script)

    def _open(self, script: Observed | Watched) -> None:
        """Begin to watch: at once, or when a framework has made model and optimizer."""
        try:
            world = world_of_script()
            is_led = world is not None and not world.leads
            self._run = OtherRank(script, world) if is_led else GuestRun(script, world)
        except Exception as error:
            if is_from_signal_handler(error):
                raise  # the script's alarm found us at work
            tell_fault("cannot watch this script", error)
            return
        sys.excepthook = self._take_error
        atexit.register(self._close_at_exit)

    @property
    def loop(self) -> ObservedLoop | None:
        """What sees the steps; None if that could not begin, or is over."""
        return None if self._run is None else self._run.loop

    def log(self, loss: Tensor | float | None = None, **values: Tensor | float) -> None:
        """Show ``values`` with the last step, or with the one that is being made; ``loss`` replaces its loss.

        Tensors hold one number each; those on a GPU are not waited for. What is no number is left out, with
        a warning.
        """
        run = self._run
        if run is None:
            return
        try:
            numbers = {name: _one_number(name, value) for name, value in values.items()}
            run.loop.log(None if loss is None else _one_number("loss", loss), numbers)
        except Exception as error:  # noqa: BLE001 - the training is worth more than a number of it
            run.warn_once(one_line(str(error)))

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
        """Iterate over ``epochs``, or so many from 0 on, and tell the screen where each one ends."""
        all_epochs = range(epochs) if isinstance(epochs, int) else epochs
        self._total_epochs = _length_of(all_epochs)
        self._tell_length()
        for each in all_epochs:
            yield each
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
        self._batches_per_epoch = _length_of(batches)
        self._tell_length()
        source = iter(batches)
        while not self.should_stop:
            asked = time.perf_counter()
            try:
                batch = next(source)
            except StopIteration:
                return
            self._loaded(asked, time.perf_counter() - asked, samples_of(batch))
            self._see(batch)
            yield batch

    def _tell_length(self) -> None:
        if self._run is not None:
            self._run.total_epochs = self._total_epochs
            self._run.batches_per_epoch = self._batches_per_epoch

    def _loaded(self, asked: float, seconds: float, samples: int) -> None:
        """A batch was loaded."""
        if self._run is not None:
            self._run.loop.loaded(asked, seconds, samples * self._run.ranks)

    def _see(self, batch: object) -> None:
        """A batch is about to be given to the loop."""

    @contextmanager
    def validation(self) -> Iterator[None]:
        """Within, :meth:`log` tells the results of a validation; its time belongs to no step."""
        run = self._run
        if run is not None:
            run.loop.begin_validation()
        try:
            yield
        finally:
            if run is not None:
                run.loop.finish_validation()

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

    def _take_error(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """The script dies of ``error``: tell the run at exit, and the terminal as the script would."""
        if not hasattr(sys, "ps1"):  # an interactive session goes on
            self._error = error
        self._excepthook(kind, error, trace)

    def _close_at_exit(self) -> None:
        self._close(self._error, at_exit=True)

    def _close(self, error: BaseException | None, *, at_exit: bool = False) -> None:
        run, self._run = self._run, None
        if run is None or os.getpid() != self._pid:
            return
        atexit.unregister(self._close_at_exit)
        if sys.excepthook == self._take_error:
            sys.excepthook = self._excepthook
        try:
            run.close(error, at_exit=at_exit)
        except Exception as fault:  # noqa: BLE001 - the script has its own end
            tell_fault("the run was not closed cleanly", fault)


def samples_of(batch: object) -> int:
    """As ``count_samples``; 0 also for a batch that cannot be counted, which is the script's own matter."""
    try:
        return count_samples(batch)
    except Exception as error:
        if is_from_signal_handler(error):
            raise
        return 0


def _length_of(values: Iterable[object]) -> int:
    """How many there are; 0 if that is unknown, or cannot be asked without an error."""
    try:
        return operator.length_hint(values)
    except Exception as error:
        if is_from_signal_handler(error):
            raise
        return 0


def _one_number(name: str, value: Tensor | float) -> Tensor:
    """A number that was logged, as a tensor wherever it is. Raises ValueError if there are several."""
    tensor = value.detach() if isinstance(value, Tensor) else torch.tensor(float(value), device="cpu")
    if tensor.numel() != 1:
        raise ValueError(f"log({name}=...) takes one number, not a tensor of shape {tuple(tensor.shape)}")
    return tensor.reshape(())
