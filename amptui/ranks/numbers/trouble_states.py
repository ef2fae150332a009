"""What a rank's row tells of its newest steps with trouble, and whose fault that makes them."""

from collections.abc import Mapping, Sequence

UNKNOWN, FINITE, GRADIENTS, LOSS = range(4)
"""What is known of a rank's own step: nothing, that all was finite, or what was not."""

REPORTED_STEPS = 26
"""A row tells of the newest step with trouble and of those before it: 2 bits each, 52 in all."""


STORM_GAP_STEPS = 100
"""Losses that are not finite belong together as long as one follows within so many steps."""


def packed(newest: int, states: Mapping[int, int]) -> int:
    """``states`` by step, up to the ``newest`` one, as a number that a float64 holds."""
    shifts = ((newest - step, state) for step, state in states.items())
    return sum(state << (2 * shift) for shift, state in shifts if shift < REPORTED_STEPS)


def unpacked(newest: int, number: int) -> dict[int, int]:
    """Inverse of :func:`packed`, without the unknown ones."""
    states = {newest - shift: number >> (2 * shift) & 3 for shift in range(REPORTED_STEPS)}
    return {step: state for step, state in states.items() if state != UNKNOWN}


def ranks_at_fault(states: Sequence[int]) -> list[int]:
    """The ranks whose own step was not finite, by the states of all; none where that says nothing.

    A loss that is not finite speaks for itself. Gradients count only where all ranks were looked at, since
    they often overflow on several at once. What is said of every rank is of no use.
    """
    if UNKNOWN in states:
        states = [state if state == LOSS else FINITE for state in states]
    found = [rank for rank, state in enumerate(states) if state in (GRADIENTS, LOSS)]
    return [] if len(found) == len(states) else found


def blame(bad_since: Mapping[int, int], ranks: int, step: int) -> str:
    """Which ranks were the first whose loss was not finite, shortly before ``step``; "" if none stands out.

    ``bad_since`` has the first such step of each rank that had one.
    """
    first = min(bad_since.values(), default=0)
    worst = [rank for rank, since in bad_since.items() if since == first]
    if not worst or len(worst) == ranks or first <= step - STORM_GAP_STEPS:
        return ""
    who = f"rank {worst[0]}" + (f" and {len(worst) - 1:,} others" if len(worst) > 1 else "")
    return f"{who} had the first loss that was not finite, in step {first:,}"
