"""The answer on AMP or FP8 in words: short ones for a line and a table, sentences for logs and pages."""

import math
from collections.abc import Mapping, Sequence

from amptui.base import units
from amptui.diagnosis.amp_answer import AmpAnswer
from amptui.diagnosis.amp_finding import Finding, Grade, Measurement, Subject
from amptui.diagnosis.float16_verdicts import cosine_words, underflow_words
from amptui.diagnosis.labels import family_label, layer_label, precision_label, short_label
from amptui.diagnosis.speed import (
    NO_STEPS,
    about_speed,
    interval_ends,
    less_memory,
    less_percent,
    speed_of,
)
from amptui.records.run import FP8_PRECISIONS, base_precision, reference_precision

SIGNS: Mapping[Grade, str] = {"good": "✔", "neutral": "·", "warning": "⚠", "error": "✖", "unknown": "?"}

NO_AMP = "AMP changes nothing here: weights or layers are not float32"
_NO_VERDICT = {
    "mixed": "no verdict on AMP, because steps mix precisions",
    "unknown": "no verdict on AMP, because the precision of the steps is unknown",
}

# ------------------------------------------------------------------------------ the answer in short


def question_words(precision: str | None) -> str:
    """``is AMP worth it, is it safe``: what is answered, with the precision in question."""
    return f"is {_short_family(precision)} worth it, is it safe"


def no_amp_words(precision: str | None) -> str:
    """Why AMP is not in question where steps run in ``precision``."""
    return _NO_VERDICT.get(precision or "", NO_AMP)


def _short_family(precision: str | None) -> str:
    """``AMP`` or ``FP8``, where emulated is said beside it; a forged journal's own names are neither."""
    return "FP8" if base_precision(precision or "") in FP8_PRECISIONS else "AMP"


def worth_words(answer: AmpAnswer) -> str:
    """``1.65× the speed of FP32``, or why that is not known."""
    speed = answer.of("speed")
    words = _speed_words(speed, than=precision_label(answer.baseline))
    limit = answer.of("limit").state
    if speed.state == "same" and limit in ("input", "launch"):
        return f"{words}: {limit}-bound"
    return words


def shortest_worth_words(answer: AmpAnswer) -> str:
    """``1.65×``; ``no speed`` of emulated FP8, whose label beside it says emulated."""
    speed = answer.of("speed")
    return "no speed" if speed.state == "emulated" else short_words(speed)


def worth_and_interval(answer: AmpAnswer) -> str:
    """``1.65× the speed of FP32 (1.61 to 1.69)``."""
    interval = interval_words(answer.of("speed"))
    return worth_words(answer) + (f" ({interval})" if interval else "")


def interval_words(finding: Finding) -> str:
    """``1.61 to 1.69``; empty without an interval."""
    return interval_ends(finding.low, finding.high) if finding.subject == "speed" else ""


def _speed_words(speed: Finding, *, than: str) -> str:
    if speed.state in ("faster", "slower", "same", "open"):
        return speed_of(speed.value or 1.0, speed.low, speed.high, than).words
    return _NO_SPEED.get(speed.state, NO_STEPS).format(speed=about_speed(speed.value, than), than=than)


_NO_SPEED = {
    "disturbed": "step times too uneven",
    "first impression": "{speed}, provisional",
    "never ran": "never tried here",
    "reference never ran": "never compared with {than}",
    "too few steps": "too few steps for a speed",
    "unsupported": "not supported here",
    "observed": "needs watch() in the script",
    "emulated": "says nothing about speed",
}


def safe_forms(answer: AmpAnswer) -> Sequence[str]:
    """``safe: gradients agree, no overflow``, or the trouble; then shorter forms, the longest first."""
    trouble, doubt = answer.trouble, answer.doubt
    if trouble is not None:
        return finding_words(trouble), f"{trouble.subject} {short_words(trouble)}"
    if doubt is not None:
        ago = f"{units.counted(doubt.age_steps or 0, 'step')} ago"
        return (f"{_WAS[doubt.state].format(**_fields(doubt))}, {ago}",)
    match answer.safety:
        case "safe":
            skips = answer.of("overflow")
            skips_words = "no overflow" if skips.state == "none" else finding_words(skips)
            return f"safe: gradients agree, {skips_words}", "safe: gradients agree", "safe"
        case "no trouble":
            return f"no trouble in {units.count(answer.steps)} steps", "no trouble"
        case "would be safe":
            agrees = answer.of("agreement").grade == "good"
            foretold = "gradients agree" if agrees else finding_words(answer.of("float16"))
            state = "safe so far" if answer.steps else "would be safe"
            return f"{state}: {foretold}", state
    return ("safety not measured yet",)


