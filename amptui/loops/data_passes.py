"""A run's passes over its data: what is counted on the way, where a resumed run goes on, and validation."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any, Literal

import torch
from torch import Tensor, nn

from amptui.base.errors import DataError, ExperimentError
from amptui.checkpoint.file import Checkpoint
from amptui.data.batches import Batch, count_samples
from amptui.loops.setup import Prepared
from amptui.loops.strategy import MetricSums
from amptui.loops.train_step import TrainMonitor
from amptui.probes.snapshot import Generators
from amptui.recipe.trained import check_scalars
from amptui.records.control import Control
from amptui.records.run import Note, Phase, PhaseChanged, Record

INTERVAL_SECONDS = 0.25


def random_states(prepared: Prepared) -> dict[str, Any]:
    """The states of all random generators that a training uses, as plain values and tensors for a file."""
    loaders = [generator.get_state() for generator in _of_loaders(prepared)]
    return {"process": Generators.current(prepared.device).plain(), "loaders": loaders}


def set_random_states(states: Mapping[str, Any], prepared: Prepared) -> None:
    """Inverse of :func:`random_states`."""
    Generators.from_plain(states["process"], prepared.device).apply()
    for generator, state in zip(_of_loaders(prepared), states["loaders"], strict=False):
        generator.set_state(state)


def _of_loaders(prepared: Prepared) -> list[torch.Generator]:
    """The generators that the model file gave to its loaders."""
    both = (prepared.training, prepared.validation)
    return [generator for batches in both if batches is not None for generator in batches.generators]


class DataPosition:
    """Counts epochs and batches, and keeps the random states from the start of each epoch."""

    def __init__(
        self,
        prepared: Prepared,
        start: Checkpoint | None,
        control: Control,
        emit: Callable[[Record], object],
        *,
        keeps: bool,
    ) -> None:
        self._prepared = prepared
        self._start = start
        self._control = control
        self._progress = PhaseProgress(emit, "data")
        self._keeps = keeps
        self._saved: Mapping[str, Any] | None = None
        self._epoch_draws: Mapping[str, Any] | None = None
        self.began = time.monotonic() - (start.seconds if start else 0.0)
        """When the run would have begun without a break, by ``monotonic``."""
        self.validated_step: int = start.loop["validated_step"] if start else 0
        """After which step the newest validation was."""
        self.epoch = start.epoch if start else 1
        """The current epoch, counted from 1; past the last one at the end."""
        self.batches = start.batches if start else 0
        """Its batches that were trained on."""

    @property
    def epoch_ends(self) -> bool:
        """Whether all batches of the epoch are known to be done."""
        return self.batches == self._prepared.training.batches_per_epoch

    def run_ends(self, step: int) -> bool:
        """Whether all requested epochs are done, or all steps, if the epoch has more batches."""
        schedule = self._prepared.schedule
        limit, length = schedule.asked_steps, self._prepared.training.batches_per_epoch
        if schedule.asked_epochs and self.epoch > schedule.epochs:
            return True
        over = limit is not None and step >= limit
        return over and length is not None and self.batches < length

    def states(self) -> dict[str, Any]:
        """The position and the random states of this process, as plain values and tensors."""
        draws = random_states(self._prepared)
        return {"batches": self.batches, "draws": draws, "epoch_draws": self._epoch_draws or draws}

    def open_epoch(self) -> Iterator[Batch]:
        """The remaining batches of the epoch."""
        start, self._start = self._start, None
        prepared = self._prepared
        if start is None:
            self._epoch_draws = random_states(prepared) if self._keeps else None
            return _not_empty(prepared.training.epoch(self.epoch), self.epoch, 0)
        if self.epoch > 1:
            for batches in (prepared.training, prepared.validation):
                if batches is not None:
                    batches.start_workers()
        self._epoch_draws = start.epoch_draws
        set_random_states(start.epoch_draws, prepared)
        left = prepared.training.epoch(self.epoch, skip=self.batches, passed=self._report_skipped)
        set_random_states(start.draws, prepared)
        return _not_empty(left, self.epoch, self.batches)

    def finish_epoch(self) -> None:
        """Go to the next epoch, after validation."""
        self.epoch += 1
        self.batches = 0
        self._epoch_draws = None

    def save_random_states(self) -> None:
        """Save the random states: what is drawn next may have to be undone."""
        self._saved = random_states(self._prepared) if self._keeps else None

    def undo_draws(self) -> None:
        """Undo what was drawn since :meth:`save_random_states`: a resumed run draws it again."""
        if self._saved is not None:
            set_random_states(self._saved, self._prepared)

    def _report_skipped(self, batches: int) -> bool:
        """Report the progress of skipping batches; return whether to continue."""
        self._progress.report("skipping batches up to the checkpoint", batches, self.batches, "batches")
        return self._control.stop_reason is None


def _not_empty(left: Iterator[Batch], epoch: int, passed: int) -> Iterator[Batch]:
    """``left``, the rest of ``epoch`` after its first ``passed`` batches. Raises DataError if it has none."""
    for batch in left:
        passed += 1
        yield batch
    if not passed:
        raise DataError(f"epoch {epoch}: no training batches", hint="let each iter() yield at least one")


class PhaseProgress:
    """Emits the progress of one phase."""

    def __init__(self, emit: Callable[[Record], object], phase: Phase) -> None:
        self._emit = emit
        self._phase: Phase = phase
        self._due = 0.0
        self._detail = ""

    def report(
        self,
        detail: str,
        count: int | None = None,
        total: int | None = None,
        unit: Literal["bytes", "samples", "batches"] | None = None,
    ) -> None:
        """Emit the progress if it is time, and always if ``detail`` changes or ``count`` is ``total``."""
        now, at_end = time.monotonic(), count is not None and count == total
        if now >= self._due or detail != self._detail or at_end:
            self._due, self._detail = now + INTERVAL_SECONDS, detail
            self._emit(
                PhaseChanged(
                    time=time.time(), phase=self._phase, detail=detail, done=count, total=total, unit=unit
                )
            )


class Validator:
    """Runs the validation pass; leaves the model unchanged."""

    def __init__(self, prepared: Prepared, control: Control, emit: Callable[[Record], object]) -> None:
        self._prepared = prepared
        self._control = control
        self._emit = emit
        self._progress = PhaseProgress(emit, "validating")

    def run(self, monitor: TrainMonitor, position: DataPosition) -> MetricSums | None:
        """Sum the metrics over the validation data, if there is any, in the precision of the steps so far.

        Returns None if the run is asked to stop meanwhile: a resumed run then draws the same again.
        """
        sums, batches, strategy = MetricSums(), self._prepared.validation, self._prepared.strategy
        if batches is None:
            return sums
        limit, total = strategy.validation_batches(
            self._prepared.request.validation_batches, batches.batches_per_epoch
        )
        position.save_random_states()
        with monitor.switch.validation_precision() as precision, torch.no_grad():
            monitor.validated_in = precision.name
            strategy.synchronize_buffers()
            with evaluating(self._prepared.model):
                own_batches, is_empty = islice(batches.epoch(0), limit), limit != 0
                for index, batch in enumerate(strategy.padded(own_batches, total, _NO_BATCH)):
                    is_empty = is_empty and batch is _NO_BATCH
                    self._control.at_boundary(validating=True)
                    if self._control.stopping:
                        position.undo_draws()
                        return None
                    self._progress.report("validating", index, total, "batches")
                    with precision.forward_context:
                        self._add(sums, batch)
            if is_empty:  # an epoch without a validation still counts
                text = "no validation: no validation batches; let each iter() yield at least one"
                self._emit(Note(time=time.time(), severity="error", text=text))
            sums = strategy.sum_over_ranks(sums)
        position.validated_step = monitor.step
        return sums

    def _add(self, sums: MetricSums, batch: object) -> None:
        """Add the metrics of one batch, on all ranks at the same time."""
        strategy = self._prepared.strategy
        if batch is not _NO_BATCH:
            sums.add(strategy.evaluate(partial(self._metrics, batch)), count_samples(batch))
        elif strategy.sharded:
            # The others need this rank's part of the weights. What it computes with them counts nowhere.
            strategy.evaluate(partial(self._metrics, self._prepared.training.first()))

    def _metrics(self, batch: object) -> dict[str, Tensor]:
        experiment = self._prepared.experiment
        metrics = experiment.metrics(self._prepared.model, batch)
        if not isinstance(metrics, dict):
            raise ExperimentError(
                f"{type(experiment).__name__}.metrics() returned a {type(metrics).__name__}",
                hint="return a dict of scalar tensors",
            )
        check_scalars(metrics, f"{type(experiment).__name__}.metrics()")
        if "loss" not in metrics:
            loss = experiment.loss(self._prepared.model, batch)
            metrics = {**metrics, "loss": loss["loss"] if isinstance(loss, dict) else loss}
        return metrics


_NO_BATCH = object()
"""Stands for the batch of a rank that has fewer than others: all ranks count as many."""


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Within, the model is in evaluation mode; afterwards each module has its own mode again."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training
