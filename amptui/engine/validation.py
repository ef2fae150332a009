"""The validation pass, summed on the device, and the checks of what loss() and metrics() return."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from amptui.base.errors import ExperimentError
from amptui.data.batches import Batch, Batches, count_samples
from amptui.engine.batch_count import BatchCount
from amptui.engine.phase_progress import PhaseProgress
from amptui.engine.precision import Precision
from amptui.engine.prepared import Prepared
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
        self._of_all: list[int] = []
        """How many batches each rank has."""

    def run(self, precision: Precision) -> MetricSums | None:
        """Sum the metrics over the validation data, if there is any; None if the run is asked to stop."""
        sums, batches = MetricSums(), self._prepared.validation
        if batches is None:
            return sums
        if self._count is None:
            self._count = BatchCount(batches, self._emit, training=False)
        limit, total = self._share(batches)
        parallel = self._prepared.parallel
        if parallel is not None:
            parallel.synchronize_buffers()
        with evaluating(self._prepared.model), torch.no_grad():
            mine = islice(self._count.watch(batches.epoch(0)), limit)
            for done, batch in enumerate(mine if parallel is None else _padded(mine, total)):
                self._control.at_boundary(validating=True)
                if self._control.stopping:
                    return None
                self._progress.report("validating", done, total, "batches")
                with precision.forward_context():
                    self._add(sums, batch)
        return sums if parallel is None else sums.over_ranks(parallel.group.gather)

    def _add(self, sums: MetricSums, batch: object) -> None:
        """Add the metrics of one batch, on all ranks at the same time."""
        parallel = self._prepared.parallel
        if parallel is None:
            sums.add(self._metrics(batch), count_samples(batch))
        elif batch is not _NO_BATCH:
            sums.add(parallel.evaluate(partial(self._metrics, batch)), count_samples(batch))
        elif parallel.sharded:
            # The others need this rank's part of the weights. What it computes with them counts nowhere.
            parallel.evaluate(partial(self._metrics, self._prepared.training.first()))

    def _share(self, batches: Batches) -> tuple[int | None, int | None]:
        """How many batches this process validates at most, and how many the rank that has the most."""
        limit, total = self._prepared.validation_batches, batches.batches_per_epoch
        parallel = self._prepared.parallel
        if parallel is None:
            return limit, min(filter(None, (limit, total)), default=None)
        rank, ranks = parallel.world.rank, parallel.world.size
        self._of_all = self._of_all or parallel.group.gather(total or 0)
        everybody = sum(self._of_all)
        asked = everybody if limit is None else min(limit, everybody)
        return -(-max(0, asked - rank) // ranks), min(-(-asked // ranks), max(self._of_all))

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


def check_scalars(named: Mapping[str, object], owner: str) -> None:
    """Raise ExperimentError if a value is not a scalar tensor: it would shift the numbers in a row."""
    for name, value in named.items():
        if not isinstance(value, Tensor):
            raise ExperimentError(
                f"{name!r} from {owner} is a {type(value).__name__}", hint="make it a scalar tensor"
            )
        if value.numel() != 1:
            shape = "x".join(map(str, value.shape))
            raise ExperimentError(
                f"{name!r} from {owner} has shape {shape}", hint="reduce it to a scalar, e.g. with .mean()"
            )


def checked_loss(experiment: object, result: object) -> tuple[Tensor, dict[str, Tensor]]:
    """Total and parts of what ``loss()`` returned; raises ExperimentError if it has no backward pass."""
    owner = f"{type(experiment).__name__}.loss()"
    parts: dict[str, Tensor] = {}
    if isinstance(result, dict):
        if "loss" not in result:
            raise ExperimentError(f"{owner} returned a dict without 'loss'", hint="name the total 'loss'")
        parts = {name: part for name, part in result.items() if name != "loss"}
        check_scalars(parts, owner)
        result = result["loss"]
    if not isinstance(result, Tensor):
        kind = "None" if result is None else f"a {type(result).__name__}"
        raise ExperimentError(f"{owner} returned {kind}", hint="return a scalar tensor")
    if result.numel() != 1:
        shape = "x".join(map(str, result.shape))
        raise ExperimentError(
            f"{owner} returned a tensor of shape {shape}", hint="reduce it to a scalar, e.g. with .mean()"
        )
    if not result.requires_grad:
        raise ExperimentError(
            f"{owner} returned a tensor that does not require a gradient",
            hint="compute it from the model's output, without no_grad() or detach()",
        )
    return result, parts


_NO_BATCH = object()
"""Stands for the batch of a rank that has fewer than others: all ranks count as many."""


def _padded(batches: Iterator[Batch], total: int | None) -> Iterator[Batch]:
    """All of ``batches``, and ``_NO_BATCH`` until there were ``total``."""
    for _ in range(total or 0):
        yield next(batches, _NO_BATCH)


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
