"""The page's card of what float8 keeps of each factor of its products."""

from amptui.base import units
from amptui.diagnosis import float8_words
from amptui.diagnosis.labels import precision_label
from amptui.records.findings import Float8Window
from amptui.reports.export.markup import Markup, card, details, paragraph, table, verdict
from amptui.telemetry.float8 import LayerFactor, is_zero, normal_share, ranked_factors, summary_of_float8

_HEAD = (
    *("factor", "format", "median channel or row off", "whole off", "zero", "flushed", "subnormal", "normal"),
    *("saturated", "scale", "top channel", "times the median channel"),
)


def float8_factors(window: Float8Window | None) -> Markup | None:
    """The newest window: what is lost, and a row of each factor, the worst first."""
    seen = None if window is None else summary_of_float8(window)
    if window is None or seen is None:
        return None
    note = f"Step {window.step:,}, {precision_label(window.precision)}, recipe {window.recipe}."
    factors = ranked_factors(window)
    return card(
        "factors in float8's range",
        paragraph(f"{note} {float8_words.BESIDE_FLOAT16}", "note"),
        verdict("warning" if seen.lossy else "info", "float8", float8_words.window_event(seen)),
        details(f"factors: {units.count(len(factors))}", table(_HEAD, map(_row, factors))),
    )


def _row(one: LayerFactor) -> tuple[str, ...]:
    factor = one.factor
    errors = [factor.judged_error, factor.error]
    shares = [
        *(factor.zeros, factor.flushed, factor.subnormal),
        *(normal_share(factor), factor.saturated),
    ]
    return (
        f"{one.layer or 'the model'} {factor.role}",
        float8_words.format_words(factor),
        *(units.NOT_AVAILABLE if is_zero(factor) else units.percent(error, 1) for error in errors),
        *(units.share(share, 1) for share in shares),
        float8_words.scale_words(factor),
        str(factor.channel),
        units.NOT_AVAILABLE if is_zero(factor) else units.short_count(factor.channel_excess),
    )
