"""The answer on AMP in words: short ones for a line and a table, sentences for logs and pages."""

import math
from collections.abc import Mapping, Sequence

from amptui.base import units
from amptui.diagnosis.amp_answer import AmpAnswer
from amptui.diagnosis.amp_finding import Finding, Grade, Measurement, Subject
from amptui.diagnosis.labels import precision_label

SIGNS: Mapping[Grade, str] = {"good": "✔", "neutral": "·", "warning": "⚠", "error": "✖", "unknown": "?"}

LABELS: Mapping[Subject, str] = {
    "speed": "speed",
    "memory": "memory",
    "limit": "limit",
    "overflow": "overflow",
    "forward": "forward",
    "float16": "float16",
    "agreement": "agreement",
    "loss": "loss",
    "weights": "weights",
}

NO_AMP = "AMP changes nothing here: the weights are not float32"

# ------------------------------------------------------------------------------ the answer in short


def worth_words(answer: AmpAnswer) -> str:
    """``1.65× the speed of FP32``, or why that is not known."""
    speed = answer.of("speed")
    words = speed_words(speed, than=precision_label(answer.baseline))
    limit = answer.of("limit").state
    if speed.state == "same" and limit in ("input", "launch"):
        return f"{words}: {limit}-bound"
    return words


def interval_words(finding: Finding) -> str:
    """``1.61 to 1.69``; empty without an interval."""
    if finding.subject != "speed" or finding.low is None or finding.high is None:
        return ""
    return f"{finding.low:.2f} to {finding.high:.2f}"


def speed_words(speed: Finding, *, than: str) -> str:
    """``1.65× the speed of FP32``: the one phrase for it."""
    words = _SPEED.get(speed.state, "no steps yet")
    return words.format(ratio=units.ratio(speed.value), mean=units.ratio(speed.low), than=than)


_SPEED = {
    **dict.fromkeys(("faster", "slower", "same"), "{ratio} the speed of {than}"),
    "open": "no clear difference from {than} yet",
    "disturbed": "{ratio} by median, {mean} by mean",
    "first impression": "~{ratio} the speed of {than}, provisional",
    "AMP never ran": "never tried here",
    "FP32 never ran": "never compared with FP32",
    "too few steps": "too few steps for a speed",
    "unsupported": "not supported here",
}


def safe_words(answer: AmpAnswer) -> str:
    """``safe: gradients agree, no overflow``, or the trouble."""
    if answer.cause is not None:
        return finding_words(answer.cause)
    if answer.doubt is not None:
        age = answer.doubt.age_steps
        ago = "1 step ago" if age == 1 else f"{units.count(age)} steps ago"
        return f"{ago} {_short_trouble(answer.doubt)}"
    steps = units.count(answer.steps)
    match answer.safety:
        case "safe":
            skips = answer.of("overflow")
            lost = "no overflow" if skips.state == "none" else finding_words(skips)
            return f"safe: gradients agree, {lost}"
        case "no trouble":
            return f"no trouble in {steps} steps"
        case "would be safe":
            return f"would be safe: {_foretold(answer)}"
    return "safety not measured yet"


def _short_trouble(finding: Finding) -> str:
    """``31% of the norm underflowed``, ``gradients disagreed``."""
    return _WAS[finding.state].format(**_fields(finding))


_WAS = {
    "underflows": "{share} of the norm underflowed",
    "all zero": "all gradients were zero",
    "AMP loss not finite": "the loss was finite in FP32 only",
    "not finite": "gradients were NaN or Inf{in_place}",
    "differ": "gradients differed: {cosine}{at_place}",
    "disagree": "gradients disagreed: {cosine}{at_place}",
}
"""Troubles that are old."""


def _foretold(answer: AmpAnswer) -> str:
    agreement = answer.of("agreement")
    if agreement.grade == "good":
        return "gradients agree"
    return finding_words(answer.of("float16"))


def safety_grade(answer: AmpAnswer) -> Grade:
    """The sign before :func:`safe_words`."""
    if answer.cause is not None:
        return answer.cause.grade
    return "unknown" if answer.safety == "unknown" else "good"


def next_measurement(answer: AmpAnswer) -> tuple[Measurement, str]:
    """What would tell most now, and what for; empty if nothing is missing.

    A trouble's own measurement comes first; then the gradients, the interval, a try.
    """
    if answer.doubt is not None:
        return answer.doubt.measured_by, "measures again"
    if answer.cause is not None:
        measured_by = answer.cause.measured_by
        return measured_by, {
            "trace": "names the module",
            "x-ray": "compares again",
            "histogram": "shows it",
        }.get(measured_by, "")
    speed, agreement = answer.of("speed"), answer.of("agreement")
    if speed.measured_by == "precision" and speed.freshness == "never measured":
        return "precision", "tries it" if speed.state == "AMP never ran" else "tries FP32"
    if agreement.freshness != "fresh":
        return "x-ray", "compares gradients"
    if speed.high is None and speed.measured_by == "comparison":
        return "comparison", "interval"
    return "", ""


# ------------------------------------------------------------------------------------ one finding


