"""The recommendation: a pure function of what was found on each precision.

Every judgement is the answer's own, as the screen shows it; here they are only weighed against each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal, get_args

from amptui.diagnosis.amp_answer import AmpAnswer
from amptui.records.run import AMP_PRECISIONS
from amptui.reports.advise.evidence import Candidate
from amptui.telemetry.finding import Finding
from amptui.telemetry.memory import LITTLE_MEMORY

Reason = Literal[
    "faster",
    "memory",
    "unsafe",
    "same",
    "slower",
    "open",
    "not compared",
    "nothing to compare",
    "weights",
    "fails",
]
"""``faster``, ``memory``: what the recommended precision gains. Otherwise FP32 is recommended, since what
gains is ``unsafe``, or since nothing does; ``weights``: they are not float32, and autocast has nothing to
cast; ``fails``: FP32 itself does not train, and nothing is recommended."""

_NoGain = Literal["same", "open", "slower"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What to use, and why."""

    precision: str | None
    """None if nothing can be recommended."""
    reason: Reason
    about: Candidate | None = None
    """The candidate that is recommended, or that FP32 is preferred to."""
    troubles: tuple[Finding, ...] = ()
    """What to look out for in ``about``, or what speaks against it where FP32 is recommended."""


def recommend(candidates: Sequence[Candidate], *, other_weights: bool = False) -> Advice:
    """What to use: the fastest precision that is safe, else one that saves memory, else FP32.

    ``other_weights``: the weights are not float32.
    """
    if other_weights:
        return Advice(precision="fp32", reason="weights")
    broken = next(
        (finding for candidate in candidates for finding in troubles(candidate.answer) if not finding.about),
        None,
    )
    if broken is not None and (
        broken.state == "FP32 loss not finite"
        or (broken.grade == "error" and broken.happened and broken.precision in ("fp32", "ieee", "tf32"))
    ):
        return Advice(precision=None, reason="fails", troubles=(broken,))
    usable = [candidate for candidate in candidates if is_safe(candidate)]
    faster = [candidate for candidate in candidates if candidate.worth == "faster"]
    safe = [candidate for candidate in faster if candidate in usable]
    as_fast = [candidate for candidate in usable if candidate.worth in ("same", "open")]
    smallest = min(as_fast, key=lambda candidate: candidate.memory or 1.0, default=None)
    reason: Reason
    about: Candidate | None
    if safe:
        about, reason = _best(safe), "faster"
    elif smallest is not None and 1 - (smallest.memory or 1.0) >= LITTLE_MEMORY:
        about, reason = smallest, "memory"
    else:
        about, reason = _why_not(candidates, usable, faster)
    precision = None if reason == "not compared" else "fp32"
    if reason in ("faster", "memory") and about is not None:
        precision = about.precision
    return Advice(
        precision=precision,
        reason=reason,
        about=about,
        troubles=() if about is None else troubles(about.answer),
    )


def _why_not(
    candidates: Sequence[Candidate], usable: Sequence[Candidate], faster: Sequence[Candidate]
) -> tuple[Candidate | None, Reason]:
    """Why nothing gains: the first of the reasons that some candidate gives, and that candidate."""
    amp = [candidate for candidate in usable if candidate.precision in AMP_PRECISIONS]
    others = [candidate for candidate in usable if candidate not in amp]
    reasons: list[tuple[Reason, Sequence[Candidate]]] = [("unsafe", [_best(faster)] if faster else [])]
    # What people ask about is AMP: TF32 and FP8 are told of only where nothing is known of that.
    for kind, reason in product((amp, others), get_args(_NoGain)):
        reasons.append((reason, [candidate for candidate in kind if candidate.worth == reason]))
    reasons.append(("not compared", amp))
    reasons.append(("unsafe", [candidate for candidate in candidates if troubles(candidate.answer)]))
    excluded: tuple[tuple[str, Reason], ...] = (("weights lost", "unsafe"), ("slow", "slower"))
    for cause, reason in excluded:
        out = [one for one in candidates if one.exclusion is not None and one.exclusion.kind == cause]
        reasons.append((reason, out))
    for reason, those in reasons:
        if those:
            return those[0], reason
    if all(candidate.exclusion is not None for candidate in candidates):
        return None, "nothing to compare"
    return next(iter(usable), None), "not compared"


def is_safe(candidate: Candidate) -> bool:
    """Whether it may be recommended: nothing found speaks against it.

    Gradients that only differ are no obstacle if the losses are the same nevertheless.
    """
    if candidate.exclusion is not None:
        return False
    if candidate.loss is not None and candidate.loss.state in ("higher", "not finite"):
        return False
    answer = candidate.answer
    findings = troubles(answer)
    trains_alike = answer is not None and answer.of("loss").state == "same"
    return all(
        trains_alike and finding.subject == "agreement" and finding.grade == "warning" for finding in findings
    )


def troubles(answer: AmpAnswer | None) -> tuple[Finding, ...]:
    """The findings that warn of a precision, the gravest subject first."""
    counted = () if answer is None else answer.counted
    return tuple(finding for finding in counted if finding.is_trouble)


def _best(faster: Sequence[Candidate]) -> Candidate:
    """The fastest; bf16, which needs no loss scale, unless another is faster by more than both intervals."""
    ranked = sorted(faster, key=_speedup, reverse=True)
    first = ranked[0]
    simpler = [
        candidate
        for candidate in ranked
        if candidate.precision == "bf16" and _ends(candidate)[1] >= _ends(first)[0]
    ]
    return simpler[0] if simpler else first


def _speedup(candidate: Candidate) -> float:
    return candidate.speed.numbers["ratio"] or 0.0


def _ends(candidate: Candidate) -> tuple[float, float]:
    """Its interval; without one, of no width."""
    low, high = (candidate.speed.numbers.get(end) for end in ("low", "high"))
    return (low, high) if low and high else (_speedup(candidate), _speedup(candidate))
