"""What the words of a finding name: its numbers with their units, its modules, ranks and precisions."""

import math
from collections.abc import Callable, Mapping
from decimal import ROUND_DOWN, Decimal

from amptui.base import units
from amptui.diagnosis.labels import family_label, layer_label, parallel_words, precision_label, short_label
from amptui.telemetry.finding import Finding
from amptui.telemetry.health import LARGEST_FLOAT16

_NAMED_RANKS = 4
"""Ranks named in one line."""

MASKS_DIFFER = "dropout masks may differ"
"""Of an X-ray whose two passes drew random numbers."""


def times_speed(ratio: float | None, than: str) -> str:
    """``1.71× the speed of FP32``: the one phrase for it."""
    return f"{units.ratio(ratio)} the speed of {than}"


def interval_ends(low: float | None, high: float | None) -> str:
    """``1.68 to 1.74``; empty without an interval."""
    return " to ".join(units.ratio(end).removesuffix("×") for end in (low, high)) if low and high else ""


def ratio_words(value: float | None, low: float | None, high: float | None) -> str:
    """``1.61× (1.55 to 1.68)``; the ratio alone while there are too few blocks for an interval."""
    interval = interval_ends(low, high)
    return f"{units.ratio(value)} ({interval})" if interval else units.ratio(value)


def less_percent(saving: float) -> str:
    """``38% less``, ``12% more``, ``the same``."""
    amount = units.percent(abs(saving))
    return "the same" if amount == "0%" else f"{amount} {'less' if saving >= 0 else 'more'}"


def signed_bytes(change: float | None) -> str:
    """``-744 MiB``, ``+28.1 MiB``, ``the same``; empty if not measured."""
    if not change:
        return "" if change is None else "the same"
    return f"{'+' if change > 0 else ''}{units.number_of_bytes(round(change))}"


def _bytes(size: float | None) -> str:
    return units.number_of_bytes(None if size is None else round(size))


def _most(finding: Finding) -> str:
    """``2.6×``, or ``1.7× more`` where it runs already; empty while unknown."""
    most = finding.numbers.get("most")
    more = " more" if finding.precision == finding.about and finding.state != "input" else ""
    return "" if most is None else f"{most:.1f}×{more}"


def _can_speed_up(finding: Finding) -> str:
    if finding.precision == finding.about:
        return "forward and backward still take"
    most = " at most" if finding.about == "fp8" else ""  # FP8 has Linear layers only
    return f"{family_label(finding.about)} can speed up{most}"


def cosine_words(cosine: float | None, digits: int = 3) -> str:
    """``0.999``, cut rather than rounded: 0.99896 is below 0.999."""
    if cosine is None or not abs(cosine) <= 1:
        return units.loss(cosine)
    return str(Decimal(str(cosine)).quantize(Decimal(10) ** -digits, ROUND_DOWN))


def losses_apart(loss: float | None, other: float | None) -> str:
    """``0.024% apart``, relative to ``other``; both where that is no number."""
    difference = math.nan if loss is None or other is None else abs(loss - other)
    if not difference:
        return "equal"
    if not other or not math.isfinite(difference):
        return f"{units.loss(other)} and {units.loss(loss)}"
    share = units.share(difference, abs(other))
    return f"{units.percent(difference / abs(other)) if share == '100%' else share} apart"


def _signed_loss(value: float | None) -> str:
    return "" if value is None else f"{'−' if value < 0 else '+'}{units.loss(abs(value))}"


def _interval(finding: Finding) -> str:
    """``95% interval −0.11 to +0.10``; of several intervals with a digit more."""
    confidence, low, high = (finding.numbers.get(name) or 0.0 for name in ("confidence", "low", "high"))
    percent = units.percent(confidence, 0 if math.isclose(confidence, round(confidence, 2)) else 1)
    return f"{percent} interval {_signed_loss(low)} to {_signed_loss(high)}"


def _no_verdict(finding: Finding) -> str:
    loss, difference = finding.names["loss"], _signed_loss(finding.numbers.get("difference"))
    return f"final {loss} {difference}. No verdict" if difference else f"no verdict on the final {loss}"


