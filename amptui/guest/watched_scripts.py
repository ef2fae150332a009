"""What of a script is watched: its models, optimizers and scaler, and what may be asked of its loop."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from amptui.guest.loop.model_inputs import ModelInputs
from amptui.guest.loop.named_optimizers import NamedOptimizer
from amptui.guest.loop.observed_loop import ObservedLoop
from amptui.guest.loop.optimizer_lanes import OptimizerLanes
from amptui.guest.loop.switched_amp import SwitchedAmp
from amptui.guest.loop.trained_script import NO_CLOSURE, NO_SAVE, OwnLoop
from amptui.guest.loop.watched_loop import WatchedLoop
from amptui.records.answers import REQUEST_KINDS
from amptui.records.control import Control
from amptui.records.run import PRECISIONS, Record

ONLY_OBSERVED = "this run is only observed"
"""Why a request is refused: the script's own loop decides everything."""

Emit = Callable[[Record], object]


@dataclass(frozen=True, slots=True, eq=False)
class Observed:
    """A loop that keeps its own autocast and scaler."""

    model: nn.Module
    optimizer: Optimizer
    scaler: GradScaler | None
    samples_per_step: int | None
    lanes: OptimizerLanes | None = None
    """What has seen the first step so far, if the loop was searched."""
    reason: str = ONLY_OBSERVED
    """Why requests are refused."""
    name: str = ""
    """What a screen calls the optimizer; empty without others."""
    others: tuple[NamedOptimizer, ...] = ()
    data_parallel: int | None = None
    """How many ranks take samples of their own; None: as the model says."""

    def open_loop(
        self,
        emit: Emit,
        *,
        begins: Callable[[str], object],
        failed: Callable[[Exception], object],
        ranks: int = 1,
        data_parallel: int = 1,
        control: Control | None = None,  # noqa: ARG002 - nothing is asked of it
    ) -> ObservedLoop:
        """Begin to see its steps, one of so many ``ranks``; ``data_parallel`` take samples of their own."""
        loop = ObservedLoop(
            self.model,
            self.optimizer,
            emit,
            samples_per_step=self.samples_per_step and self.samples_per_step * data_parallel,
            begins=begins,
            failed=failed,
            lanes=self.lanes,
            inputs=None if self.lanes is None else ModelInputs(self.model, data_parallel),
        )
        return _with_others(loop, self.others, ranks)

    @property
    def amp_precision(self) -> str:
        """What AMP would be here."""
        scales = self.scaler is not None and self.scaler.is_enabled()
        on_cuda = any(parameter.is_cuda for parameter in self.model.parameters())
        return "fp16" if scales or on_cuda else "bf16"

    def refuses(self) -> Mapping[str, str]:
        """The requests that its run never takes, each with the reason."""
        return dict.fromkeys(REQUEST_KINDS - {"stop"}, self.reason)

    def unsupported(self, precision: str) -> Mapping[str, str]:
        """The precisions that cannot be switched to from ``precision``."""
        return {each: self.reason for each in PRECISIONS if each != precision}


@dataclass(frozen=True, slots=True, eq=False)
class Watched:
    """A loop whose precision amptui switches; ``save`` writes its state."""

    own: OwnLoop
    amp: SwitchedAmp
    samples_per_step: int | None
    save: Callable[[], object] | None
    others: tuple[NamedOptimizer, ...] = ()
    lanes: OptimizerLanes | None = None
    """What has seen the first step so far, if the run begins with it."""
    data_parallel: int | None = None
    """How many ranks take samples of their own; None: as the model says."""

    @property
    def name(self) -> str:
        """What a screen calls the optimizer; empty without others."""
        return self.own.trained.name

    @property
    def model(self) -> nn.Module:
        """The one that is trained."""
        return self.own.model

    @property
    def optimizer(self) -> Optimizer:
        """Its optimizer."""
        return self.own.optimizer

    @property
    def scaler(self) -> GradScaler:
        """The one that follows the precision."""
        return self.amp.scaler

    def open_loop(
        self,
        emit: Emit,
        *,
        begins: Callable[[str], object],
        failed: Callable[[Exception], object],
        ranks: int = 1,
        data_parallel: int = 1,
        control: Control | None = None,
    ) -> ObservedLoop:
        """Begin to see its steps, as :class:`Observed` does, and to handle requests after them."""
        loop = WatchedLoop(
            self.own,
            self.amp,
            emit,
            samples_per_step=self.samples_per_step and self.samples_per_step * data_parallel,
            save=self.save,
            control=control,
            begins=begins,
            failed=failed,
            lanes=self.lanes,
        )
        loop.keeper = self.own.trained
        return _with_others(loop, self.others, ranks)

    @property
    def amp_precision(self) -> str:
        """What AMP means in it."""
        return self.own.amp_precision

    def refuses(self) -> Mapping[str, str]:
        """The requests that its run never takes, each with the reason."""
        refused = {} if self.save is not None else {"checkpoint": NO_SAVE}
        if self.own.no_closure != NO_CLOSURE:  # a framework's loop never has functions
            refused["x-ray"] = self.own.no_closure
        return refused

    def unsupported(self, _precision: str) -> Mapping[str, str]:
        """The precisions that the device does not support."""
        return self.own.unsupported


def _with_others(loop: ObservedLoop, others: Iterable[NamedOptimizer], ranks: int) -> ObservedLoop:
    """Watch the script's other optimizers too; of several ranks, only the first one's steps are told."""
    if ranks > 1:
        loop.lanes.open_next = None
        return loop
    for other in others:
        watched = loop.lanes.watch(other.optimizer, other.model, other.name)
        watched.keeper = other if loop.keeper is not None else None
    return loop
