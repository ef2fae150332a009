"""How ranks end early, as they tell each other."""

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from amptui.ranks.agreement.board import Board
from amptui.ranks.failure import End, PeerEndedError
from amptui.ranks.world import World

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amptui.ranks.store.place import Place

_ENDED = "ended"
"""Below it each rank that ends early says how."""

_FIRST_END = "first end"
"""The first rank that did not only wait for others: its number, how it ended, and what it said.

Of one that was killed another rank of its machine says so."""


class RankEnds:
    """What is known of the ends of ranks, on a ``board`` that should outlive them."""

    def __init__(self, board: Board, world: World) -> None:
        self._board = board
        self._world = world
        self.places: Sequence[Place] = ()
        """Where each rank runs, once they have met."""

    def tell(self, how: End, text: str) -> None:
        """Tell the others that this rank ends early and why; without the store nobody is left to tell."""
        with suppress(RuntimeError):
            self._board.post(f"{_ENDED}/{self._world.rank}", how)
            if how != "waited":
                self._board.decide(_FIRST_END, [self._world.rank, how, text])

    def first(self) -> PeerEndedError | None:
        """The other rank that told of its end first, or whose process is gone without a word."""
        first: Any = None
        for rank, place in enumerate(self.places):
            if place.is_gone and not self._has_told(rank):
                first = rank, "killed", f"pid {place.pid} is gone"
                break
        with suppress(RuntimeError):
            # Ranks on other machines cannot see it.
            first = self._board.look(_FIRST_END) if first is None else self._board.decide(_FIRST_END, first)
        if first is None or first[0] == self._world.rank:
            return None
        rank, how, text = first
        if how == "cut off":  # it is not to blame, and nobody knows who is
            return PeerEndedError(-1, "waited", "", f"rank {rank} lost the others: {text}")
        if how == "left":
            return PeerEndedError(rank, "waited", "", f"rank {rank} {text}")
        who = f"rank {rank} was killed" if how == "killed" else f"rank {rank}"
        return PeerEndedError(rank, how, text, f"{who}: {text}")

    def _has_told(self, rank: int) -> bool:
        """Whether that rank has told of its end."""
        with suppress(RuntimeError):
            return self._board.look(f"{_ENDED}/{rank}") is not None
        return False
