"""The page's cards on the answer on AMP, float16 histogram, module trace and X-ray."""

import math
from collections.abc import Mapping

from amptui.base import units
from amptui.diagnosis import loss_scale
from amptui.diagnosis.amp_answer import amp_answer
from amptui.diagnosis.amp_finding import Grade
from amptui.diagnosis.answer_words import LABELS, SIGNS, answer_line, evidence_rows
from amptui.diagnosis.float16_verdicts import at_scale, distance, place_of, what_overflowed_first
from amptui.diagnosis.memory_use import saved_for_backward
from amptui.records.findings import Float16Window, LayerAgreement, ModulesTraced, XRayTaken
from amptui.reports.export import float16_histogram_svg
from amptui.reports.export.markup import (
    Markup,
    card,
    chip,
    details,
    element,
    facts,
    paragraph,
    table,
    verdict,
)
from amptui.telemetry.underflow import underflowing_share
from amptui.telemetry.view import NumericsView, SessionView


def conclusions(view: SessionView) -> Markup | None:
    """The answer on AMP, each finding with what it is from, and the numbers behind them."""
    if view.run is None:
        return None
    answer, numerics = amp_answer(view), view.numerics
    said = [
        _finding(SIGNS[finding.grade], finding.grade, LABELS[finding.subject], words, evidence)
        for finding, words, evidence in evidence_rows(answer)
    ]
    numbers = facts([*_gradients(numerics), *_scale(view)])
    outlook = paragraph(loss_scale.outlook(numerics.outlook), "note")
    line = paragraph(answer_line(answer), "verdict")
    return card("is AMP worth it, is it safe?", line, *said, numbers, outlook)


def _finding(sign: str, grade: Grade, label: str, words: str, evidence: str) -> Markup:
    mark = element("span", sign, class_=f"sign {_SIGN_CLASSES[grade]}")
    beside = element("span", f" {evidence}", class_="note") if evidence else None
    return element("p", mark, " ", element("b", label), " ", words, beside, class_="verdict")


_SIGN_CLASSES: Mapping[Grade, str] = {
    "good": "info",
    "neutral": "",
    "warning": "warning",
    "error": "error",
    "unknown": "",
}
"""The page's classes are of severities."""


def _gradients(numerics: NumericsView) -> list[tuple[str, str]]:
    if numerics.measured_step is None:
        return []
    at = f"at step {numerics.measured_step:,}"
    found = [
        ("gradient norm", f"{units.loss(numerics.grad_norm)} {at}"),
        ("largest gradient", f"{units.loss(numerics.grad_max)} {at}"),
    ]
    if numerics.nonfinite_gradients:
        found.append(("gradients with NaN or Inf", f"{units.count(numerics.nonfinite_gradients)} {at}"))
    if numerics.headroom is not None:
        how = at_scale(numerics.headroom_scale, hypothetical=numerics.hypothetical)
        found.append(
            ("headroom", f"{units.doublings(numerics.headroom)} doublings {how}; {_least(numerics)}")
        )
    return found


def _least(numerics: NumericsView) -> str:
    if numerics.min_headroom == -math.inf:
        return "overflowed recently"
    return f"recent minimum {units.doublings(numerics.min_headroom)}"


def _scaler(numerics: NumericsView) -> str:
    state = loss_scale.scaler_state(numerics.scaler)
    return f"{state}: {loss_scale.scaler_rule(numerics.scaler)}"


def _scale(view: SessionView) -> list[tuple[str, str]]:
    scaler = view.scaler
    if scaler.scale is None:
        return []
    return [
        ("loss scaler", _scaler(view.numerics)),
        ("loss scale", units.count(scaler.scale)),
        ("fp16 steps", f"{units.count(scaler.applied)} applied, {units.count(scaler.skipped)} skipped"),
        ("last change", loss_scale.last_change(scaler.last_change)),
    ]


def window(found: Float16Window | None) -> Markup | None:
    """The newest float16 histogram, and the parameters that lose the most."""
    if found is None or not found.counts:
        return None
    how = at_scale(found.loss_scale, hypothetical=found.hypothetical)
    told = f"All gradients of step {found.step:,} by exponent, {how}."
    hidden = "" if found.hypothetical else " Gradients that float16 flushed are among the zeros."
    worst = [
        (
            parameter.name,
            units.share(underflowing_share(parameter), 1),
            *(units.share(count, parameter.elements - parameter.zeros) for count in counts),
        )
        for parameter in found.worst
        for counts in [(parameter.flushed, parameter.subnormal, parameter.overflowing)]
    ]
    losers = table(("parameter", "of its norm", "flushed", "subnormal", "overflow"), worst) if worst else None
    return card(
        "gradients in float16's range",
        paragraph(told + hidden, "note"),
        float16_histogram_svg.draw(found),
        details("parameters that lose the most", losers),
    )


def trace(found: ModulesTraced | None) -> Markup | None:
    """The newest module trace: the module that overflowed first, and those closest to an overflow."""
    if found is None or (found.first is None and not found.nearest):
        return None
    first = what_overflowed_first(found)
    rows = [(place_of(module), distance(module)) for module in found.nearest]
    nearest = table(("module", "largest value"), rows) if rows else None
    return card(
        "largest values by module",
        paragraph(f"Step {found.step:,}, {units.count(found.modules)} modules.", "note"),
        verdict("warning", "first", first) if first else None,
        details("closest to 65,504", nearest),
    )


def xray(found: XRayTaken | None) -> Markup | None:
    """The newest X-ray: both losses, memory, and every layer."""
    if found is None:
        return None
    losses = facts(
        [
            ("loss in FP32", units.loss(found.loss_fp32)),
            ("loss in AMP", units.loss(found.loss_amp)),
            ("memory", saved_for_backward(found)),
            ("took", units.milliseconds(found.seconds)),
        ]
    )
    head = ("layer", "kind", "cosine", "relative error", "lost", "output")
    layers = table(head, map(_layer, found.layers)) if found.layers else None
    note = "The same batch and weights in FP32 and in AMP: how closely each layer's gradients agree."
    return card(
        "X-ray",
        element("p", f"Step {found.step:,}, FP32 and ", chip(found.precision), ". ", note, class_="note"),
        losses,
        details(f"layers: {units.count(len(found.layers))}", layers),
    )


def _layer(layer: LayerAgreement) -> tuple[str, ...]:
    cosine = units.NOT_AVAILABLE if layer.cosine is None else f"{layer.cosine:.5f}"
    return (
        layer.name or "the model",
        layer.kind,
        cosine,
        units.loss(layer.relative_error),
        units.share(layer.lost, 1),
        layer.output_dtype,
    )
