"""How other ranks have ended, as this one can know: by what they told, or because their process is gone."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Literal

from torch.distributed.distributed_c10d import Store

from amptui.engine.distributed.launcher_store import ENDED
from amptui.engine.distributed.place import Place, here
from amptui.engine.distributed.world import World
from amptui.errors import DeviceError

End = Literal["stopped", "failed", "out of memory", "waited"]
"""How a rank ended early: asked to before the first step, by an error of its own, or because others did."""

_GONE = "gone"
"""Below it: which ranks' processes a rank of the same machine has found to be gone."""


class PeerEndedError(DeviceError):
    """Another rank ended, so that this one cannot go on either."""

    def __init__(
        self, rank: int, how: End | Literal["killed", "hung"], detail: str, text: str, hint: str = ""
    ) -> None:
        super().__init__(text, hint=hint)
        self.rank = rank
        self.how = how
        """``waited`` where no rank is known to have ended first; ``rank`` is -1."""
        self.detail = detail


class PeerEnds:
    """What is known of the ends of the other ranks, over one connection to the ``store``."""

    def __init__(self, store: Store, world: World) -> None:
        self._store = store
        self._world = world
        self.places: Sequence[Place] = ()
        """Where each rank runs, once they have met."""
        self._posted: set[int] = set()

    def first(self) -> PeerEndedError | None:
        """The rank that told of an error, or whose process is gone without a word; None if none has."""
        ends = self.told()
        for rank, (how, text) in sorted(ends.items()):
            if how != "waited":
                return PeerEndedError(rank, how, text, f"rank {rank}: {text}")
        for rank, place in enumerate(self.places):
            if rank not in ends and place.is_gone(here()):
                self._post(rank)
                return _killed(rank, f"pid {place.pid} is gone")
        return self._seen_by_another(ends)

    def told(self) -> dict[int, tuple[End, str]]:
        """How each rank ended that has told so."""
        ends: dict[int, tuple[End, str]] = {}
        with suppress(RuntimeError):
            if not self._store.add(ENDED, 0):
                return ends
            for rank in range(self._world.size):
                if rank != self._world.rank and self._store.check([f"{ENDED}/{rank}"]):
                    how, text = json.loads(self._store.get(f"{ENDED}/{rank}"))
                    ends[rank] = (how, text)
        return ends

    def _post(self, rank: int) -> None:
        """Ranks on other machines cannot see it."""
        if rank not in self._posted:
            self._posted.add(rank)
            with suppress(RuntimeError):
                self._store.compare_set(_GONE, "", json.dumps([rank, f"pid {self.places[rank].pid} is gone"]))

    def _seen_by_another(self, ends: Mapping[int, object]) -> PeerEndedError | None:
        with suppress(RuntimeError):
            if self._store.check([_GONE]):
                rank, detail = json.loads(self._store.get(_GONE))
                return _killed(rank, detail) if rank != self._world.rank and rank not in ends else None
        return None


def _killed(rank: int, detail: str) -> PeerEndedError:
    return PeerEndedError(rank, "killed", detail, f"rank {rank} was killed: {detail}")
