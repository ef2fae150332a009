"""What the hooks of somebody else's loop tell, and what the watchers of its optimizers share."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from amptui.loops.script.pass_account import PassAccount

if TYPE_CHECKING:
    from amptui.records.run import Record


class Listener:
    """One run's loop. Whoever finds out which optimizers are to be watched completes it."""

    by_id: Mapping[int, PassAccount]
    """Who watches an optimizer, by its id while it exists."""

    def __init__(self) -> None:
        self.accounts: tuple[PassAccount, ...] = ()
        """Those of all optimizers."""
        self.idle = dict[int, PassAccount]()
        """The backward passes of optimizers that have made no step yet, by their ids."""
        self.emit: Callable[[Record], object] = lambda _record: None
        self.leads = True
        """Whether this process records the run: of several ranks, the first one does."""
        self.has_begun = False
        """Whether a first step has been made."""
        self.is_listening = False
        """Whether hooks are in place: an optimizer that comes now may be in the middle of its first step."""
        self.is_alone = True
        """Whether the loop has one optimizer."""
        self.float8_precision = ""
        """The name of FP8 while layers of the script multiply in float8 for amptui; else empty."""
        self.layer_changes = 0
        """How often layers of any model may have changed what they multiply in."""
        self.may_capture = False
        """Whether the first model is on a GPU."""
        self.is_capturing: Callable[[], bool] = bool
        """Whether the stream is being recorded as a graph."""
        self.active = True

    def layers_changed(self) -> None:
        """Layers of any model may multiply in another precision now."""
        self.layer_changes += 1
        for account in self.accounts:
            account._usual_precision = ""

    @property
    def must_not_look(self) -> bool:
        """Whether anything done now would become a part of a CUDA graph."""
        return self.may_capture and self.is_capturing()

    def give_up(self, error: Exception) -> None:
        """Observe nothing more."""
        raise NotImplementedError

    def begin_run(self, precision: str) -> None:
        """The first step of any of them ends, in ``precision``; nothing is emitted before."""
        raise NotImplementedError

    def watcher_of(self, optimizer: Optimizer, scaler: GradScaler | None = None) -> PassAccount | None:
        """Who watches ``optimizer``, which ``scaler`` is called with, if anybody is to."""
        raise NotImplementedError

    def after_step_of(self, watcher: PassAccount) -> None:
        """It has made a step."""
        raise NotImplementedError
