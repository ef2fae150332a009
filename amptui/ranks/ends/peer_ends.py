"""How other ranks have ended, as this one can know: by what they told, or because their process is gone."""

import json
from contextlib import suppress
from typing import Any, Literal

from amptui.base.errors import DeviceError
from amptui.ranks.store.launcher_store import ENDED, LauncherStore
from amptui.ranks.store.place import Place, here
from amptui.ranks.world import World

End = Literal["stopped", "failed", "out of memory", "waited", "cut off"]
"""How a rank ended early: asked to before the first step, by an error of its own, or because others did.

``cut off``: a connection to another one ended, and none is known to have ended."""

PeerEnd = Literal["stopped", "failed", "out of memory", "waited", "killed", "hung"]
"""How another rank ended, as this one knows it."""

_GONE = "gone"
"""Below it: which ranks' processes a rank of the same machine has found to be gone."""


class PeerEndedError(DeviceError):
    """Another rank ended, so that this one cannot go on either."""

    def __init__(self, rank: int, how: PeerEnd, detail: str, text: str, hint: str = "") -> None:
        super().__init__(text, hint=hint)
        self.rank = rank
        self.how = how
        """``waited`` where no rank is known to have ended first; ``rank`` is -1."""
        self.detail = detail


class PeerEnds:
    """What is known of the ends of the other ranks, over one connection to the ``launcher``'s store."""

    def __init__(self, launcher: LauncherStore, world: World) -> None:
        self._launcher = launcher
        self._world = world
        self.places: tuple[Place, ...] = ()
        """Where each rank runs, once they have met."""
        self._posted: set[int] = set()

    def first(self) -> PeerEndedError | None:
        """The rank that told of an error, or whose process is gone without a word; None if none has."""
        first: tuple[int, Any, str] | None = None
        with suppress(RuntimeError):
            first = self._launcher.first_end()
        if first is not None and first[0] != self._world.rank:
            rank, how, text = first
            if how == "cut off":  # it is not to blame, and nobody knows who is
                return PeerEndedError(-1, "waited", "", f"rank {rank} lost the others: {text}")
            return PeerEndedError(rank, how, text, f"rank {rank}: {text}")
        for rank, place in enumerate(self.places):
            if place.is_gone(here()) and not self._has_told(rank):
                self._post(rank)
                return _killed(rank, f"pid {place.pid} is gone")
        return self._seen_by_another()

    def _has_told(self, rank: int) -> bool:
        """Whether that rank has told of its end."""
        with suppress(RuntimeError):
            return self._launcher.store.check([f"{ENDED}/{rank}"])
        return False

    def _post(self, rank: int) -> None:
        """Ranks on other machines cannot see it."""
        if rank not in self._posted:
            self._posted.add(rank)
            with suppress(RuntimeError):
                self._launcher.store.compare_set(
                    _GONE, "", json.dumps([rank, f"pid {self.places[rank].pid} is gone"])
                )

    def _seen_by_another(self) -> PeerEndedError | None:
        with suppress(RuntimeError):
            if self._launcher.store.check([_GONE]):
                rank, detail = json.loads(self._launcher.store.get(_GONE))
                return (
                    _killed(rank, detail) if rank != self._world.rank and not self._has_told(rank) else None
                )
        return None


def _killed(rank: int, detail: str) -> PeerEndedError:
    return PeerEndedError(rank, "killed", detail, f"rank {rank} was killed: {detail}")
