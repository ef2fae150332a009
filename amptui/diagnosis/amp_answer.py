"""Whether AMP is worth it and safe: the one answer, from findings, and the lines that say it.

Every surface shows the object that :func:`amp_answer` makes of a view: the line and the panel of the screen,
the plain output, the summary, the page, ``--json``. What happened outweighs what would happen: once float16's
steps were skipped or the loss was NaN, no measurement of a single step calls float16 safe.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal, get_args

from amptui.base import units
from amptui.diagnosis.amp_findings import BEFORE_AMP, Question, safety_findings, worth_findings
from amptui.diagnosis.finding_fields import interval_ends
from amptui.diagnosis.labels import precision_label
from amptui.diagnosis.words import (
    SIGNS,
    age_words,
    evidence_words,
    long_words,
    short_words,
    speed_words,
)
from amptui.records.codec import Codec
from amptui.records.own_loop import OTHER_PRECISIONS
from amptui.records.run import LOW_PRECISIONS, reference_precision
from amptui.telemetry.comparison import LITTLE_SPEED, MIN_STEPS, low_precision_now
from amptui.telemetry.finding import Finding, Grade, Measurement
from amptui.telemetry.view import SessionView

SAFETY_SUBJECTS = ("weights", "loss", "forward", "overflow", "float16", "agreement")
"""What makes AMP safe or not, the gravest first."""

Worth = Literal["faster", "same", "slower", "open", "unknown"]
Safety = Literal["safe", "no trouble", "would be safe", "warning", "error", "unknown"]
"""``safe``: steps ran without trouble and a fresh X-ray agrees; ``no trouble``: only the former; ``would be
safe``: no steps, but what was measured speaks for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AmpAnswer:
    """What AMP gives here and whether it is safe, as of one step."""

    step: int
    precision: str | None
    """The AMP precision or FP8 in question; None where the run's weights leave autocast no choice."""
    baseline: str
    """What it is compared with: a precision without autocast, or bf16 if FP8 is in question.

    Where no precision is in question it is what the steps run in.
    """
    steps: int
    """How many ran in that precision, those that its scaler skipped among them."""
    findings: tuple[Finding, ...] = ()
    """One of each subject: on its worth, then on its safety."""
    worth: Worth = "unknown"
    safety: Safety = "unknown"
    cause: Finding | None = None
    """The finding that the warning or error is about."""
    doubt: Finding | None = None
    """A trouble that was found once and is old: nobody knows whether it still is there."""

    def of(self, subject: str) -> Finding:
        """The finding on a subject; raises ``KeyError`` where AMP is not in question."""
        for finding in self.findings:
            if finding.subject == subject:
                return finding
        raise KeyError(subject)

    @property
    def trouble(self) -> Finding | None:
        """What the verdict is about: NaN or Inf that another precision left, else :attr:`cause`."""
        others = (one for one in self._by_gravity if one.about not in ("", self.precision))
        return next((one for one in others if one.is_trouble), self.cause)

    @property
    def headline_precision(self) -> str:
        """What the verdict begins with: the precision of the trouble, else the one in question if it ran."""
        trouble = self.trouble
        if trouble is None and not self.steps and self.of("speed").state != "no steps":
            return self.baseline
        return (trouble.about if trouble is not None else "") or self.precision or ""

    @property
    def culprit_step(self) -> int | None:
        """The step of a trouble that no precision caused: it begins the verdict in place of one."""
        trouble = self.trouble
        return trouble.step if trouble is not None and trouble.state in BEFORE_AMP else None

    @property
    def counted(self) -> tuple[Finding, ...]:
        """What makes its precision safe or not, the gravest subject first."""
        return tuple(finding for finding in self._by_gravity if finding.about in ("", self.precision))

    @property
    def _by_gravity(self) -> list[Finding]:
        findings = [finding for finding in self.findings if finding.subject in SAFETY_SUBJECTS]
        return sorted(findings, key=lambda finding: SAFETY_SUBJECTS.index(finding.subject))

    @property
    def safety_grade(self) -> Grade:
        """The sign before what is said of its safety."""
        if self.trouble is not None:
            return self.trouble.grade
        return "unknown" if self.safety == "unknown" else "good"

    @property
    def headline_key(self) -> tuple[object, ...]:
        """What a log repeats the answer for: it changed if this did."""
        cause = self.trouble or self.doubt
        return (
            self.headline_precision,
            self.worth,
            self.safety,
            None if cause is None else (cause.subject, cause.state),
        )


