"""Answers and candidates as a measurement would have found them."""

from typing import Any

from amptui.diagnosis.amp_answer import AmpAnswer, Safety
from amptui.records.findings import PrecisionMeasured
from amptui.reports.advise.advice import Candidate, Exclusion
from amptui.reports.advise.loss_race import LossRace
from amptui.telemetry.finding import Finding
from tests.telemetry import record_samples as samples

SUBJECTS = (
    "speed",
    "memory",
    "limit",
    "overflow",
    "forward",
    "float16",
    "agreement",
    "loss",
    "weights",
)

SAME_LOSSES = ((1.0, 1.1, 0.9), (1.01, 1.08, 0.92))
HIGHER_LOSSES = ((1.0, 1.01, 0.99), (2.0, 2.01, 1.99))


def finding(subject: Any, state: str, grade: Any = "good", **facts: Any) -> Finding:
    return Finding(subject=subject, state=state, grade=grade, **facts)


def answer(precision: str, *found: Finding, worth: Any = "unknown", safety: Safety = "safe") -> AmpAnswer:
    """An answer with these findings; the others were never measured."""
    choices = {element.subject: element for element in found}
    subjects = (subject for subject in SUBJECTS if (subject, precision) != ("float16", "fp8"))
    findings = tuple(
        choices.get(subject)
        or Finding(subject=subject, state="not measured", grade="unknown", freshness="never measured")
        for subject in subjects
    )
    return AmpAnswer(
        step=1000,
        precision=precision,
        baseline="fp32",
        steps=400,
        findings=findings,
        worth=worth,
        safety=safety,
    )


def row(precision: str, speedup: float | None = None, width: float = 0.02, **facts: Any) -> PrecisionMeasured:
    """A row of a comparison whose interval is so wide, as a fraction, to either side."""
    values: dict[str, Any] = {
        "step_seconds": 0.01 / (speedup or 1.0),
        "speedup": speedup,
        "speedup_low": speedup and speedup * (1 - width),
        "speedup_high": speedup and speedup * (1 + width),
        "peak_allocated_bytes": None,
    }
    return samples.measured(precision, **values | facts)


def candidate(
    precision: str,
    speedup: float | None = None,
    *found: Finding,
    worth: Any = None,
    losses: tuple[tuple[float, ...], tuple[float, ...]] | None = SAME_LOSSES,
    memory: float | None = None,
    exclusion: Exclusion | None = None,
) -> Candidate:
    """A candidate of so much speed; by default all that was measured of it is well."""
    measured = None if speedup is None else row(precision, speedup)
    low, high = (0.0, 0.0) if measured is None else (measured.speedup_low or 0, measured.speedup_high or 0)
    worth = worth or (
        "unknown" if speedup is None else "faster" if low > 1 else "slower" if high < 1 else "same"
    )
    race = LossRace(steps=300, finals={} if losses is None else {"fp32": losses[0], precision: losses[1]})
    raced = race.finding(precision)
    usual = [
        finding(
            "agreement",
            "agree",
            about=precision,
            precision=precision,
            numbers={"cosine": 0.998, "count": 9, "layers": 9, "loss": 1.0, "other_loss": 1.0},
            names={"place": "features.3"},
        ),
        finding("overflow", "finite", about=precision),
        *([] if raced is None else [raced]),
    ]
    if speedup is not None:
        usual.append(
            finding("speed", worth, about=precision, numbers={"ratio": speedup, "low": low, "high": high})
        )
    merged = {item.subject: item for item in (*usual, *found)}
    return Candidate(
        precision=precision,
        answer=answer(precision, *merged.values(), worth=worth) if precision != "tf32" else None,
        row=measured,
        step_seconds=None if measured is None else measured.step_seconds,
        memory=memory,
        exclusion=exclusion,
        loss=raced,
    )
