"""One line of the report, and how bad what it says is."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["good", "info", "warning", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line of the report.

    ``good``: as it should be. ``info``: a fact, neither good nor bad. ``warning``: a problem, in spite of
    which training works. ``error``: training with default options fails.
    """

    name: str
    """What was checked; the same on every machine and whatever the result: ``cuda``."""
    severity: Kind
    text: str
    hint: str = ""
    """A hint what to do about it; every warning and error has one."""


def fine(name: str, text: str) -> Check:
    """A check that found what training needs."""
    return Check(name=name, severity="good", text=text)


def fact(name: str, text: str, hint: str = "") -> Check:
    """What a user may want to know of this machine, and could change."""
    return Check(name=name, severity="info", text=text, hint=hint)


def poor(name: str, text: str, hint: str) -> Check:
    """A check that found a problem; training works in spite of it."""
    return Check(name=name, severity="warning", text=text, hint=hint)


def broken(name: str, text: str, hint: str) -> Check:
    """A check that found why training cannot run."""
    return Check(name=name, severity="error", text=text, hint=hint)


def one_line(text: object) -> str:
    """The first line of ``text`` that is not blank: libraries usually say what matters first."""
    return next((line.strip() for line in str(text).splitlines() if line.strip()), "")