_WAS = {
    "underflows": "{share} of the norm underflowed",
    "all zero": "all gradients were zero",
    "AMP loss not finite": "the loss was finite in FP32 only",
    "not finite": "gradients were NaN or Inf{in_place}",
    "loses": "FP8 lost most of the {place}",
    "differ": "gradients differed: {cosine}{in_place}",
    "disagree": "gradients disagreed: {cosine}{in_place}",
}
"""Troubles that are old."""


def safety_grade(answer: AmpAnswer) -> Grade:
    """The sign before :func:`safe_forms`."""
    if answer.trouble is not None:
        return answer.trouble.grade
    return "unknown" if answer.safety == "unknown" else "good"


def next_measurement(answer: AmpAnswer) -> tuple[Measurement, str]:
    """What would tell most now, and what for; empty if nothing is missing.

    A trouble's own measurement comes first; then the gradients, the interval, a try.
    """
    if answer.trouble is not None:
        what_for = {"trace": "names the module", "x-ray": "compares again", "histogram": "shows it"}
        return answer.trouble.measured_by, what_for.get(answer.trouble.measured_by, "")
    if answer.doubt is not None:
        return answer.doubt.measured_by, "measures again"
    speed, agreement = answer.of("speed"), answer.of("agreement")
    if speed.measured_by == "precision" and speed.freshness == "never measured":
        other = "it" if speed.state == "never ran" else precision_label(answer.baseline)
        return "precision", f"tries {other}"
    if agreement.freshness != "fresh":
        return "x-ray", "compares gradients"
    if speed.high is None and speed.measured_by == "comparison":
        return "comparison", "measures an interval"
    return "", ""


# ------------------------------------------------------------------------------------ one finding


def finding_words(finding: Finding) -> str:
    """A finding in a few words, without its label."""
    if finding.subject == "speed":
        return _speed_words(finding, than=precision_label(reference_precision(finding.about)))
    return _WORDS[finding.subject].get(finding.state, "not measured").format(**_fields(finding))


def short_words(finding: Finding) -> str:
    """The same for a narrow table with labels: ``1.65×``, ``0.999 in features.12``."""
    words = _SHORT.get((finding.subject, finding.state))
    return finding_words(finding) if words is None else words.format(**_fields(finding))


_SKIPS = {
    "none": "none in {whole} steps",
    "none recently": "none in the last {whole} steps",
    "occasional": "{count} of the last {whole} steps skipped",
    "frequent": "{count} of the last {whole} steps skipped",
    "calibrating": "{count} skipped, calibrating",
    "skipped mostly": "{count} of {whole} fp16 steps skipped",
    "collapsing": "the loss scale collapses: {scale}",
    "collapsed": "the loss scale collapsed in fp16: {scale}",
    "forward overflow": "the forward pass overflowed{in_place}",
    "forward overflow once": "the forward pass overflowed{in_place}",
    **dict.fromkeys(("loss not finite", "loss not finite once"), "the loss is NaN or Inf{in_place}"),
    "bad input": "the model's input is NaN or Inf: look at the data",
    "bad weights": "the weights or buffers were NaN or Inf already",
}
"""What a loss scaler did."""

