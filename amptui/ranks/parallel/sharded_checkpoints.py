"""Checkpoints of a sharded model: each rank writes its own parts, and rank 0 a file that makes them count.

Nothing is gathered, and no collective waits: what a rank wrote is told through the launcher's store.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from amptui.base.runfiles import opened_folder
from amptui.engine.checkpoint.file import Checkpoint, Place
from amptui.engine.checkpoint.shards import Part, ShardFile, Shards, remove_shards, shards_name, write_part
from amptui.engine.checkpoint.writer import PartError, explained, refuse_lost
from amptui.ranks.agreement.checkpoints import RankCheckpoints
from amptui.ranks.ends.progress import BUSY_SECONDS
from amptui.ranks.world import World

_LAST = "last checkpoint"

_FILE, _TROUBLE = "file", "trouble"
"""What a rank tells of its parts besides its random states."""


class ShardedCheckpoints(RankCheckpoints):
    """The checkpoints of a sharded model as one rank sees them.

    ``shared`` is the folder of all ranks; ``start`` is equal on all, and no earlier start of the run had it.
    A rank whose parts cannot be written, or contain NaN, tells rank 0, which then writes no checkpoint. One
    whose disk is slow makes the next checkpoint wait, not a step. All ranks take part in the last one.
    """

    def __init__(
        self,
        folder: Path | None,
        *,
        world: World,
        shared: Path | None,
        start: str,
        **options: Any,
    ) -> None:
        super().__init__(folder, world=world, **options)
        self._rank = world.rank
        self._shared = shared
        self._start = start
        self._write_own: Callable[[], dict[str, Any]] = dict
        """Keeps the parts until the next: after the device has failed, pinned memory must not be freed."""

    def send_states(self, states: dict[str, Any], take: Callable[[], list[Part]]) -> None:
        self._write_own = dict  # there is memory for one copy of the parts
        try:
            self._write_own = partial(self._written, take(), {})
        except Exception as error:  # noqa: BLE001 - a tensor subclass may raise anything; the run must go on
            self._write_own = partial(_trouble, error)
        self._send(states)

    def last_is_due(self, place: Place) -> bool:
        """See :class:`CheckpointWriter`; rank 0 decides for all."""
        self._due_step = place[0]
        self.wait()
        if not self.keeps:
            return False
        self._group.on_rank_0(_LAST, partial(self._tell_last, place))
        return bool(self._group.hear(_LAST))

    def part(self, states: dict[str, Any]) -> None:  # noqa: ARG002 - the last checkpoint has them
        """Wait until all ranks are done with the last checkpoint."""
        if self.keeps:
            self._group.meet(f"{_LAST} written", stoppable=False)

    def _tell_last(self, place: Place) -> None:
        self._group.tell(_LAST, "due" if self.lacks(place) else "")

    def _hand_in(self, states: dict[str, Any]) -> None:
        super()._hand_in({**states, **self._write_own()})

    def _not_taken(self) -> None:
        """Remove what the others write, in a thread; the next checkpoint comes after that."""
        self._thread = threading.Thread(target=self._discard, name="amptui-checkpoint", daemon=True)
        self._thread.start()

    def _discard(self) -> None:
        with suppress(Exception):  # a rank has ended
            self._collect(BUSY_SECONDS)
        self._remove()
        super()._not_taken()

    def _complete(self, checkpoint: Checkpoint) -> Checkpoint:
        try:
            own = self._written(checkpoint.parts, checkpoint.model)
            others = self._collect(BUSY_SECONDS)
            shards = Shards(self._folder_of_shards, list(_files([own, *others])))
            try:
                shards.check(checksums=False)
            except FileNotFoundError as error:
                what = f"{shards.folder} lacks what another rank wrote (use a folder that all machines share)"
                raise PartError("shared", what) from error
            shards.write_metadata()
        except BaseException:
            self._remove()
            raise
        ranks = [{name: value for name, value in states.items() if name != _FILE} for states in others]
        return replace(checkpoint, ranks=ranks, shards=shards)

    @property
    def _folder_of_shards(self) -> Path:
        assert self._shared is not None, "nothing is taken without a folder"
        return self._shared / shards_name(self._taken_step, self._start, self._number)

    def _written(self, parts: Sequence[Part], model: Mapping[str, Any]) -> dict[str, Any]:
        """What this rank wrote, or why it did not, for rank 0; ``model`` is what is not sharded of it."""
        weights = {str(part.keys[1]): part.tensor for part in parts if part.keys[0] == "model"}
        try:
            refuse_lost({**model, **weights}, self.finite_names)
            return {_FILE: write_part(self._folder_of_shards, self._rank, parts).plain()}
        except Exception as error:  # noqa: BLE001 - the run must go on, whatever the disk does
            return _trouble(error)

    def _remove(self) -> None:
        with suppress(OSError), opened_folder(self._folder_of_shards.parent) as folder:
            remove_shards(self._folder_of_shards.name, folder=folder)


def _trouble(error: Exception) -> dict[str, Any]:
    return {_TROUBLE: explained(error)}


def _files(answers: Sequence[Mapping[str, Any]]) -> Iterator[ShardFile]:
    """The files of all ranks. Raises PartError if one has none."""
    for rank, answer in enumerate(answers):
        if _TROUBLE in answer:
            kind, why = answer[_TROUBLE]
            raise PartError(f"{rank} {kind}", f"rank {rank}: {why}")
        yield ShardFile.from_plain(answer[_FILE])
