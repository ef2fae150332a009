"""What one look at the machine found: a finding with its gravity, and the mend of every trouble."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from amptui.records import Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line of the report.

    ``info`` is as it should be; with ``warning`` training runs, but less well than it could, or less of it
    is seen; with ``error`` training does not run as it would by default.
    """

    name: str
    """What was looked at, the same on every machine and in every state: ``cuda``."""
    severity: Severity
    text: str
    mend: str = ""
    """What a person can do about it; every warning and error has one."""
    facts: Mapping[str, object] = field(default_factory=dict)
    """The measured or read values behind the text, for scripts; None is what could not be had."""

    def __post_init__(self) -> None:
        assert self.severity == "info" or self.mend, f"{self.name}: a trouble without a mend"


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Checks that belong together, made when they are asked for."""

    title: str
    look: Callable[[], Iterable[Check]]
    needs_torch: bool = False


def fine(name: str, text: str, /, **facts: object) -> Check:
    """A check that found nothing to mend."""
    return Check(name=name, severity="info", text=text, facts=facts)


def poor(name: str, text: str, mend: str, /, **facts: object) -> Check:
    """A check that found something to mend; training runs without it."""
    return Check(name=name, severity="warning", text=text, mend=mend, facts=facts)


def broken(name: str, text: str, mend: str, /, **facts: object) -> Check:
    """A check that found why training does not run."""
    return Check(name=name, severity="error", text=text, mend=mend, facts=facts)


def one_line(text: object) -> str:
    """The first line of ``text``: what a library says first is mostly what matters."""
    return next((line.strip() for line in str(text).splitlines() if line.strip()), "")
