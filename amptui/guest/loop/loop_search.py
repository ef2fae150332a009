"""Waits for the first step of any optimizer in this process, to learn which loop there is to observe."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from amptui.base.fork import in_forks
from amptui.guest.loop.optimizer_lanes import OptimizerLanes
from amptui.guest.loop.parameter_owner import owner_of

if TYPE_CHECKING:
    from amptui.guest.loop.observed_loop import ObservedLoop


@dataclass(frozen=True, slots=True)
class FoundLoop:
    """An optimizer that is about to make its first step, and what belongs to it."""

    model: nn.Module
    optimizer: Optimizer
    scaler: GradScaler | None
    lanes: OptimizerLanes
    """What has seen the step so far."""


def search_loop(
    *, open_loop: "Callable[[FoundLoop], ObservedLoop | None]", failed: Callable[[Exception], object]
) -> OptimizerLanes:
    """Call ``open_loop`` with the loop of the first optimizer step; it returns who observes it, if anybody.

    ``failed`` gets the one error after which nothing is searched. Until the first step,
    :meth:`OptimizerLanes.leave` ends the search.
    """

    def open_first(optimizer: Optimizer, lanes: OptimizerLanes) -> "ObservedLoop | None":
        return open_loop(FoundLoop(owner_of(optimizer), optimizer, lanes.scaler, lanes))

    lanes = OptimizerLanes(open_first)
    lanes.failed = failed
    in_forks(lanes.leave)
    lanes.listen()
    return lanes
