"""What faults cost, counted, and the table of it."""

from collections.abc import Iterable
from typing import NamedTuple


class Cost(NamedTuple):
    """What one kind of fault cost in all of its repetitions."""

    fault: str
    times: int
    steps_lost: int
    """Steps that the journal lacks, or has otherwise than an undisturbed run would."""
    records_lost: int
    """Steps that a process computed and that no journal ever held."""
    remark: str = ""


def lines(costs: Iterable[Cost]) -> list[str]:
    """The table's."""
    rows = [f"{'fault':<46}{'times':>6}{'steps lost':>12}{'records lost':>14}  remark"]
    rows += [f"{c.fault:<46}{c.times:>6}{c.steps_lost:>12}{c.records_lost:>14}  {c.remark}" for c in costs]
    return rows
