"""The result of one check: its severity, what was found, and a hint for every problem."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from amptui.records.run import Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line of the report.

    ``info``: nothing to do. ``warning``: training works, but could be better, or not all of it can be
    measured. ``error``: training with default options fails.
    """

    name: str
    """What was checked; the same on every machine and whatever the result: ``cuda``."""
    severity: Severity
    text: str
    hint: str = ""
    """A hint what to do about it; every warning and error has one."""
    facts: Mapping[str, object] = field(default_factory=dict)
    """The values behind the text, for scripts; None if a value could not be read."""

    def __post_init__(self) -> None:
        assert self.severity == "info" or self.hint, f"{self.name}: a problem without a hint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Checks that belong together, run on demand."""

    title: str
    look: Callable[[], Iterable[Check]]
    needs_torch: bool = False


def fine(name: str, text: str, /, **facts: object) -> Check:
    """A check that found no problem."""
    return Check(name=name, severity="info", text=text, facts=facts)


def poor(name: str, text: str, hint: str, /, **facts: object) -> Check:
    """A check that found a problem; training works in spite of it."""
    return Check(name=name, severity="warning", text=text, hint=hint, facts=facts)


def broken(name: str, text: str, hint: str, /, **facts: object) -> Check:
    """A check that found why training cannot run."""
    return Check(name=name, severity="error", text=text, hint=hint, facts=facts)


def one_line(text: object) -> str:
    """The first line of ``text`` that is not blank: libraries usually say what matters first."""
    return next((line.strip() for line in str(text).splitlines() if line.strip()), "")
