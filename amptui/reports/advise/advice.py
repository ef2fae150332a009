"""What was measured of each precision, and the recommendation: a pure function of that.

Every judgement is the answer's own, as the screen shows it; here they are only weighed against each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Literal, get_args

from amptui.base.errors import AmptuiError, ExperimentError
from amptui.diagnosis.amp_answer import AmpAnswer, Worth, amp_answer
from amptui.records.findings import Float16Window, PrecisionMeasured
from amptui.records.own_loop import OTHER_PRECISIONS
from amptui.records.run import AMP_PRECISIONS, LOW_PRECISIONS
from amptui.reports.advise.loss_race import LossRace
from amptui.telemetry.comparison import judge_speed
from amptui.telemetry.finding import Finding, never_measured
from amptui.telemetry.health import judge_window
from amptui.telemetry.memory import LITTLE_MEMORY
from amptui.telemetry.view import EMPTY_VIEW, NumericsView, SessionView

CANDIDATES = ("bf16", "fp16", "fp8", "tf32")
"""What FP32 is compared with, in this order."""

OTHER_WEIGHTS = "the weights are not float32"


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Why a precision is no candidate, or no longer one."""

    kind: Literal["not here", "slow", "failed", "trouble", "weights lost"]
    """``not here``: the device or the run cannot; ``trouble``: its steps were skipped, as its answer says."""
    detail: str = ""
    """The reason or the error, in one line."""
    value: float | None = None
    """Of ``slow``: its step time by the baseline's."""


@dataclass(slots=True, kw_only=True)
class Evidence:
    """All that one measurement has found so far."""

    view: SessionView = EMPTY_VIEW
    """The newest."""
    numerics: dict[str, NumericsView] = field(default_factory=dict)
    """By precision, as of the last step that was looked into in it."""
    window: Float16Window | None = None
    """The newest float16 histogram of a step that did not run in float16."""
    exclusions: dict[str, Exclusion] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    """What could not be measured, by its name, with the first reason."""
    lost_in: str = ""
    """The precision in which weights became NaN or Inf."""
    race: LossRace | None = None
    """The losses from the same start."""

    @property
    def failure(self) -> AmptuiError | None:
        """That the weights were lost in FP32, which no other precision repairs; None if they were not."""
        if self.lost_in != "fp32":
            return None
        reason = self.view.pause_reason or "the loss is not finite"
        return ExperimentError(f"in FP32, {reason}", hint="use a smaller learning rate")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One precision beside FP32, and what was found on it."""

    precision: str
    answer: AmpAnswer | None
    """None for a precision without autocast: only speed and memory are in question."""
    row: PrecisionMeasured | None
    """Its row of the comparison; None if it was not compared."""
    step_seconds: float | None
    """Its step time in the comparison, else the median of its steps after warm-up."""
    memory: float | None
    """Its peak by FP32's."""
    exclusion: Exclusion | None = None
    loss: Finding | None = None
    """Its final losses beside FP32's; None if they were not compared."""

    @property
    def speed(self) -> Finding:
        """The answer's; the comparison's of TF32, which has no answer, and of FP8, whose is about bf16."""
        if self.answer is not None and self.precision != "fp8":
            return self.answer.of("speed")
        row = self.row
        if row is None or not row.speedup:
            return never_measured("speed", self.precision)
        speed = judge_speed(row.speedup, row.speedup_low, row.speedup_high)
        return replace(speed, about=self.precision)

    @property
    def worth(self) -> Worth:
        """The word on its speed; ``unknown`` where there is none yet."""
        state = self.speed.state
        return state if state in get_args(Worth) else "unknown"  # type: ignore[return-value]


def candidates(evidence: Evidence, precisions: Sequence[str]) -> tuple[Candidate, ...]:
    """One for each of ``precisions``, FP32 not among them."""
    options, race = [], evidence.race
    for precision in precisions:
        view = view_of(evidence, precision)
        row, baseline = row_of(view, precision), row_of(view, "fp32")
        answer = exclusion = None
        loss = None if race is None else race.finding(precision)
        if precision in LOW_PRECISIONS:
            findings = [] if race is None else [loss, race.troubles.get(precision)]
            answer = amp_answer(view, precision, measured=[*filter(None, findings)])
        if race is not None and (error := race.failed.get(precision, "")):
            exclusion = Exclusion("failed", error)
        peaks = [None if side is None else side.peak_allocated_bytes for side in (row, baseline)]
        options.append(
            Candidate(
                precision=precision,
                answer=answer,
                row=row,
                step_seconds=step_seconds(view, precision),
                memory=peaks[0] / peaks[1] if peaks[0] and peaks[1] else None,
                exclusion=evidence.exclusions.get(precision) or exclusion,
                loss=loss,
            )
        )
    return tuple(options)


def has_other_weights(view: SessionView) -> bool:
    """Whether the weights, as far as they were measured, are of another dtype than float32."""
    dtypes = {kind.dtype for breakdown in view.memory for kind in breakdown.kinds if kind.kind == "weights"}
    others = view.precision in OTHER_PRECISIONS
    return others or bool(dtypes and "float32" not in dtypes)


def view_of(evidence: Evidence, precision: str) -> SessionView:
    """The view as it stands for one precision: with the measurements that were made in it."""
    view = evidence.view
    numerics = evidence.numerics.get(precision) or evidence.numerics.get("fp32") or view.numerics
    own = numerics.window
    if own is not None and (own.hypothetical or judge_window(own).severity == "info"):
        own = None  # no step in float16 that has lost too much itself
    if precision == "fp16" and evidence.window is not None and own is None:
        # Of a step in float16, what was flushed is among its zeros: the other one counts it.
        numerics = replace(numerics, window=evidence.window)
    numerics = replace(numerics, scaler=view.numerics.scaler)
    return replace(view, numerics=numerics)


def row_of(view: SessionView, precision: str) -> PrecisionMeasured | None:
    """Its row of the comparison; None without a step time."""
    rows = () if view.compared is None else view.compared.rows
    return next((row for row in rows if row.precision == precision and row.step_seconds), None)


def step_seconds(view: SessionView, precision: str) -> float | None:
    """A step time in the comparison, else the median of the steps after warm-up; None if neither is known."""
    row = row_of(view, precision)
    medians = {stats.precision: stats.median_step_seconds for stats in view.comparison.rows}
    return medians.get(precision) if row is None else row.step_seconds


# ------------------------------------------------------------------------------ the recommendation


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
