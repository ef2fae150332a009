"""Checkpoints of a run of several ranks: all take part after the same step, and rank 0 writes one file.

Each other rank copies its random states at that step and hands them in through the launcher's store, in a
thread of its own. Rank 0's writing thread collects them: no step waits for it.
"""

import io
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch

from amptui.engine.checkpoint.file import Checkpoint, Place
from amptui.engine.checkpoint.shards import Part
from amptui.engine.checkpoint.writer import CheckpointWriter, Reason
from amptui.ranks.agreement.control import RankControl
from amptui.ranks.world import World
from amptui.records.control import Asked, CheckpointRequest

_LAST = "last"
"""The name of the states that each rank hands in before it leaves: rank 0 may write one more file."""


class Mail(Protocol):
    """Brings values of the other ranks to rank 0, for any thread."""

    def hand_in(self, name: str, value: bytes) -> None:
        """Give rank 0 this rank's ``value``."""

    def collect(self, name: str, given_up: Callable[[], bool], patience_seconds: float | None) -> list[bytes]:
        """What the other ranks handed in as ``name``, from rank 1 on; raises if that is ``given_up``."""


class RankCheckpoints(CheckpointWriter):
    """The checkpoints as one rank sees them.

    All ranks decide alike when one is due: at a multiple of ``every``, or when they have agreed on rank 0's
    wish, and not before all know that the last one is done with. ``keeps``: whether rank 0 has a folder;
    ``gpu`` is the number of this rank's.
    """

    def __init__(
        self,
        folder: Path | None,
        *,
        world: World,
        control: RankControl,
        mail: Mail,
        keeps: bool,
        gpu: int,
        **options: Any,
    ) -> None:
        super().__init__(folder if world.leads else None, control=control, **options)
        self.follows = not world.leads
        self._ranks = control
        self._mail = mail
        self._are_kept = keeps
        self._gpu = gpu
        self._due_step = self._number = 0
        self._name = ""
        self._parted = False
        self._given_up = threading.Event()

    @property
    def keeps(self) -> bool:
        """Whether the run has any; a forked copy of this process takes no part."""
        return self._are_kept and not self._control.is_copy

    def due(self, step: int, *, only_asked: bool) -> Reason | None:
        """See :class:`CheckpointWriter`; the same on all ranks."""
        self._due_step = step
        if self._ranks.take_wanted_checkpoint():
            super()._want_epoch()
        return super().due(step, only_asked=only_asked)

    def keep(self, take: Callable[[], Checkpoint], reason: Reason, *, began: float) -> None:
        """See :class:`CheckpointWriter`; rank 0's part."""
        self._begin()
        super().keep(take, reason, began=began)
        if self._job is None:
            self._not_taken()

    def send_states(self, states: dict[str, Any], take: Callable[[], list[Part]]) -> None:  # noqa: ARG002
        """The part of the other ranks."""
        self._send(states)

    def _send(self, states: dict[str, Any]) -> None:
        self._begin()
        with self._lock:
            self._wanted = None
        self._asked = ()
        self.wait()
        self._thread = threading.Thread(
            target=partial(self._hand_in, states), name="amptui-checkpoint", daemon=True
        )
        self._thread.start()

    def part(self, states: dict[str, Any]) -> None:
        """Hand in the states after the last step: returns when rank 0 can have them."""
        self._parted = True
        if self.keeps and self.follows:
            self.wait()
            self._name = _LAST
            self._hand_in(states)

    def last_is_due(self, place: Place) -> bool:
        """See :class:`CheckpointWriter`; rank 0 writes it alone."""
        return not self.follows and super().last_is_due(place)

    def give_up(self) -> None:
        """See :class:`CheckpointWriter`."""
        self._given_up.set()

    def _begin(self) -> None:
        """Count a checkpoint. Its number is equal on all ranks, unless they have parted."""
        self._number = self._ranks.count_checkpoint()
        self._name = _LAST if self._parted else f"states/{self._number}"
        self._taken_step = self._due_step

    @property
    def _busy(self) -> bool:
        return not self._ranks.may_take_checkpoint

    def _want_epoch(self) -> None:
        if not self.follows:
            self._ranks.want_checkpoint()

    def _not_taken(self) -> None:
        """Rank 0 failed to take its part."""
        self._ranks.checkpoints_done = self._number

    def _hand_in(self, states: dict[str, Any]) -> None:
        with suppress(RuntimeError):  # the store is gone with the launcher: so is the run
            self._mail.hand_in(self._name, _encoded({**states, "gpu": self._gpu}))

    def _complete(self, checkpoint: Checkpoint) -> Checkpoint:
        return replace(checkpoint, ranks=self._collect())

    def _collect(self, patience_seconds: float | None = None) -> list[dict[str, Any]]:
        """What the other ranks have handed in, from rank 1 on."""
        told = self._mail.collect(self._name, self._given_up.is_set, patience_seconds)
        return [_decoded(each) for each in told]

    def _report(self, error: Exception, reason: Reason, asked: tuple[Asked[CheckpointRequest], ...]) -> None:
        if not self._given_up.is_set():
            super()._report(error, reason, asked)
            return
        for each in asked:  # the run's last word tells why
            self._control.answer(each, str(error))

    def _write(self, job: Any) -> None:
        super()._write(job)
        self._ranks.checkpoints_done = self._number


def _encoded(states: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    torch.save(states, file)
    return file.getvalue()


def _decoded(value: bytes) -> dict[str, Any]:
    states: dict[str, Any] = torch.load(io.BytesIO(value), map_location="cpu", weights_only=True)
    return states