def distance_words(largest: float) -> str:
    """``41,200, 1.6× below 65,504``; only the value where it is zero or not finite."""
    if not 0 < largest < math.inf:
        return units.loss(largest)
    room = math.log2(LARGEST_FLOAT16) - math.log2(largest)
    side = "above" if room < 0 else "below"
    return f"{units.loss(largest)}, {units.headroom(abs(room))} {side} 65,504"


def output_words(way: str, place: str, kind: str, dtype: str) -> str:
    """``the output of features.12.conv (Conv2d, float16)``, or its output gradient."""
    side = "the output of" if way == "forward" else "the output gradient of"
    return f"{side} {place} ({kind}, {dtype})"


def _output(finding: Finding) -> str:
    names = finding.names
    if "kind" not in names:
        return "the model"  # a journal that names no module
    return output_words(names["way"], finding.place, names["kind"], names["dtype"])


def _where(finding: Finding) -> str:
    """``Inf starts in features.12`` by a trace, else which module to check."""
    begins = f"{_kind_of_nonfinite(finding)} starts in" if "kind" in finding.names else "check"
    return f"{begins} {layer_label(finding.place)}" if finding.place else ""


def _layers(finding: Finding) -> str:
    """``all 43 layers``, ``3 of 43 layers``."""
    count, layers = finding.numbers.get("count") or 0, finding.numbers.get("layers") or 0
    part = f"all {layers:.0f}" if count == layers > 1 else f"{count:.0f} of {layers:.0f}"
    return f"{part} layers"


def _lost_names(finding: Finding) -> str:
    """``head.weight (+8)``."""
    more = (finding.numbers.get("lost") or 1) - 1
    return f"{finding.place} (+{units.count(more)})" if more else finding.place


def _ratio(finding: Finding, about: str) -> str:
    """``1.65×``; with what says so of a ratio without an interval."""
    ratio = finding.numbers.get("ratio")
    return units.ratio(ratio) if finding.numbers.get("high") else f"{about}{units.about_ratio(ratio)}"


def _zeros(finding: Finding) -> str:
    share = finding.numbers.get("zero_share")
    if not share:
        return "" if share is None else "no zeros, so nothing was flushed"
    return f"{units.share(share, 1)} zeros (true zeros or flushed)"


def _loss(value: float | None) -> str:
    """As other numbers, but ``NaN`` and ``Inf`` as PyTorch's users write them."""
    words = units.loss(value)
    return {"nan": "NaN", "inf": "Inf", "-inf": "-Inf"}.get(words, words)


def _kind_of_nonfinite(finding: Finding) -> str:
    largest = finding.numbers.get("largest")
    return "NaN" if largest is not None and math.isnan(largest) else "Inf"


NUMBERS: Mapping[str, Callable[[float | None], str]] = {
    **dict.fromkeys(("steps", "recent", "recent_skips", "in_a_row"), units.count),
    **dict.fromkeys(("gradients", "modules", "scale"), units.count),
    **dict.fromkeys(("loss", "other_loss"), _loss),
    "cosine": cosine_words,
    "difference": _signed_loss,
    "largest": units.short_count,
    "share": lambda share: "an unknown share" if share is None else units.share(share, 1),
    "worst_share": lambda share: "" if share is None else units.share(share, 1),
    **dict.fromkeys(("step_share", "waiting", "launching", "busy", "idle"), units.percent),
    **dict.fromkeys(("input_seconds", "launch_seconds", "device_seconds"), units.milliseconds),
    **dict.fromkeys(("stored", "other", "peak", "activations"), _bytes),
    "change": _bytes,
    "activations_change": signed_bytes,
    **dict.fromkeys(("seconds", "others_seconds"), units.milliseconds),
    **dict.fromkeys(("clock", "others_clock"), units.megahertz),
    "usual": units.count,
}
"""Numbers with their units. What is neither here nor in :data:`FIELDS` is a name of the finding."""


def _who(finding: Finding) -> str:
    """``rank 3``, ``ranks 1, 2`` or ``12 ranks (1, 2, 5, 6, ...)``."""
    ranks, count = finding.ranks, round(finding.numbers.get("count") or 0)
    if count == 1 and ranks:
        return f"rank {ranks[0]}"
    first_ranks = ", ".join(map(str, ranks[:_NAMED_RANKS]))
    if count <= min(len(ranks), _NAMED_RANKS):
        return f"ranks {first_ranks}"
    return f"{units.count(count)} ranks ({first_ranks}, ...)"