_WORDS: Mapping[Subject, Mapping[str, str]] = {
    "speed": {},
    "memory": {
        **dict.fromkeys(("less", "more", "same"), "{less_memory}"),
        "emulated": "says nothing about memory",
    },
    "limit": {
        "emulated": "says nothing about the limit",
        "compute": "compute-bound: {can_speed_up} {percent} of the step",
        "input": "input-bound: {percent} waits for data",
        "launch": "launch-bound: little to gain",
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
        "would overflow": "fp16 would overflow in {place}",
        "fits": "largest {short} of 65,504",
        "unknown": "nothing overflowed",
    },
    "float16": {
        **_SKIPS,
        **dict.fromkeys(("survives", "outweighed", "kept"), "{underflow}"),
        "underflows": "{underflow}: use bf16",
        "not finite": "NaN or Inf in {precision} already",
        "all zero": "all gradients are zero",
        "overflow": "overflow at {scale}",
        "empty": "no gradients",
    },
    "agreement": {
        "agree": "worst {cosine}{in_place}",
        "differ": "gradients differ: {cosine}{in_place}",
        "disagree": "gradients disagree: {cosine}{in_place}",
        "as in reference": "{cosine}{in_place}, no worse than bf16",
        "FP32 loss not finite": "the loss is not finite in FP32 either",
        "AMP loss not finite": "the loss is finite in FP32 only",
        "overflow": "NaN or Inf{in_place}",
        "not finite": "NaN or Inf{in_place}",
        "nothing to compare": "no gradients to compare",
    },
    "loss": {
        "not finite": "the loss is {loss}{in_precision}",
        "dropped": "the loss of a batch was {loss}: no step was made of it",
        "validation not finite": "the validation loss is {loss}",
        "mid-run": "{other_loss} {reference}, {loss} {family}",
        "finite": "finite: {loss}",
        "same": "{loss}, {reference} {other_loss}: the same within noise",
        "higher": "{loss}, {reference} {other_loss}: higher by more than the noise",
        "lower": "{loss}, {reference} {other_loss}: lower by more than the noise",
    },
    "weights": {
        "lost": "weights hold NaN or Inf{in_place}",
        "buffers lost": "buffers hold NaN or Inf{in_place}",
        "bad input": "the model's input and its weights hold NaN or Inf: look at the data",
        "ranks differ": "the weights differ on {ranks}",
        "finite": "finite",
    },
}
"""Each state's words."""


_SHORT: Mapping[tuple[Subject, str], str] = {
    **{("speed", state): "{ratio}" for state in ("faster", "slower", "same", "open")},
    ("speed", "first impression"): "{ratio} provisional",
    ("speed", "disturbed"): "uneven steps",
    ("speed", "observed"): "needs watch()",
    **{(subject, "emulated"): "emulated" for subject in ("speed", "memory", "limit")},
    **{("memory", state): "{less_percent}" for state in ("less", "more", "same")},
    ("limit", "compute"): "compute-bound: {percent}",
    ("limit", "input"): "input-bound: {percent}",
    ("limit", "launch"): "launch-bound",
    ("overflow", "none recently"): "none in {whole} steps",
    ("overflow", "occasional"): "{count} of {whole} skipped",
    ("overflow", "frequent"): "{count} of {whole} skipped",
    ("overflow", "skipped mostly"): "{count} of {whole} skipped",
    ("overflow", "collapsing"): "collapses: {scale}",
    **{(subject, "collapsed"): "collapsed in fp16: {scale}" for subject in ("overflow", "float16")},
    ("overflow", "forward overflow"): "forward pass{in_place}",
    ("overflow", "forward overflow once"): "forward pass{in_place}",
    ("forward", "fits"): "{short} of 65.5 k",
    **{
        ("float16", state): "{share} underflows" for state in ("survives", "outweighed", "kept", "underflows")
    },
    ("float16", "skipped mostly"): "{count} of {whole} skipped",
    **{
        ("agreement", state): "{cosine}{in_place}"
        for state in ("agree", "differ", "disagree", "as in reference")
    },
    ("loss", "not finite"): "{loss}{in_precision}",
    ("loss", "dropped"): "{loss}, in no step",
    ("loss", "validation not finite"): "validation {loss}",
    ("loss", "mid-run"): "{other_loss} → {short_family} {loss}",
    ("loss", "same"): "same within noise",
    ("loss", "higher"): "{loss}, not {other_loss}",
    ("loss", "lower"): "{loss}, not {other_loss}",
    ("weights", "lost"): "NaN or Inf{in_place}",
    ("weights", "ranks differ"): "differ on {ranks}",
}
"""Where the words of a row have to be shorter."""


def _fields(finding: Finding) -> dict[str, str]:
    """What the words may name."""
    value, place = finding.value, finding.place
    family = family_label(finding.about)
    least = " at most" if finding.about in FP8_PRECISIONS else ""  # only Linear layers are in float8
    saving = 1 - (1.0 if value is None else value)
    return {
        "count": units.count(value),
        "ranks": "1 rank" if value == 1 else f"{units.count(value)} ranks",
        "whole": units.count(finding.whole),
        "ratio": units.ratio(value) if finding.high else f"~{units.about_ratio(value)}",
        "percent": units.percent(value),
        "tenths": units.percent(value, 1),
        "share": units.share(value, 1),
        "underflow": underflow_words(value, finding.loss_scale),
        "less_memory": less_memory(saving),
        "less_percent": less_percent(saving),
        "short": units.short_count(value),
        "loss": units.loss(value),
        "other_loss": units.loss(finding.low),
        "cosine": cosine_words(value),
        "kind": "NaN" if value is not None and math.isnan(value) else "Inf",
        "scale": units.count(finding.loss_scale),
        "place": place,
        "in_place": f" in {layer_label(place)}" if place else "",
        "family": family,
        "short_family": _short_family(finding.about),
        "can_speed_up": f"{family} can speed up{least}",
        "reference": precision_label(reference_precision(finding.about)),
        "precision": precision_label(finding.precision),
        "in_precision": f" in {precision_label(finding.precision)}" if finding.precision else "",
        "about": short_label(finding.about),
    }


