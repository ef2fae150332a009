"""Checkpoints of a run of several ranks: all take part after the same step, and rank 0 writes one file.

Each other rank copies its random states at that step and hands them in through the launcher's store, in a
thread of its own. Rank 0's writing thread collects them: no step waits for it. Of a sharded model each rank
writes its own parts first, and rank 0's file makes them count: nothing is gathered, and no collective waits.
"""

import io
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from amptui.checkpoint.file import Checkpoint, Place, Shards, shards_name, write_part
from amptui.checkpoint.states import Part
from amptui.checkpoint.writer import CheckpointWriter, Reason, Requests, explained, refuse_lost
from amptui.ranks.agreement.control import RankControl
from amptui.ranks.failure import PeerEndedError
from amptui.ranks.group import RankGroup
from amptui.ranks.progress import BUSY_SECONDS
from amptui.ranks.world import World

_POLL_SECONDS = 0.05

_FILE, _TROUBLE = "file", "trouble"
"""What a rank tells of its parts of a sharded model besides its random states."""


class RankCheckpoints(CheckpointWriter):
    """The checkpoints as one rank sees them; all ranks take part in each.

    All decide alike when one is due: at a multiple of ``every``, or when they have agreed on rank 0's wish,
    and not before all know that the last one is done with. ``shared`` is the folder of all ranks, None if the
    run keeps no checkpoints.

    Of a sharded model, ``start`` is equal on all ranks, and no earlier start of the run had it. A rank whose
    parts cannot be written, or contain NaN, tells rank 0, which then writes no checkpoint. One whose disk is
    slow makes the next checkpoint wait, not a step.
    """

    def __init__(
        self,
        folder: Path | None,
        *,
        world: World,
        control: RankControl,
        group: RankGroup,
        shared: Path | None,
        start: str = "",
        **options: Any,
    ) -> None:
        super().__init__(folder if world.leads else None, control=control, **options)
        self.follows = not world.leads
        self._ranks = control
        self._group = group
        self._rank = world.rank
        self._shared, self._start = shared, start
        self._due_step = self._number = 0
        self._parts: Sequence[Part] = ()
        """Kept until the next: after the device has failed, pinned memory must not be freed."""
        self._given_up = threading.Event()

    @property
    def keeps(self) -> bool:
        """Whether the run has any."""
        return self._shared is not None

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
        if self._taken is None:
            self._start_thread(self._discard)

    def send_states(self, states: dict[str, Any], take: Callable[[], list[Part]]) -> None:
        """The part of the other ranks."""
        self._begin()
        with self._lock:
            self._wanted = None
        self._requests = ()
        self.wait()
        self._parts, trouble = (), ""  # there is memory for one copy of them
        try:
            self._parts = take()
        except Exception as error:  # noqa: BLE001 - a tensor subclass may raise anything; the run must go on
            trouble = explained(error)

        def hand_in() -> None:
            written = {_TROUBLE: trouble} if trouble else self._written(self._parts, {})
            file = io.BytesIO()
            torch.save({**states, **written}, file)
            with suppress(RuntimeError):  # the store is gone with rank 0: so is the run
                self._group.board.hand_in(f"states/{self._number}/{self._rank}", file.getvalue())

        self._start_thread(hand_in)

    def last_due(self, place: Place) -> Reason | None:
        """See :class:`CheckpointWriter`; rank 0 decides for all."""
        self._due_step = place[0]
        self.wait()
        if not self.keeps:
            return None
        is_due = self._group.gather(self.lacks(place))[0]
        return self._last_reason() if is_due else None

    def give_up(self) -> None:
        self._given_up.set()

    def _begin(self) -> None:
        """Count a checkpoint; its number is equal on all ranks."""
        self._number = self._ranks.count_checkpoint()
        self._taken_step = self._due_step

    @property
    def _busy(self) -> bool:
        return not self._ranks.may_take_checkpoint

    def _want_epoch(self) -> None:
        if not self.follows:
            self._ranks.want(checkpoint=True)

    def _discard(self) -> None:
        """Rank 0 failed to take its part: remove the others', and let the next checkpoint come after that."""
        with suppress(Exception):  # a rank has ended
            self._collect()
        shutil.rmtree(self._shards_folder, ignore_errors=True)
        self._ranks.checkpoints_done = self._number

    def _collect(self) -> list[dict[str, Any]]:
        """What the other ranks have handed in, from rank 1 on; waits for it.

        Raises :class:`PeerEndedError` for a rank that has ended, or if the wait is given up or too long.
        """
        limit, values = time.monotonic() + BUSY_SECONDS, list[dict[str, Any]]()
        while (rank := len(values) + 1) < self._group.world.size:
            ended = self._group.ends.first()
            is_over = self._given_up.is_set() or time.monotonic() > limit
            # Last: a rank may hand it in and end.
            value = self._group.board.take(f"states/{self._number}/{rank}")
            if value is not None:
                values.append(torch.load(io.BytesIO(value), map_location="cpu", weights_only=True))
            elif ended is not None:
                raise ended
            elif is_over:
                text = f"rank {rank} has not sent its part of the checkpoint"
                raise PeerEndedError(rank, "waited", "", text)
            else:
                time.sleep(_POLL_SECONDS)
        return values

    def _complete(self, checkpoint: Checkpoint) -> Checkpoint:
        try:
            own = self._written(checkpoint.parts, checkpoint.model)
            ranks = self._collect()
            for rank, answer in enumerate([own, *ranks]):
                if _TROUBLE in answer:
                    raise RuntimeError(f"rank {rank}: {answer[_TROUBLE]}")
            if not self._start:
                return replace(checkpoint, ranks=ranks)
            shards = Shards(self._shards_folder, [own[_FILE], *(states.pop(_FILE) for states in ranks)])
            try:
                shards.check(checksums=False)
            except FileNotFoundError as error:
                what = f"{self._shared} lacks what another rank wrote (use a folder that all machines share)"
                raise RuntimeError(what) from error
            shards.write_metadata()
        except BaseException:
            shutil.rmtree(self._shards_folder, ignore_errors=True)
            raise
        return replace(checkpoint, ranks=ranks, shards=shards)

    @property
    def _shards_folder(self) -> Path:
        assert self._shared is not None, "nothing is taken without a folder"
        return self._shared / shards_name(self._taken_step, self._start, self._number)

    def _written(self, parts: Sequence[Part], model: Mapping[str, Any]) -> dict[str, Any]:
        """What this rank wrote, or why it did not, for rank 0; ``model`` is what is not sharded of it."""
        if not self._start:
            return {}
        weights = {str(part.keys[1]): part.tensor for part in parts if part.keys[0] == "model"}
        try:
            refuse_lost({**model, **weights}, self.finite_names)
            return {_FILE: write_part(self._shards_folder, self._rank, parts)}
        except Exception as error:  # noqa: BLE001 - the run must go on, whatever the disk does
            return {_TROUBLE: explained(error)}

    def _report(self, error: Exception, reason: Reason, requests: Requests) -> None:
        if not self._given_up.is_set():
            super()._report(error, reason, requests)
            return
        for request in requests:  # the run's last word tells why
            self._control.answer(request, str(error))

    def _write(self, checkpoint: Checkpoint, reason: Reason, requests: Requests, **timing: float) -> None:
        super()._write(checkpoint, reason, requests, **timing)
        self._ranks.checkpoints_done = self._number