FIELDS: Mapping[str, Callable[[Finding], str]] = {
    "distance": lambda finding: distance_words(finding.numbers.get("largest") or 0.0),
    "ratio": lambda finding: _ratio(finding, "~"),
    "times": lambda finding: _ratio(finding, "about "),
    "ends": lambda finding: interval_ends(finding.numbers.get("low"), finding.numbers.get("high")),
    "range": lambda finding: " to ".join(units.ratio(finding.numbers[end]) for end in ("low", "high")),
    "memory": lambda finding: (
        f"{less_percent(1 - ratio)} memory" if (ratio := finding.numbers.get("memory_ratio")) else ""
    ),
    "counted_steps": lambda finding: units.counted(round(finding.numbers["steps"] or 0), "step"),
    "can": _can_speed_up,
    "most": _most,
    "less_percent": lambda finding: less_percent(1 - (finding.numbers.get("memory_ratio") or 0.0)),
    "apart": lambda finding: losses_apart(finding.numbers.get("loss"), finding.numbers.get("other_loss")),
    "layers": _layers,
    "bad_layers": lambda finding: f"{_layers(finding)}' gradients, first {layer_label(finding.place)}",
    "lost": _lost_names,
    "step": lambda finding: units.count(finding.step),
    "overflowing_scale": lambda finding: (  # of the histogram, which was at another one
        units.count(measured)
        if (measured := finding.numbers.get("measured_scale")) and measured != finding.loss_scale
        else ""
    ),
    "zeros": _zeros,
    "stacks": lambda finding: units.counted(round(finding.numbers.get("stacks") or 0), "rank"),
    "duration": lambda finding: units.duration(finding.numbers.get("seconds")),
    "held_clock": lambda finding: units.count(round(finding.numbers.get("clock") or 0)),
    "rank_scale": lambda finding: (
        "other loss scales"
        if (scale := finding.numbers.get("value")) is None
        else f"loss scale {units.count(scale)}"
    ),
    "minutes": lambda finding: f"{units.count(round((finding.numbers['epoch_seconds'] or 0) / 60))} min",
    # Names.
    "which": lambda finding: finding.names["loss"],
    "interval": _interval,
    "no_verdict": _no_verdict,
    "layer": lambda finding: layer_label(finding.place) if finding.place else "",
    "output": _output,
    "kind": _kind_of_nonfinite,
    "where": _where,
    "skipped_steps": lambda finding: (
        "{} of {} steps skipped".format(*map(units.count, (skips, finding.numbers["recent"])))
        if (skips := finding.numbers.get("recent_skips"))
        else ""
    ),
    "underflows": lambda finding: "underflows" if finding.precision == "fp16" else "would underflow",
    "than": lambda finding: precision_label(finding.names.get("than", "fp32")),
    "than_other": lambda finding: (  # FP32 need not be named
        "" if (than := finding.names.get("than", "fp32")) == "fp32" else precision_label(than)
    ),
    "label": lambda finding: precision_label(finding.about),
    "precision": lambda finding: precision_label(finding.precision) if finding.precision else "",
    "about": lambda finding: short_label(finding.about),
    "family": lambda finding: family_label(finding.about),
    "who": _who,
    "silent": lambda finding: _who(finding) if finding.ranks else "",
    "parallel": lambda finding: parallel_words(finding.names["parallel"]),
    "has": lambda finding: "has" if finding.numbers.get("count") == 1 else "have",
    "makes": lambda finding: (
        "made" if finding.state == "over" else "makes" if finding.numbers.get("count") == 1 else "make"
    ),
    # What is added where it holds.
    "overflowed": lambda finding: (
        "; the forward pass overflowed: use bf16 or FP32" if finding.precision == "fp16" else ""
    ),
    "caution": lambda finding: MASKS_DIFFER if finding.numbers.get("random") else "",
    "flushed": lambda finding: ": true zeros or flushed" if finding.happened else "",
}
