"""A finding: one measured fact of a run, its grade, and the numbers that it follows from.

Whoever judges something makes one: how steps compare, what the loss scaler did, whether gradients agree.
`diagnosis/words.py` has the words of each state; no code reads a sentence to learn a fact.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from amptui.records.ranks import RankStack
from amptui.records.run import Severity

Grade = Literal["good", "neutral", "warning", "error", "unknown"]
"""``neutral``: a fact that speaks neither for nor against; ``unknown``: it was not measured."""

Freshness = Literal["fresh", "old", "never measured"]

Measurement = Literal["", "comparison", "precision", "x-ray", "trace", "histogram"]
"""What would measure it: a kind of request, or the float16 histogram; empty if nothing need be asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One measured fact, or that it was never measured."""

    subject: str
    """What it is about; with the state the key of its words."""
    state: str
    grade: Grade
    numbers: Mapping[str, float | None] = field(default_factory=dict)
    """By the names that the words have for them."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Modules, parameters and precisions in the same way: ``place`` is where it is so."""
    ranks: tuple[int, ...] = ()
    """The ranks that it names, of many the first; ``count`` of the numbers is how many there are."""
    step: int | None = None
    """The step of the evidence, the newest of several."""
    precision: str = ""
    """What that step ran in."""
    about: str = ""
    """The AMP precision or FP8 that it speaks of; empty for the run as a whole."""
    happened: bool = True
    """Whether it happened to training steps; otherwise it is what would happen."""
    freshness: Freshness = "fresh"
    age_steps: int | None = None
    """Steps made since."""
    measured_by: Measurement = ""
    was_trouble: bool = False
    """It was a warning or an error while it was fresh, and is old."""

    @property
    def is_trouble(self) -> bool:
        """Whether it warns of something."""
        return self.grade in ("warning", "error")

    @property
    def severity(self) -> Severity:
        """How bad it is as an event."""
        return _SEVERITIES.get(self.grade, "info")

    @property
    def place(self) -> str:
        """The module, layer or parameter; empty if there is none."""
        return self.names.get("place", "")

    @property
    def loss_scale(self) -> float | None:
        """The scale that it is for, if that matters to it."""
        return self.numbers.get("scale")


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingReported:
    """A finding that is news: underflow that begins, ranks that differ or wait, a slow start."""

    time: float
    finding: Finding
    stacks: tuple[RankStack, ...] = ()
    """What each rank was doing, where they made no progress."""

    @property
    def step(self) -> int | None:
        """The step of the evidence."""
        return self.finding.step


_SEVERITIES: Mapping[Grade, Severity] = {"warning": "warning", "error": "error"}


def never_measured(subject: str, about: str = "", *, state: str = "not measured", **facts: Any) -> Finding:
    """That it was never measured, and what would measure it."""
    return Finding(
        subject=subject, state=state, grade="unknown", freshness="never measured", about=about, **facts
    )
