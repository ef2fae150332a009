"""What ranks post for each other to read, in a store that they share.

Short texts under names; no collective, so that nobody waits for a rank that does not come.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

_STORE_SECONDS = 5.0
"""A store that takes so long to answer is lost to a script; one over a network takes 0.1 ms."""


class Board:
    """One run's part of ``store``; may be used by several threads.

    Raises RuntimeError, as the store does, once that cannot be reached: it may live in rank 0's process.
    """

    def __init__(self, store: Store, name: str, *, timeout_seconds: float = _STORE_SECONDS) -> None:
        own = store.clone()  # a connection of its own: the training may wait on the other for minutes
        own.set_timeout(timedelta(seconds=timeout_seconds))
        self._store = PrefixStore(f"amptui/{name}", own)

    def post(self, name: str, value: Any) -> None:
        """Put ``value``, which JSON can hold, in the place of the last one."""
        self._store.set(name, json.dumps(value))

    def read(self, names: Sequence[str]) -> list[Any]:
        """What was posted under ``names``, all of which must have been."""
        return [json.loads(text) for text in self._store.multi_get(list(names))]

    def look(self, name: str) -> Any:
        """What was posted under ``name``; None if nothing was."""
        return json.loads(self._store.get(name)) if self._store.check([name]) else None

    def decide(self, name: str, value: Any) -> Any:
        """Post ``value`` unless something was; return what stands there, on all ranks the same."""
        return json.loads(self._store.compare_set(name, "", json.dumps(value)))

    def count(self, name: str, more: int = 0) -> int:
        """Add ``more`` to a number that all ranks share; return it."""
        return int(self._store.add(name, more))

    def remove(self, name: str) -> None:
        """Take away what was posted, if anything."""
        self._store.delete_key(name)

    def hand_in(self, name: str, value: bytes) -> None:
        """Put bytes there, for :meth:`take`."""
        self._store.set(name, value)  # type: ignore[arg-type]  # it takes bytes too

    def take(self, name: str) -> bytes | None:
        """Take away the bytes that were put there, if any."""
        if not self._store.check([name]):
            return None
        value = self._store.get(name)
        self._store.delete_key(name)
        return value


def open_board(name: str) -> Board | None:
    """The board of the script's process group; None while there is no group.

    Raises RuntimeError if its store cannot be reached.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return None
    return Board(dist.distributed_c10d._get_default_store(), name)


def collectives_made() -> int:
    """How many collectives this rank has begun on the default process group; 0 where nobody counts them.

    Equal on all ranks that are at the same place of the training, however many steps each has counted.
    """
    try:
        group: Any = dist.distributed_c10d._get_default_group()
        return int(group._get_sequence_number_for_group())
    except (RuntimeError, ValueError):
        return 0


def collectives_by_group() -> dict[str, int]:
    """How many collectives this rank has begun on each process group that it is in; see above."""
    counts: dict[str, int] = {}
    groups: Mapping[Any, str] = dist.distributed_c10d._world.pg_names
    for group, name in list(groups.items()):
        with suppress(RuntimeError, ValueError):  # not every backend counts
            counts[name] = int(group._get_sequence_number_for_group())
    return counts


def is_same_place(places: Sequence[tuple[int, Mapping[str, int]]]) -> bool:
    """Whether ranks are at the same place of the training: each with its steps and its collectives."""
    counts: dict[str, set[int]] = {}
    for _, collectives in places:
        for group, count in collectives.items():
            counts.setdefault(group, set()).add(count)
    return len({step for step, _ in places}) == 1 and all(len(values) == 1 for values in counts.values())


def is_ahead(other: Mapping[str, int], this: Mapping[str, int]) -> bool:
    """Whether the other rank has begun a collective that this one has not come to."""
    return any(other.get(group, 0) > count for group, count in this.items())
