"""A run's position in its data, and how a resumed run gets there again."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from amptui.control import Control
from amptui.data.batches import Batch
from amptui.engine.batch_count import BatchCount
from amptui.engine.checkpoint.file import Place
from amptui.engine.setup import Prepared
from amptui.engine.snapshot import Generators
from amptui.records import PhaseChanged, Record

_PROGRESS_INTERVAL_SECONDS = 0.25


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """The state of every random generator that a training draws from."""

    process: Generators
    loaders: tuple[Tensor, ...]
    """Of those that the person gave to training and validation loaders."""

    @classmethod
    def current(cls, prepared: Prepared) -> "Draws":
        """As they are now."""
        loaders = (generator.get_state() for generator in _of_loaders(prepared))
        return cls(Generators.current(prepared.device), tuple(loaders))

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any], prepared: Prepared) -> "Draws":
        """From what :meth:`plain` made."""
        return cls(Generators.from_plain(plain["process"], prepared.device), tuple(plain["loaders"]))

    def plain(self) -> dict[str, Any]:
        """As plain values and tensors, for a file."""
        return {"process": self.process.plain(), "loaders": list(self.loaders)}

    def apply(self, prepared: Prepared) -> None:
        """Set all of them."""
        self.process.apply()
        for generator, state in zip(_of_loaders(prepared), self.loaders, strict=False):
            generator.set_state(state)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Start:
    """Where a run goes on that began in another process; model, optimizer and scaler are there already."""

    checkpoint: str
    """The file's name."""
    step: int
    epoch: int
    batches: int
    seconds: float
    """How long the run had lasted."""
    draws: Draws
    epoch_draws: Draws
    """Before the epoch's first batch."""
    loop: Mapping[str, Any]
    """What the loop itself had counted and been told."""


class DataPosition:
    """Counts steps, epochs and batches, and knows what was drawn before each epoch."""

    def __init__(
        self,
        prepared: Prepared,
        start: Start | None,
        control: Control,
        emit: Callable[[Record], object],
        *,
        keeps: bool,
    ) -> None:
        self._prepared = prepared
        self._start = start
        self._control = control
        self._emit = emit
        self._count = BatchCount(prepared.training, emit, training=True)
        self._progress_due = 0.0
        self._keeps = keeps
        self._remembered: Draws | None = None
        self._epoch_draws: Draws | None = None
        self.step = start.step if start else 0
        """Steps sent to the device."""
        self.epoch = start.epoch if start else 1
        """The epoch that runs, counted from 1; past the last one when all is done."""
        self.batches = start.batches if start else 0
        """How many of its batches were trained on."""

    @property
    def epoch_draws(self) -> Draws:
        """The generators before the epoch's first batch; now, where it has not begun."""
        return self._epoch_draws or Draws.current(self._prepared)

    @property
    def epoch_ends(self) -> bool:
        """Whether all batches of the epoch are known to be done."""
        return self.batches == self._prepared.training.batches_per_epoch

    @property
    def run_ends(self) -> bool:
        """Whether all epochs that were asked for are done, or all steps and the epoch has more."""
        schedule = self._prepared.schedule
        limit, length = schedule.asked_steps, self._prepared.training.batches_per_epoch
        if schedule.asked_epochs and self.epoch > schedule.epochs:
            return True
        over = limit is not None and self.step >= limit
        return over and length is not None and self.batches < length

    def place(self, precision: str) -> Place:
        """Where it is, as a checkpoint in that precision is."""
        return self.step, self.epoch, self.batches, precision

    def open_epoch(self) -> Iterator[Batch]:
        """The epoch's batches that are left."""
        start, self._start = self._start, None
        prepared = self._prepared
        if start is None:
            self._epoch_draws = Draws.current(prepared) if self._keeps else None
            return self._count.watch(prepared.training.epoch(self.epoch), epoch=self.epoch)
        if self.epoch > 1:
            for batches in (prepared.training, prepared.validation):
                if batches is not None:
                    batches.start_workers()
        self._epoch_draws = start.epoch_draws
        start.epoch_draws.apply(prepared)
        left = prepared.training.epoch(self.epoch, skip=self.batches, passed=self._tell_passed)
        start.draws.apply(prepared)
        return self._count.watch(left, epoch=self.epoch, passed=self.batches)

    def count_step(self, batches: int) -> None:
        """So many batches were trained on in one step."""
        self.step += 1
        self.batches += batches

    def finish_epoch(self) -> None:
        """The epoch is over, and validated."""
        self.epoch += 1
        self.batches = 0
        self._epoch_draws = None

    def remember(self) -> None:
        """Keep the generators' states: what follows may have to count as never drawn."""
        self._remembered = Draws.current(self._prepared) if self._keeps else None

    def take_back(self) -> None:
        """Undo what was drawn since :meth:`remember`: another process will draw it."""
        if self._remembered is not None:
            self._remembered.apply(self._prepared)

    def _tell_passed(self, done: int) -> bool:
        """Tell how far the way back into the epoch is; whether to go on."""
        now = time.monotonic()
        if now >= self._progress_due:
            self._progress_due = now + _PROGRESS_INTERVAL_SECONDS
            self._emit(
                PhaseChanged(
                    time=time.time(),
                    phase="data",
                    detail="skipping batches up to the checkpoint",
                    done=done,
                    total=self.batches,
                    unit="batches",
                )
            )
        return self._control.stop_reason is None


def _of_loaders(prepared: Prepared) -> list[Any]:
    both = (prepared.training, prepared.validation)
    return [generator for batches in both if batches is not None for generator in batches.generators]
