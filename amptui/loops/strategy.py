"""How processes train a model together, as the loop sees it: here a single one that trains alone.

:mod:`amptui.ranks` has the strategies of several. A step of a single process calls nothing of this.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from amptui.checkpoint.file import whole_room
from amptui.checkpoint.states import Keys, Part
from amptui.data.batches import Batch, Batches, count_samples
from amptui.data.order import WHOLE, Share
from amptui.probes.gradients import GradientProbe
from amptui.recipe.experiment import Experiment
from amptui.records.run import Validation

R = TypeVar("R")


class MicroBatch(NamedTuple):
    """A batch of an optimizer step; most steps have one."""

    compute_loss: Callable[[], object]
    """Runs the forward pass; returns what :meth:`amptui.Experiment.loss` may return."""
    samples: int
    batch: object
    """What the loss is computed of."""


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


class Strategy:
    """A model that this process trains alone. It is made before the optimizer is built."""

    kind: ClassVar[str] = ""
    """As records name it: ``ddp``, ``fsdp2``; "" in a single process."""

    sharded: ClassVar[bool] = False
    """Whether each rank keeps only a part of the model: all of them have to run it at the same time."""

    share: Share = WHOLE
    """Which part of each global batch this process takes."""

    needs_others = False
    """Whether a rank cannot run the model alone, as in a first step that can be undone."""

    on_trial = False
    """Whether the next step can fail on one rank, and must then be undone on all."""

    state: Mapping[str, Any] | None = None
    """The model's ``state_dict`` after the end, if the model itself no longer has it whole."""

    def __init__(self, experiment: Experiment, model: nn.Module) -> None:
        self._experiment = experiment
        self._model = model
        self._loss = partial(experiment.loss, model)

    @property
    def ranks(self) -> int:
        """How many processes train together."""
        return self.share.world_size

    @property
    def leads(self) -> bool:
        """Whether this is rank 0."""
        return self.share.rank == 0

    def join(self, batches: tuple[Batches, Batches | None], unsupported: Collection[str]) -> None:
        """Connect the model with those of the other ranks, once there is an optimizer."""

    def leave(self) -> None:
        """Part from the other ranks after the last step."""

    # ------------------------------------------------------------------ steps

    def micro_batches(self, step_batches: Sequence[Batch]) -> list[MicroBatch]:
        """An optimizer step of this process's ``step_batches``, with the samples of all ranks."""
        compute = self._loss
        return [MicroBatch(partial(compute, batch), count_samples(batch), batch) for batch in step_batches]

    def run_passes(self, passes: Callable[[], object], observed_step: int | None) -> None:  # noqa: ARG002
        """Run the passes of a step: of ``observed_step``, if it is measured."""
        passes()

    def mean_loss(self, loss: Tensor) -> Tensor:
        """The last step's loss, this rank's ``loss``, as the mean over all ranks."""
        return loss

    def tell_compiling(self, compiling: bool) -> None:
        """Compiling begins or ends: the time it takes is none that this rank computes."""

    def gradients(self, model: nn.Module) -> GradientProbe:
        """What measures the gradients of ``model``, on all ranks the same."""
        return GradientProbe(model)

    def agree(self, trouble: str) -> str:
        """The ``trouble`` of the first rank that has one; "" if none has. Waits for all."""
        return trouble

    # ------------------------------------------------------------------ validation

    def validation_batches(self, limit: int | None, total: int | None) -> tuple[int | None, int | None]:
        """How many of ``total`` batches this process validates at most, and how many any rank does."""
        return limit, min(filter(None, (limit, total)), default=None)

    def synchronize_buffers(self) -> None:
        """Give all ranks rank 0's buffers, such as running means: each then validates the same model."""

    def padded(self, batches: Iterator[Batch], count: int | None, no_batch: object) -> Iterator[object]:  # noqa: ARG002
        """All of ``batches``, and ``no_batch`` until there were as many as other ranks ``count``."""
        return batches

    def evaluate(self, compute: Callable[[], R]) -> R:
        """What ``compute``, which runs the model without gradients, returns."""
        return compute()

    def sum_over_ranks(self, sums: MetricSums) -> MetricSums:
        """The sums of all ranks."""
        return sums

    # ------------------------------------------------------------------ checkpoints

    def states(self, optimizer: Optimizer) -> tuple[dict[str, Any], dict[str, Any], list[Part]]:
        """The states of the model and of its ``optimizer``, and this rank's parts of what is divided.

        In place of a divided tensor the states have an empty one on the meta device. Waits for no other rank.
        """
        return self._model.state_dict(), optimizer.state_dict(), []

    def room(self, optimizer: Optimizer) -> Callable[[Keys, Tensor], Tensor]:  # noqa: ARG002
        """What makes room for a tensor of a checkpoint, which :meth:`load_states` is given then."""
        return whole_room

    def load_states(self, model: dict[str, Any], state: dict[str, Any], optimizer: Optimizer) -> None:
        """Load states of the model and of its ``optimizer``, whole or as :meth:`room` made them."""
        self._model.load_state_dict(model)
        optimizer.load_state_dict(state)


class Ranks:
    """The processes that train together, before there is a model: here a single one."""

    share: Share = WHOLE

    def in_turn(self, load: Callable[[], R]) -> R:
        """What ``load`` returns; rank 0 goes first, so that only it downloads a file, or refuses one."""
        return load()

    def strategy(self, experiment: Experiment, model: nn.Module) -> Strategy:
        """How they train the ``model``, which has its weights but no optimizer yet."""
        return Strategy(experiment, model)
