"""How the processes of a run find out that all of them are there, and where each runs."""

import time
from collections.abc import Sequence
from dataclasses import asdict

from amptui.ranks.agreement.board import Board
from amptui.ranks.store.place import Place
from amptui.ranks.world import World
from amptui.records.ranks import RanksStarted

_MEMBERS = "members"


class SignIn:
    """One rank's part: it tells ``place``, and which function it ``calls``; all hear the same verdict."""

    def __init__(self, board: Board, world: World, place: Place, calls: str = "") -> None:
        self._board = board
        self._world = world
        board.post(f"place/{world.rank}", [calls, asdict(place)])
        board.count("signed", 1)

    def verdict(self) -> Sequence[Place] | str | None:
        """Where all ranks run, or why they do not train together; None while some may come."""
        board, size = self._board, self._world.size
        if self._world.leads and board.count("signed") >= size:
            posts = board.read([f"place/{rank}" for rank in range(size)])
            unlike = [rank for rank, (calls, _) in enumerate(posts) if calls != posts[0][0]]
            why = f"rank {unlike[0]} calls another function of amptui's than rank 0" if unlike else ""
            board.decide(_MEMBERS, why or [place for _, place in posts])
        members = board.look(_MEMBERS)
        return [Place(**place) for place in members] if isinstance(members, list) else members

    def give_up(self, why: str = "") -> None:
        """Nobody waits any more for ranks that have not come."""
        absent = [rank for rank in range(self._world.size) if self._board.look(f"place/{rank}") is None]
        who = f"rank {absent[0]}" if absent else "a rank"
        self._board.decide(_MEMBERS, why or f"{who} has not called amptui")


def ranks_started(world: World, places: Sequence[Place]) -> RanksStarted:
    """The record of ranks that have met."""
    ranks = tuple([place.of_rank(rank) for rank, place in enumerate(places)])
    restarts = {"restarts": world.restart, "max_restarts": world.max_restarts}
    return RanksStarted(time=time.time(), ranks=ranks, **restarts)
