"""One line of the report, and how bad what it says is."""

from dataclasses import dataclass
from functools import partial
from typing import Literal

Kind = Literal["good", "info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report."""

    severity: Kind
    """``good``: as it should be. ``info``: a fact, neither good nor bad. ``warning``: a problem, in spite of
    which training works. ``error``: training with default options fails."""
    name: str
    """What was checked; the same on every machine and whatever the result: ``cuda``."""
    text: str
    hint: str = ""
    """What to do about it; every warning and error has one."""


fine, fact = partial(Check, "good"), partial(Check, "info")
poor, broken = partial(Check, "warning"), partial(Check, "error")


def one_line(text: object) -> str:
    """The first line of ``text`` that is not blank: libraries usually say what matters first."""
    return next((line.strip() for line in str(text).splitlines() if line.strip()), "")