def finding_words(finding: Finding) -> str:
    """A finding in a few words, without its label."""
    if finding.subject == "speed":
        return speed_words(finding, than="FP32")
    return _WORDS[finding.subject].get(finding.state, "not measured").format(**_fields(finding))


def short_words(finding: Finding) -> str:
    """The same for a narrow table with labels: ``1.65×``, ``0.999 features.12``."""
    words = _SHORT.get((finding.subject, finding.state))
    return finding_words(finding) if words is None else words.format(**_fields(finding))


_SKIPS = {
    "none": "none in {whole} steps",
    "none recently": "none in the last {whole} steps",
    "occasional": "{count} of the last {whole} steps skipped",
    "frequent": "{count} of the last {whole} steps skipped",
    "calibrating": "{count} skipped, finding its scale",
    "skipped mostly": "{count} of {whole} fp16 steps skipped",
    "collapsing": "the loss scale collapses: {scale}",
    "forward overflow": "float16 overflows in the forward pass{in_place}",
    "forward overflow once": "float16 overflows in the forward pass{in_place}",
}
"""What a loss scaler did."""

_WORDS: Mapping[Subject, Mapping[str, str]] = {
    "speed": {},
    "memory": {
        "less": "{ratio} the peak of FP32",
        "more": "{ratio} the peak of FP32",
        "same": "the same peak as FP32",
    },
    "limit": {
        "compute": "compute: {percent} can gain",
        "input": "input: {percent} waits for data",
        "launch": "launch: little to gain",
        "unknown": "the GPU idles, cause unknown",
    },
    "overflow": {
        **_SKIPS,
        "finite": "no NaN or Inf",
        "not finite": "NaN or Inf in {count} gradients",
        "never ran": "no {about} steps yet",
    },
    "forward": {
        "overflowed": "{kind}{in_place}",
        "would overflow": "{place} exceeds float16",
        "fits": "largest {short} of 65,504",
        "unknown": "nothing overflowed",
    },
    "float16": {
        **_SKIPS,
        "survives": "{share} of the norm underflows at {scale}",
        "outweighed": "{share} of the norm underflows at {scale}",
        "kept": "{share} of the norm underflows at {scale}",
        "underflows": "{share} of the gradient's norm underflows: use bf16",
        "not finite": "NaN or Inf in {precision} already",
        "all zero": "all gradients are zero",
        "overflow": "overflow at {scale}",
        "empty": "no gradients",
    },
    "agreement": {
        "agree": "worst {cosine}{at_place}",
        "differ": "gradients differ: {cosine}{at_place}",
        "disagree": "gradients disagree: {cosine}{at_place}",
        "FP32 loss not finite": "the loss is not finite in FP32 either",
        "AMP loss not finite": "the loss is finite in FP32 only",
        "overflow": "NaN or Inf{in_place}",
        "not finite": "NaN or Inf{in_place}",
        "nothing to compare": "no gradients to compare",
    },
    "loss": {
        "not finite": "the loss is {loss} in {precision}",
        "validation not finite": "the validation loss is {loss}",
        "mid-run": "{other_loss} FP32, {loss} AMP",
        "finite": "finite: {loss}",
        "same": "{loss}, FP32 {other_loss}: the same within the noise",
        "higher": "{loss}, FP32 {other_loss}: higher by more than the noise",
        "lower": "{loss}, FP32 {other_loss}: lower by more than the noise",
    },
    "weights": {
        "lost": "weights hold NaN or Inf{in_place}",
        "ranks differ": "the weights of {count} of the ranks differ",
        "finite": "finite",
    },
}
"""Each state's words."""


_SHORT: Mapping[tuple[Subject, str], str] = {
    **{("speed", state): "{ratio}" for state in ("faster", "slower", "same", "open")},
    ("speed", "first impression"): "~{ratio} provisional",
    ("speed", "disturbed"): "{ratio}, mean {mean}",
    **{("memory", state): "{ratio} the peak" for state in ("less", "same", "more")},
    ("limit", "launch"): "launch, little gain",
    ("overflow", "none recently"): "none in {whole} steps",
    ("overflow", "occasional"): "{count} of {whole} skipped",
    ("overflow", "frequent"): "{count} of {whole} skipped",
    ("overflow", "skipped mostly"): "{count} of {whole} skipped",
    ("overflow", "collapsing"): "collapses: {scale}",
    ("overflow", "forward overflow"): "forward pass{in_place}",
    ("overflow", "forward overflow once"): "forward pass{in_place}",
    ("forward", "fits"): "{short} of 65.5 k",
    ("float16", "survives"): "{share} underflows",
    ("float16", "outweighed"): "{share} underflows",
    ("float16", "kept"): "{share} underflows",
    ("float16", "underflows"): "{share} underflows",
    ("float16", "skipped mostly"): "{count} of {whole} skipped",
    ("agreement", "agree"): "{cosine}{at_place}",
    ("agreement", "differ"): "{cosine}{at_place}",
    ("agreement", "disagree"): "{cosine}{at_place}",
    ("loss", "not finite"): "{loss} in {precision}",
    ("loss", "validation not finite"): "validation {loss}",
    ("loss", "mid-run"): "{other_loss} → {loss}",
    ("loss", "same"): "same within noise",
    ("loss", "higher"): "{loss}, not {other_loss}",
    ("loss", "lower"): "{loss}, not {other_loss}",
    ("weights", "lost"): "NaN or Inf{in_place}",
    ("weights", "ranks differ"): "{count} ranks differ",
}
"""Where the words of a row have to be shorter."""


