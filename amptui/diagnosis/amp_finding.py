"""A finding: one measured fact about AMP or FP8 in this run, with its step, precision, scale and age."""

from dataclasses import dataclass, replace
from typing import Literal

from amptui.records.findings import is_old
from amptui.telemetry.comparison import compare
from amptui.telemetry.view import Comparison, SessionView

Subject = Literal[
    "speed", "memory", "limit", "overflow", "forward", "float16", "agreement", "loss", "weights"
]
"""``overflow`` is of gradients, ``forward`` of what modules put out, ``float16`` of what its range loses."""

Grade = Literal["good", "neutral", "warning", "error", "unknown"]
"""``neutral``: a fact that speaks neither for nor against AMP; ``unknown``: it was not measured."""

Freshness = Literal["fresh", "old", "never measured"]

Measurement = Literal["", "comparison", "precision", "x-ray", "trace", "histogram"]
"""What would measure it: a kind of request, or the float16 histogram; empty if nothing need be asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One measured fact about AMP in this run, or that it was never measured."""

    subject: Subject
    state: str
    """What was found; the functions that make findings list the states of their subject."""
    grade: Grade
    freshness: Freshness = "fresh"
    happened: bool = True
    """Whether it happened to training steps; otherwise it is what would happen."""
    about: str = ""
    """The AMP precision or FP8 that it speaks of; empty for the run as a whole."""
    value: float | None = None
    """A ratio, a share or a count, as the subject has it."""
    low: float | None = None
    high: float | None = None
    """The ends of the value's interval; ``low`` alone is what the state compares it with."""
    whole: int | None = None
    """What a count is of."""
    place: str = ""
    """The module, layer or parameter."""
    step: int | None = None
    """The step of the evidence, the newest of several."""
    age_steps: int | None = None
    """Steps made since."""
    precision: str = ""
    """What the step of the evidence ran in."""
    loss_scale: float | None = None
    """The scale that the finding is for."""
    measured_by: Measurement = ""
    was_trouble: bool = False
    """It was a warning or an error while it was fresh, and is old."""


def never(subject: Subject, about: str, **facts: object) -> Finding:
    """That it was never measured, and what would measure it."""
    finding = Finding(
        subject=subject, state="not measured", grade="unknown", freshness="never measured", about=about
    )
    return replace(finding, **facts)  # type: ignore[arg-type]  # each caller's facts are its fields


@dataclass(frozen=True, slots=True)
class Question:
    """What the findings are asked for: a view, and the AMP precision or FP8 in question."""

    view: SessionView
    precision: str

    @property
    def comparison(self) -> Comparison:
        """The precision in question beside its reference: the view's own may be of another one."""
        comparison = self.view.comparison
        return comparison if comparison.low == self.precision else compare(comparison.rows, self.precision)

    def freshness(self, step: int, scale: float | None = None) -> Freshness:
        """Of a measurement of one ``step``, at a loss scale if that matters to it."""
        scale_now = self.view.scaler.scale
        return "old" if is_old(step, scale, now=self.view.step, scale_now=scale_now) else "fresh"

    def aged(self, finding: Finding) -> Finding:
        """A finding of a single step; once that is old, it speaks neither for nor against AMP."""
        step, scale, scale_now = finding.step or 0, finding.loss_scale, self.view.scaler.scale
        if finding.state == "underflows" and scale and scale_now and scale_now < scale:
            scale = None  # at a smaller one more of them underflows
        finding = replace(finding, freshness=self.freshness(step, scale))
        if finding.freshness == "fresh":
            return finding
        return replace(finding, grade="neutral", was_trouble=finding.grade in ("warning", "error"))
