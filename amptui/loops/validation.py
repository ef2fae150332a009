"""The validation pass, summed on the device, and the checks of what loss() and metrics() return."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from amptui.base.errors import ExperimentError
from amptui.data.batches import count_samples
from amptui.loops.data_position import BatchCount, DataPosition, PhaseProgress
from amptui.loops.prepared import Prepared
from amptui.loops.train_step import TrainMonitor
from amptui.recipe.loss import check_scalars
from amptui.recipe.precision import Precision
from amptui.records.control import Control
from amptui.records.run import Record, Validation


class MetricSums:
    """Sums of metrics weighted by samples, on the model's device."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._samples = 0

    def add(self, metrics: dict[str, Tensor], samples: int) -> None:
        """Add the means of one batch."""
        for name, value in metrics.items():
            weighted = value.detach().float() * samples
            self._sums[name] = self._sums[name] + weighted if name in self._sums else weighted
        self._samples += samples

    def over_ranks(self, gather: Callable[[object], list[Any]]) -> "MetricSums":
        """Those of all ranks together, in float64; ``gather`` returns what each rank gave it."""
        everybody = gather((self._samples, {name: value.item() for name, value in self._sums.items()}))
        total = MetricSums()
        for samples, sums in everybody:
            total._samples += samples
            for name, value in sums.items():
                before = total._sums.get(name, torch.zeros((), dtype=torch.float64, device="cpu"))
                total._sums[name] = before + value
        return total

    def tensors(self) -> list[Tensor]:
        """The sums, for the readback."""
        return list(self._sums.values())

    def means(self, row: Sequence[float] | None) -> Validation | None:
        """The means, from a row of the sums; None if the row was dropped or there were no samples."""
        if row is None or not self._samples:
            return None
        means = dict(zip(self._sums, (value / self._samples for value in row), strict=True))
        return Validation(
            loss=means.pop("loss", None),
            accuracy=means.pop("accuracy", None),
            samples=self._samples,
            metrics=means,
        )


class Validator:
    """Runs the validation pass; leaves the model unchanged."""

    def __init__(self, prepared: Prepared, control: Control, emit: Callable[[Record], object]) -> None:
        self._prepared = prepared
        self._control = control
        self._emit = emit
        self._progress = PhaseProgress(emit, "validating")
        self._count: BatchCount | None = None

    def run(self, monitor: TrainMonitor, position: DataPosition) -> MetricSums | None:
        """Sum the metrics over the validation data, if there is any, in the precision of the steps so far.

        Returns None if the run is asked to stop meanwhile: a resumed run then draws the same again.
        """
        position.save_random_states()
        with monitor.switch.validation_precision() as precision:
            monitor.validated_in = precision.name
            sums = self._sum(precision)
        if sums is None:
            position.undo_draws()
        else:
            position.validated_step = monitor.step
        return sums

    def _sum(self, precision: Precision) -> MetricSums | None:
        sums, batches = MetricSums(), self._prepared.validation
        if batches is None:
            return sums
        if self._count is None:
            self._count = BatchCount(batches, self._emit, training=False)
        strategy = self._prepared.strategy
        limit, total = strategy.validation_batches(
            self._prepared.request.validation_batches, batches.batches_per_epoch
        )
        strategy.synchronize_buffers()
        with evaluating(self._prepared.model), torch.no_grad():
            own_batches = islice(self._count.watch(batches.epoch(0)), limit)
            for index, batch in enumerate(strategy.padded(own_batches, total, _NO_BATCH)):
                self._control.at_boundary(validating=True)
                if self._control.stopping:
                    return None
                self._progress.report("validating", index, total, "batches")
                with precision.forward_context:
                    self._add(sums, batch)
        return strategy.sum_over_ranks(sums)

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