# ------------------------------------------------------------------------------ logs and pages


def answer_line(answer: AmpAnswer) -> str:
    """``AMP fp16: 1.65× the speed of FP32 (1.61 to 1.69); ✔ safe: gradients agree, no overflow``."""
    if answer.precision is None:
        return no_amp_words(answer.baseline)
    safe = f"{SIGNS[safety_grade(answer)]} {safe_forms(answer)[0]}"
    if answer.headline_precision != answer.precision:
        return f"{precision_label(answer.headline_precision)}: {safe}"
    return f"{precision_label(answer.precision)}: {worth_and_interval(answer)}; {safe}"


def evidence_rows(answer: AmpAnswer) -> list[tuple[Finding, str, str]]:
    """Of each measured finding: itself, its words, and what they are from."""
    return [
        (
            finding,
            worth_and_interval(answer) if finding.subject == "speed" else finding_words(finding),
            evidence_words(finding),
        )
        for finding in answer.findings
        if finding.freshness != "never measured"
    ]


def evidence_words(finding: Finding) -> str:
    """``step 1,204 in AMP fp16 at loss scale 65,536; old: 300 steps ago``; no scale if the words name it."""
    parts = []
    if finding.step is not None:
        of_a_scale = ("survives", "outweighed", "kept", "underflows", "overflow")
        names_scale = finding.subject == "float16" and finding.state in of_a_scale
        scale = None if names_scale else finding.loss_scale
        parts.append(measured_at(finding.step, finding.precision, scale))
    if finding.freshness == "old":
        parts.append(age_words(finding.age_steps or 0))
    return "; ".join(parts)


def measured_at(step: int, precision: str, loss_scale: float | None = None) -> str:
    """``step 1,204 in AMP fp16 at loss scale 65,536``: what a measurement of one step is of."""
    where = f" in {precision_label(precision)}" if precision else ""
    scale = "" if loss_scale is None else f" at loss scale {units.count(loss_scale)}"
    return f"step {units.count(step)}{where}{scale}"


def age_words(steps: int) -> str:
    """``old: 300 steps ago``."""
    return f"old: {units.counted(steps, 'step')} ago"


def short_evidence(finding: Finding) -> tuple[str, ...]:
    """What a finding of one step is from, the longest first: ``step 1,204 fp16 at scale 65,536`` to its step.

    Empty of others: they are of many steps.
    """
    single = ("float16", "agreement", "forward")
    lasting = finding.subject in ("loss", "weights") and finding.grade in ("warning", "error")
    if not (finding.subject in single or lasting) or finding.step is None or not finding.precision:
        return ()
    step = f"step {units.count(finding.step)}"
    scale = "" if finding.loss_scale is None else f" at scale {units.count(finding.loss_scale)}"
    precision = short_label(finding.precision)
    return f"{step} {precision}{scale}", f"{step} {precision}", step


def answer_lines(answer: AmpAnswer) -> list[str]:
    """The answer, and what it follows from: a line each."""
    rows = [
        f"  {SIGNS[finding.grade]} {finding.subject:<9}  {words}" + (f"  ({evidence})" if evidence else "")
        for finding, words, evidence in evidence_rows(answer)
    ]
    return [answer_line(answer), *rows]


def measured_rows(answer: AmpAnswer, lines: int) -> Sequence[Finding]:
    """The findings for a table of so many ``lines``: what is measured or worrying first, in their order."""
    order: tuple[Subject, ...] = (
        *("speed", "memory", "limit", "float16", "agreement"),
        *("overflow", "loss", "forward", "weights"),
    )
    urgency = {"error": 0, "warning": 1, "good": 2, "neutral": 2, "unknown": 3}
    matters = {"weights": False, "forward": answer.of("forward").value is not None}  # others always do
    ranked = sorted(
        (one for one in answer.findings if urgency[one.grade] < 2 or matters.get(one.subject, True)),
        key=lambda finding: (urgency[finding.grade], order.index(finding.subject)),
    )
    return sorted(ranked[:lines], key=lambda finding: order.index(finding.subject))
