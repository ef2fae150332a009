"""How the ranks of a script come together after the step of an order: to obey, or to go on as they were."""

import time
from collections.abc import Callable
from typing import Any

from amptui.ranks.agreement.board import Board, collectives_by_group, is_ahead, is_same_place
from amptui.ranks.agreement.orders import Order
from amptui.ranks.world import World

MEETING_SECONDS = 10.0
"""How long a rank waits after the step of an order. It then goes on, and so do all."""

_SUSPICIOUS_SECONDS = 0.3
"""Ranks that train together mostly come to the same step within that time."""

APART = "the ranks are not at the same step: did one take fewer batches, or call amptui later?"


def meet(board: Board, world: World, order: Order, step: int, over: Callable[[], str]) -> str:
    """Wait for the other ranks after ``step``; return why none obeys the ``order``, or "" if all do.

    ``over`` says why this rank waits no more. Raises RuntimeError, as the board does.
    """
    place, go, began = [step, collectives_by_group()], f"go/{order.number}", time.monotonic()
    board.post(f"at/{world.rank}", [order.number, *place])
    board.count(f"met/{order.number}", 1)
    while True:
        waited = time.monotonic() - began
        verdict = _compare(board, world, order, place, waited) if world.leads else board.look(go)
        if verdict is None and waited > MEETING_SECONDS:
            places = [board.look(f"at/{rank}") for rank in range(world.size)]
            missing = [rank for rank, at in enumerate(places) if not at or at[0] != order.number]
            who = f"rank {missing[0]}" if missing else "a rank"
            verdict = f"{who} did not come to step {order.point:,} within {MEETING_SECONDS:g} s"
        verdict = verdict if verdict is not None else over() or None
        if verdict is not None:
            return str(board.decide(go, verdict))
        time.sleep(min(0.0005 + waited / 20, 0.05))


def _compare(board: Board, world: World, order: Order, place: list[Any], waited: float) -> str | None:
    """Rank 0's: whether all ranks have come to the same place; None while some have not."""
    ranks = range(world.size)
    if board.count(f"met/{order.number}") >= world.size:
        places = [place for _, *place in board.read([f"at/{rank}" for rank in ranks])]
        board.remove(f"met/{order.number - 1}")
        board.remove(f"go/{order.number - 1}")
        return "" if is_same_place(places) else APART
    if waited > _SUSPICIOUS_SECONDS:
        beats = [board.look(f"beat/{rank}") for rank in ranks[1:]]
        if any(beat and is_ahead(beat[1], place[1]) for beat in beats):
            return APART  # it waits for this rank in a collective of the next step
    return None