def answer_json(answer: AmpAnswer) -> str:
    """The answer as one line of strict JSON, with its type, as records have it."""
    return f'{{"type":"AmpAnswer",{_codec().dumps(answer)[1:]}'


@cache
def _codec() -> Codec[AmpAnswer]:
    return Codec(AmpAnswer)


def amp_answer(
    view: SessionView, precision: str | None = None, *, measured: Sequence[Finding] = ()
) -> AmpAnswer:
    """The answer for a view: the precision in question, a finding of each subject, and what follows.

    ``precision`` asks for another one than that in question; what was ``measured`` outside of the run takes
    the place of the run's own finding on the same subject.
    """
    precision = precision or precision_in_question(view)
    if precision is None:
        return AmpAnswer(step=view.step, precision=None, baseline=view.precision or "", steps=0)
    question = Question(view, precision)
    findings = {}
    for finding in (*worth_findings(question), *safety_findings(question)):
        age_steps = None if finding.step is None else max(0, view.step - finding.step)
        is_others = finding.about in LOW_PRECISIONS and finding.about != precision
        grade = finding.grade
        # What another AMP precision does or would do is only a fact, but a loss and weights that are NaN or
        # Inf are so for every precision.
        if is_others and finding.subject not in ("loss", "weights") and grade != "unknown":
            grade = "neutral"
        findings[finding.subject] = replace(finding, age_steps=age_steps, grade=grade)
    findings |= {finding.subject: finding for finding in measured if finding.subject in findings}
    speed = findings["speed"].state
    answer = AmpAnswer(
        step=view.step,
        precision=precision,
        baseline=question.comparison.baseline or reference_precision(precision),
        steps=sum(row.steps_made for row in view.comparison.rows if row.precision == precision),
        findings=tuple(findings.values()),
        worth=speed if speed in get_args(Worth) else "unknown",  # type: ignore[arg-type]
    )
    safety, cause = _safety(answer)
    if cause is not None:
        return replace(answer, safety=safety, cause=cause)
    # An old trouble that a histogram or an X-ray found: its age makes nothing safe.
    old = [
        finding
        for finding in answer.counted
        if finding.subject in ("float16", "agreement")
        and finding.was_trouble
        and finding.about == answer.precision
    ]
    doubt = max(old, key=lambda finding: finding.step or 0, default=None)
    if doubt is not None or answer.trouble is not None:
        safety = "unknown"
    return replace(answer, safety=safety, doubt=doubt)


def precision_in_question(view: SessionView) -> str | None:
    """The AMP precision or FP8 that runs, else the AMP precision that ran most, else the run's."""
    if view.precision in OTHER_PRECISIONS:
        return None
    low = low_precision_now(view.precision, view.compared) or view.comparison.low
    return low or (None if view.run is None else view.run.amp_precision)


def _safety(answer: AmpAnswer) -> tuple[Safety, Finding | None]:
    """The gravest trouble, what happened before what would happen; else how well safety is known."""
    counted = answer.counted
    for grade in ("error", "warning"):
        for happened in (True, False):
            for finding in counted:
                if finding.grade == grade and finding.happened == happened:
                    return grade, finding
    good = {finding.subject: finding.freshness for finding in counted if finding.grade == "good"}
    agrees = good.get("agreement") == "fresh"
    if answer.steps >= MIN_STEPS:
        return ("safe" if agrees and "overflow" in good else "no trouble"), None
    foretold = agrees or (answer.precision == "fp16" and good.get("float16") == "fresh")
    return ("would be safe" if foretold else "unknown"), None


# ------------------------------------------------------------------------------------- in words

_NO_VERDICT = {
    "mixed": "no verdict on AMP, because steps mix precisions",
    "unknown": "no verdict on AMP, because the precision of the steps is unknown",
}

NO_AMP = "AMP changes nothing: the weights or layers are not float32"


def no_amp_words(precision: str | None) -> str:
    """Why AMP is not in question where steps run in ``precision``."""
    return _NO_VERDICT.get(precision or "", NO_AMP)


def question_words(precision: str | None) -> str:
    """``AMP verdict``, or that on FP8."""
    # A forged journal's own names are neither.
    family = "FP8" if precision == "fp8" else "AMP"
    return f"{family} verdict"


