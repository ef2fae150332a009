"""The page's cards on the answer on AMP, float16 histogram, module trace and X-ray."""

from amptui.base import units
from amptui.diagnosis import float16_verdicts, loss_scale
from amptui.diagnosis.amp_answer import amp_answer
from amptui.diagnosis.amp_finding import Grade
from amptui.diagnosis.answer_words import SIGNS, answer_line, evidence_rows, question_words
from amptui.diagnosis.labels import precision_label
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
        _finding(SIGNS[finding.grade], finding.grade, finding.subject, words, evidence)
        for finding, words, evidence in evidence_rows(answer)
    ]
    numbers = facts([*_gradients(numerics), *_scale(view)])
    outlook = paragraph(loss_scale.outlook(numerics.outlook), "note")
    line = paragraph(answer_line(answer), "verdict")
    return card(f"{question_words(answer.precision)}?", line, *said, numbers, outlook)


def _finding(sign: str, grade: Grade, label: str, words: str, evidence: str) -> Markup:
    severity = {"good": "info", "warning": "warning", "error": "error"}.get(grade, "")
    mark = element("span", sign, class_=f"sign {severity}")
    beside = element("span", f" {evidence}", class_="note") if evidence else None
    return element("p", mark, " ", element("b", label), " ", words, beside, class_="verdict")


def _gradients(numerics: NumericsView) -> list[tuple[str, str]]:
    if numerics.measured_step is None:
        return []
    at = f"at step {numerics.measured_step:,}"
    rows = [
        ("gradient norm", f"{units.loss(numerics.grad_norm)} {at}"),
        ("largest gradient", f"{units.loss(numerics.grad_max)} {at}"),
    ]
    if numerics.nonfinite_gradients:
        rows.append(("gradients with NaN or Inf", f"{units.count(numerics.nonfinite_gradients)} {at}"))
    if numerics.headroom is not None:
        how = float16_verdicts.at_scale(numerics.headroom_scale, hypothetical=numerics.hypothetical)
        least = float16_verdicts.least_headroom(numerics)
        rows.append(("headroom", f"{units.doublings(numerics.headroom)} doublings {how}; {least}"))
    return rows


def _scale(view: SessionView) -> list[tuple[str, str]]:
    scaler, judged = view.scaler, view.numerics.scaler
    if scaler.scale is None:
        return []
    return [
        ("loss scaler", loss_scale.scaler_state(judged)),
        ("loss scale", units.count(scaler.scale)),
        ("fp16 steps", f"{units.count(scaler.applied)} applied, {units.count(scaler.skipped)} skipped"),
        ("last change", loss_scale.last_change(scaler.last_change)),
    ]


def window(histogram: Float16Window | None) -> Markup | None:
    """The newest float16 histogram, and the parameters that lose the most."""
    if histogram is None or not histogram.counts:
        return None
    how = float16_verdicts.at_scale(histogram.loss_scale, hypothetical=histogram.hypothetical)
    note = f"All gradients of step {histogram.step:,} by exponent, {how}."
    if not histogram.hypothetical:
        note += " Gradients that float16 flushed are among the zeros."
    worst = [
        (
            parameter.name,
            units.share(underflowing_share(parameter), 1),
            *(units.share(count, parameter.elements - parameter.zeros) for count in counts),
        )
        for parameter in histogram.worst
        for counts in [(parameter.flushed, parameter.subnormal, parameter.overflowing)]
    ]
    losers = table(("parameter", "of its norm", "flushed", "subnormal", "overflow"), worst) if worst else None
    return card(
        "gradients in float16's range",
        paragraph(note, "note"),
        float16_histogram_svg.draw(histogram),
        details("parameters that lose the most", losers),
    )


def trace(traced: ModulesTraced | None) -> Markup | None:
    """The newest module trace: the module that overflowed first, and those closest to an overflow."""
    if traced is None or (traced.first is None and not traced.nearest):
        return None
    first = float16_verdicts.what_overflowed_first(traced)
    rows = [
        (float16_verdicts.place_of(module), float16_verdicts.distance(module)) for module in traced.nearest
    ]
    nearest = table(("module", "largest value"), rows) if rows else None
    return card(
        "largest values by module",
        paragraph(f"Step {traced.step:,}, {units.count(traced.modules)} modules.", "note"),
        verdict("warning", "first", first) if first else None,
        details("closest to 65,504", nearest),
    )


def xray(measured: XRayTaken | None) -> Markup | None:
    """The newest X-ray: both losses, memory, and every layer."""
    if measured is None:
        return None
    passes = float16_verdicts.losses_of(measured)
    losses = facts(
        [
            *((f"loss in {precision_label(name)}", units.loss(loss)) for name, loss in passes),
            ("memory", saved_for_backward(measured)),
            ("took", units.milliseconds(measured.seconds)),
        ]
    )
    head, row = (_FLOAT8_HEAD, _float8_layer) if measured.reference else (_LAYER_HEAD, _layer)
    layers = table(head, map(row, measured.layers)) if measured.layers else None
    between = [", ", chip(measured.reference)] if measured.reference else []
    return card(
        "X-ray",
        element(
            "p",
            f"Step {measured.step:,}, FP32",
            *between,
            " and ",
            chip(measured.precision),
            f". {float16_verdicts.layers_legend(measured)}.",
            class_="note",
        ),
        _xray_verdict(measured) if measured.reference else None,
        losses,
        details(f"layers: {units.count(len(measured.layers))}", layers),
    )


def _xray_verdict(measured: XRayTaken) -> Markup:
    judged = float16_verdicts.xray_verdict(measured)
    return verdict(judged.severity, "verdict", judged.text)


_LAYER_HEAD: tuple[str, ...] = ("layer", "kind", "cosine", "relative error", "lost", "output")

_FLOAT8_HEAD: tuple[str, ...] = (
    *("layer", "kind", "runs in", "cosine", "in bf16", "to bf16"),
    *("relative error", "error in bf16", "error to bf16", "lost"),
)


def _float8_layer(layer: LayerAgreement) -> tuple[str, ...]:
    reference = layer.reference
    cosines = [layer.cosine, None, None]
    errors = [layer.relative_error, None, None]
    if reference is not None:
        cosines[1:] = reference.cosine, reference.added_cosine
        errors[1:] = reference.relative_error, reference.added_error
    return (
        layer.name or "the model",
        layer.kind,
        "float8" if layer.in_float8 else layer.output_dtype,
        *(float16_verdicts.cosine_words(cosine, 5) for cosine in cosines),
        *(units.loss(error) for error in errors),
        units.share(layer.lost, 1),
    )


def _layer(layer: LayerAgreement) -> tuple[str, ...]:
    return (
        layer.name or "the model",
        layer.kind,
        float16_verdicts.cosine_words(layer.cosine, 5),
        units.loss(layer.relative_error),
        units.share(layer.lost, 1),
        layer.output_dtype,
    )
