"""The recommendation: a pure function of what was found on each precision.

Every judgement is the answer's own, as the screen shows it; here they are only weighed against each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

from amptui.diagnosis.amp_answer import AmpAnswer
from amptui.diagnosis.memory_use import LITTLE_MEMORY
from amptui.diagnosis.speed import speed_state
from amptui.records.findings import PairCompared
from amptui.records.run import AMP_PRECISIONS
from amptui.reports.advise.evidence import Candidate
from amptui.telemetry.finding import Finding

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What to use, and why."""

    precision: str | None
    """None if nothing can be recommended."""
    reason: Reason
    about: Candidate | None = None
    """The candidate that is recommended, or that FP32 is preferred to."""
    cautions: tuple[Finding, ...] = ()
    """What to look out for in the recommended precision."""
    troubles: tuple[Finding, ...] = ()
    """What speaks against ``about`` where FP32 is recommended."""
    compiles: bool = False
    """Whether ``torch.compile`` made the recommended precision faster beyond its interval."""

    @property
    def limit(self) -> Finding | None:
        """What steps wait for, as far as it was measured."""
        answer = None if self.about is None else self.about.answer
        limit = None if answer is None else answer.of("limit")
        return limit if limit is not None and limit.freshness != "never measured" else None


def recommend(
    candidates: Sequence[Candidate],
    *,
    other_weights: bool = False,
    compiling: PairCompared | None = None,
) -> Advice:
    """What to use: the fastest precision that is safe, else one that saves memory, else FP32.

    ``other_weights``: the weights are not float32; ``compiling``: what ``torch.compile`` gains in FP32.
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
    faster = [candidate for candidate in usable if candidate.worth == "faster"]
    if faster:
        return _use(_best(faster), "faster")
    as_fast = [candidate for candidate in usable if candidate.worth in ("same", "open")]
    smallest = min(as_fast, key=lambda candidate: candidate.memory or 1.0, default=None)
    if smallest is not None and 1 - (smallest.memory or 1.0) >= LITTLE_MEMORY:
        return _use(smallest, "memory")
    return replace(_stay(candidates, usable), compiles=_gains(compiling))


def _use(candidate: Candidate, reason: Reason) -> Advice:
    return Advice(
        precision=candidate.precision,
        reason=reason,
        about=candidate,
        cautions=troubles(candidate.answer),
        compiles=_gains(candidate.compiling),
    )


def _gains(pair: PairCompared | None) -> bool:
    """Whether the compiled steps are faster."""
    return pair is not None and speed_state(pair.speedup, pair.speedup_low, pair.speedup_high) == "faster"


def _stay(candidates: Sequence[Candidate], usable: Sequence[Candidate]) -> Advice:
    unsafe = [
        candidate for candidate in candidates if candidate not in usable and candidate.worth == "faster"
    ]
    if unsafe:
        worst = _best(unsafe)
        return Advice(precision="fp32", reason="unsafe", about=worst, troubles=troubles(worst.answer))
    reasons: tuple[Reason, ...] = ("same", "open", "slower")
    # What people ask about is AMP: TF32 and FP8 are told of only where nothing is known of that.
    for is_amp, reason in product((True, False), reasons):
        of_kind = [candidate for candidate in usable if (candidate.precision in AMP_PRECISIONS) == is_amp]
        about = next((candidate for candidate in of_kind if candidate.worth == reason), None)
        if about is not None:
            return Advice(precision="fp32", reason=reason, about=about)
    unknown = [
        candidate
        for candidate in usable
        if candidate.precision in AMP_PRECISIONS and candidate.worth == "unknown"
    ]
    if unknown:
        return Advice(precision=None, reason="not compared", about=unknown[0])
    return _speak_against(candidates) or Advice(
        precision=None, reason="not compared", about=next(iter(usable), None)
    )


def _speak_against(candidates: Sequence[Candidate]) -> Advice | None:
    """FP32, for what was found on the others; None if nothing was."""
    troubled = next((candidate for candidate in candidates if troubles(candidate.answer)), None)
    if troubled is not None:
        return Advice(precision="fp32", reason="unsafe", about=troubled, troubles=troubles(troubled.answer))
    excluded: tuple[tuple[str, Reason], ...] = (("weights lost", "unsafe"), ("slow", "slower"))
    for kind, reason in excluded:
        about = next(
            (
                candidate
                for candidate in candidates
                if candidate.exclusion and candidate.exclusion.kind == kind
            ),
            None,
        )
        if about is not None:
            return Advice(precision="fp32", reason=reason, about=about)
    if all(candidate.exclusion is not None for candidate in candidates):
        return Advice(precision="fp32", reason="nothing to compare")
    return None


def is_safe(candidate: Candidate) -> bool:
    """Whether it may be recommended: nothing found speaks against it.

    Gradients that only differ are no obstacle if the losses are the same nevertheless.
    """
    if candidate.exclusion is not None:
        return False
    if candidate.losses is not None and candidate.losses.outcome in ("higher", "not finite"):
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
    if candidate.row is not None and candidate.row.speedup:
        return candidate.row.speedup
    if candidate.answer is None or candidate.worth == "unknown":
        return 0.0
    return candidate.answer.of("speed").numbers.get("ratio") or 0.0


def _ends(candidate: Candidate) -> tuple[float, float]:
    """Its interval; without one, of no width."""
    row = candidate.row
    if row is None or row.speedup_low is None or row.speedup_high is None:
        return _speedup(candidate), _speedup(candidate)
    return row.speedup_low, row.speedup_high
