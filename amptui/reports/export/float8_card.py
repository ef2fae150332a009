"""The page's card of what float8 keeps of each operand of its products."""

from amptui.base import units
from amptui.diagnosis import float8_words
from amptui.diagnosis.labels import precision_label
from amptui.records.findings import Float8Window
from amptui.reports.export.markup import Markup, card, details, paragraph, table, verdict
from amptui.telemetry.float8 import LayerOperand, is_zero, normal_share, ranked_operands, summary_of_float8

_HEAD = (
    *(
        "operand",
        "format",
        "median channel or row off",
        "whole off",
        "zero",
        "flushed",
        "subnormal",
        "normal",
    ),
    *("saturated", "scale", "top channel", "times the median channel"),
)


def float8_operands(window: Float8Window | None) -> Markup | None:
    """The newest window: what is lost, and a row of each operand, the worst first."""
    seen = None if window is None else summary_of_float8(window)
    if window is None or seen is None:
        return None
    note = f"Step {window.step:,}, {precision_label(window.precision)}, recipe {window.recipe}."
    operands = ranked_operands(window)
    return card(
        "operands in float8's range",
        paragraph(f"{note} {float8_words.BESIDE_FLOAT16}", "note"),
        verdict("warning" if seen.lossy else "info", "float8", float8_words.window_event(seen)),
        details(f"operands: {units.count(len(operands))}", table(_HEAD, map(_row, operands))),
    )


def _row(one: LayerOperand) -> tuple[str, ...]:
    operand = one.operand
    errors = [operand.judged_error, operand.error]
    shares = [
        *(operand.zeros, operand.flushed, operand.subnormal),
        *(normal_share(operand), operand.saturated),
    ]
    return (
        f"{one.layer or 'the model'} {operand.role}",
        float8_words.format_words(operand),
        *(units.NOT_AVAILABLE if is_zero(operand) else units.percent(error, 1) for error in errors),
        *(units.share(share, 1) for share in shares),
        float8_words.scale_words(operand),
        str(operand.channel),
        units.NOT_AVAILABLE if is_zero(operand) else units.short_count(operand.channel_excess),
    )
