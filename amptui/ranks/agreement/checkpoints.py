"""Checkpoints of a run of several ranks: all take part after the same step, and rank 0 writes one file.

Each other rank copies its random states at that step and hands them in through the launcher's store, in a
thread of its own. Rank 0's writing thread collects them: no step waits for it.
"""

import io
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from amptui.base.errors import RunFolderError
from amptui.base.runfiles import open_file
from amptui.engine.checkpoint.file import Checkpoint, Place
from amptui.engine.checkpoint.shards import Part
from amptui.engine.checkpoint.writer import CheckpointWriter, Reason, Requests
from amptui.ranks.agreement.control import RankControl
from amptui.ranks.group import RankGroup
from amptui.ranks.world import World

_LAST = "last"
"""The name of the states that each rank hands in before it leaves: rank 0 may write one more file."""


_PATIENCE_SECONDS = 5.0
"""A file of another machine may take a moment to be seen: NFS keeps what a folder held for seconds."""

_LOOK_SECONDS = 0.25

_SIGN = "folder"


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
        group: RankGroup,
        keeps: bool,
        gpu: int,
        **options: Any,
    ) -> None:
        super().__init__(folder if world.leads else None, control=control, **options)
        self.follows = not world.leads
        self._ranks = control
        self._group = group
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
        self._requests = ()
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
        with suppress(RuntimeError):  # the store is gone with rank 0: so is the run
            self._group.hand_in(self._name, _encoded({**states, "gpu": self._gpu}))

    def _complete(self, checkpoint: Checkpoint) -> Checkpoint:
        return replace(checkpoint, ranks=self._collect())

    def _collect(self, patience_seconds: float | None = None) -> list[dict[str, Any]]:
        """What the other ranks have handed in, from rank 1 on."""
        values = self._group.collect(self._name, self._given_up.is_set, patience_seconds)
        return [_decoded(value) for value in values]

    def _report(self, error: Exception, reason: Reason, requests: Requests) -> None:
        if not self._given_up.is_set():
            super()._report(error, reason, requests)
            return
        for request in requests:  # the run's last word tells why
            self._control.answer(request, str(error))

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


def check_folder(group: RankGroup, run_dir: Path, *, all_write: bool, warn: Callable[[str], object]) -> None:
    """Let rank 0 put a file into ``run_dir`` and the others look for it.

    If one does not see it, ``warn``; raises RunFolderError where ``all_write`` there.
    """
    sign = _put_sign(run_dir) if group.world.leads else None
    if group.world.leads:
        group.tell(_SIGN, "" if sign is None else sign.name)
    blind = [rank for rank, sees in enumerate(group.gather(_sees(run_dir, group.hear(_SIGN)))) if not sees]
    if sign is not None:
        sign.unlink(missing_ok=True)
    if not blind:
        return
    who = f"rank {blind[0]}" + (f" and {len(blind) - 1:,} more ranks" if len(blind) > 1 else "")
    what = f"{who}, on {group.places[blind[0]].host}, {'do' if len(blind) > 1 else 'does'} not see {run_dir}"
    hint = "use a folder that all machines share (--run-dir)"
    if all_write:
        raise RunFolderError(f"{what}: with --fsdp each writes its part of a checkpoint there", hint=hint)
    warn(f"{what}: only a run whose ranks all see it can be resumed or started again; {hint}")


def _put_sign(run_dir: Path) -> Path | None:
    """A file that no other machine has; None where it cannot be written, which is told elsewhere."""
    sign = run_dir / f".ranks-{os.urandom(8).hex()}"
    with suppress(OSError):
        os.close(open_file(sign, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        return sign
    return None


def _sees(run_dir: Path, name: str) -> bool:
    limit = time.monotonic() + _PATIENCE_SECONDS
    while name and not (run_dir / name).exists():
        if time.monotonic() > limit:
            return False
        time.sleep(_LOOK_SECONDS)
    return True