def _fields(finding: Finding) -> dict[str, str]:
    """What the words may name."""
    value, place = finding.value, finding.place
    return {
        "count": units.count(value),
        "whole": units.count(finding.whole),
        "ratio": units.ratio(value),
        "percent": units.percent(value),
        "share": units.share(value, 1),
        "short": units.short_count(value),
        "loss": units.loss(value),
        "mean": units.ratio(finding.low),
        "other_loss": units.loss(finding.low),
        "cosine": _cosine(value),
        "kind": "NaN" if value is not None and math.isnan(value) else "Inf",
        "scale": units.count(finding.loss_scale),
        "place": place,
        "in_place": f" in {place}" if place else "",
        "at_place": f" {place}" if place else "",
        "precision": precision_label(finding.precision),
        "about": finding.about,
    }


def _cosine(value: float | None) -> str:
    """Cut rather than rounded: 0.99896 is below 0.999."""
    if value is None or not math.isfinite(value):
        return units.NOT_AVAILABLE
    return f"{math.floor(value * 1e3) / 1e3:.3f}"


# ------------------------------------------------------------------------------ logs and pages


def answer_line(answer: AmpAnswer) -> str:
    """``AMP fp16: 1.65× the speed of FP32 (1.61 to 1.69); ✔ safe: gradients agree, no overflow``."""
    if answer.precision is None:
        return NO_AMP
    interval = interval_words(answer.of("speed"))
    worth = worth_words(answer) + (f" ({interval})" if interval else "")
    safe = f"{SIGNS[safety_grade(answer)]} {safe_words(answer)}"
    return f"{precision_label(answer.precision)}: {worth}; {safe}"


def evidence_rows(answer: AmpAnswer) -> list[tuple[Finding, str, str]]:
    """Of each measured finding: itself, its words, and what they are from."""
    return [
        (finding, _row_words(answer, finding), evidence_words(finding))
        for finding in answer.findings
        if finding.freshness != "never measured"
    ]


def _row_words(answer: AmpAnswer, finding: Finding) -> str:
    if finding.subject != "speed":
        return finding_words(finding)
    interval = interval_words(finding)
    return worth_words(answer) + (f" ({interval})" if interval else "")


def evidence_words(finding: Finding) -> str:
    """``step 1,204 in AMP fp16, scale 65,536, old``."""
    parts = []
    if finding.step is not None:
        where = f" in {precision_label(finding.precision)}" if finding.precision else ""
        parts.append(f"step {units.count(finding.step)}{where}")
    if finding.loss_scale is not None:
        parts.append(f"scale {units.count(finding.loss_scale)}")
    if finding.freshness == "old":
        parts.append(f"old, {units.count(finding.age_steps)} steps ago")
    return ", ".join(parts)


def short_evidence(finding: Finding) -> tuple[str, ...]:
    """What a finding of a single step is from, the longest first: ``step 1,204 fp16 at 65,536`` to its step.

    Empty of others: they are of many steps.
    """
    if finding.subject not in ("float16", "agreement", "forward") or finding.step is None:
        return ()
    step = f"step {units.count(finding.step)}"
    scale = "" if finding.loss_scale is None else f" at {units.count(finding.loss_scale)}"
    return f"{step} {finding.precision}{scale}", f"{step} {finding.precision}", step


def answer_lines(answer: AmpAnswer) -> list[str]:
    """The answer, and what it follows from: a line each."""
    rows = [
        f"  {SIGNS[finding.grade]} {LABELS[finding.subject]:<9}  {words}"
        + (f"  ({evidence})" if evidence else "")
        for finding, words, evidence in evidence_rows(answer)
    ]
    return [answer_line(answer), *rows]


def measured_rows(answer: AmpAnswer, lines: int) -> Sequence[Finding]:
    """The findings for a table of so many ``lines``: what is measured or worrying first, in their order."""
    order: list[Subject] = [
        "speed",
        "memory",
        "limit",
        "float16",
        "agreement",
        "overflow",
        "loss",
        "forward",
        "weights",
    ]
    urgent = {"error": 0, "warning": 1, "good": 2, "neutral": 2, "unknown": 3}
    ranked = sorted(
        (
            finding
            for finding in answer.findings
            if finding.subject not in ("forward", "weights") or _matters(finding)
        ),
        key=lambda finding: (urgent[finding.grade], order.index(finding.subject)),
    )
    kept = {finding.subject for finding in ranked[:lines]}
    return sorted(
        (finding for finding in answer.findings if finding.subject in kept),
        key=lambda finding: order.index(finding.subject),
    )


def _matters(finding: Finding) -> bool:
    """Whether a rarely interesting finding is worth a line of a small table."""
    return finding.grade in ("warning", "error") or (
        finding.subject == "forward" and finding.value is not None
    )