def interval_words(finding: Finding) -> str:
    """``1.61 to 1.69``; empty without an interval."""
    return interval_ends(finding.numbers.get("low"), finding.numbers.get("high"))


def worth_forms(answer: AmpAnswer, keys: Mapping[str, str]) -> tuple[str, str]:
    """``worth it: 1.65× the speed (1.61 to 1.69), 31% less memory``, or why not; then a shorter form.

    ``keys``: those that are advised, by their names in the words; a key that is not there is not.
    """
    speed, memory = answer.of("speed"), answer.of("memory")
    state, numbers = speed.state, dict(speed.numbers)
    if numbers.get("ratio") and not interval_words(speed):
        state = "rough"
    elif state == "faster" and (numbers["ratio"] or 0) < 1 + LITTLE_SPEED:
        state = "little"
    elif state == "same" and speed.names["bound"]:
        state = f"same, {speed.names['bound']}"
    elif state == "never ran" and keys.get("p"):
        state = "try"
    if memory.state in ("less", "more"):
        numbers["memory_ratio"] = memory.numbers["memory_ratio"]
    verdict = replace(
        speed,
        subject="worth",
        state=state,
        numbers=numbers,
        names={**speed.names, **keys},
        about=answer.precision or "",
    )
    return long_words(verdict), short_words(verdict)


def safe_forms(answer: AmpAnswer) -> tuple[str, ...]:
    """``✔ safe: gradients agree``, the trouble, or what is known so far, then a shorter form; or none."""
    trouble, doubt = answer.trouble, answer.doubt
    sign = SIGNS[answer.safety_grade]
    if trouble is not None:
        refusal = "do not use: " if (trouble.subject, trouble.state) in _UNFIT else ""
        return f"{sign} {refusal}{long_words(trouble)}", f"{sign} {refusal}{short_words(trouble)}"
    if doubt is not None:
        return (f"{sign} {age_words(doubt.age_steps or 0)}: {short_words(doubt)}",)
    if answer.safety == "unknown" and not answer.steps:
        return ()
    state: str = answer.safety
    if state == "would be safe" and answer.of("agreement").grade == "good":
        state = "would agree"
    share = answer.of("float16").numbers.get("share") if state == "would be safe" else None
    numbers = {"steps": float(answer.steps), "share": share}
    verdict = Finding(subject="safety", state=state, grade=answer.safety_grade, numbers=numbers)
    return f"{sign} {long_words(verdict)}", f"{sign} {short_words(verdict)}"


_UNFIT = (("float16", "underflows"), ("agreement", "disagree"), ("forward", "would overflow"))
"""Findings that speak against a precision before its steps fail."""


def next_measurement(answer: AmpAnswer) -> tuple[Measurement, str]:
    """What would tell most now about its safety, and what for; empty if nothing is missing.

    A trouble's own measurement comes first. Those of the speed are named with it.
    """
    if answer.trouble is not None:
        what_for = {"trace": "find the module", "x-ray": "compare again", "histogram": "show it"}
        return answer.trouble.measured_by, what_for.get(answer.trouble.measured_by, "")
    if answer.doubt is not None:
        return answer.doubt.measured_by, "measure again"
    if answer.steps and answer.of("agreement").freshness != "fresh":
        return "x-ray", "compare gradients"
    return "", ""


def answer_line(answer: AmpAnswer) -> str:
    """``AMP fp16  worth it: 1.65× the speed (1.61 to 1.69), 31% less memory  ✔ safe: gradients agree``."""
    if answer.precision is None:
        return no_amp_words(answer.baseline)
    begins = answer.culprit_step
    label = precision_label(answer.headline_precision) if begins is None else f"step {units.count(begins)}"
    worth = worth_forms(answer, {})[0] if answer.trouble is None else ""
    return "  ".join(filter(None, (label, worth, *safe_forms(answer)[:1])))


def evidence_rows(answer: AmpAnswer) -> list[tuple[Finding, str, str]]:
    """Of each measured finding: itself, its words, and what they are from."""
    return [
        (
            finding,
            speed_words(finding) if finding.subject == "speed" else long_words(finding),
            evidence_words(finding),
        )
        for finding in answer.findings
        if finding.freshness != "never measured"
    ]
