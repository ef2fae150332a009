"""What the tests tried and what it cost, counted, and the tables printed when all tests are done."""

import json
from collections import Counter
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


# The one place where tests of many files meet: pytest prints it once, whatever ran.
_TRIED: Counter[str] = Counter()
_SURVIVED: Counter[str] = Counter()
_COSTS: list[Cost] = []


def survived(family: str, tried: int, survived: int) -> None:
    """Count inputs of a ``family`` ("input bytes", "signals", "journals"); calls of one family add up."""
    assert 0 <= survived <= tried, f"{family}: {survived} of {tried}"
    _TRIED[family] += tried
    _SURVIVED[family] += survived


def cost(fault: str, times: int, steps_lost: int, records_lost: int, remark: str = "") -> None:
    """Add a row to the table of what faults cost."""
    _COSTS.append(Cost(fault, times, steps_lost, records_lost, remark))


def counted() -> str:
    """All that was counted in this process, as text for another."""
    return json.dumps([_TRIED, _SURVIVED, _COSTS])


NOTHING = json.dumps([{}, {}, []])


def take_in(text: str) -> None:
    """Add what another process counted."""
    tried, lived, costs = json.loads(text)
    _TRIED.update(tried)
    _SURVIVED.update(lived)
    _COSTS.extend(Cost(*each) for each in costs)


def tables() -> dict[str, list[str]]:
    """Each table's lines by its title; none where nothing was counted."""
    return {title: lines for title, lines in _all_tables().items() if len(lines) > 1}


def _all_tables() -> dict[str, list[str]]:
    costs = [f"{'fault':<46}{'times':>6}{'steps lost':>12}{'records lost':>14}  remark"]
    costs += [f"{c.fault:<46}{c.times:>6}{c.steps_lost:>12}{c.records_lost:>14}  {c.remark}" for c in _COSTS]
    families = [f"{'family':<46}{'tried':>8}{'survived':>10}"]
    families += [f"{name:<46}{tried:>8,}{_SURVIVED[name]:>10,}" for name, tried in sorted(_TRIED.items())]
    return {"what faults cost": costs, "hostile inputs": families}
