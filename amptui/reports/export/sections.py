"""The top of the page: outcome, main figures, AMP's gain, and where time and memory go."""

from collections.abc import Callable, Mapping

from amptui.base import units
from amptui.diagnosis.bottleneck import bound_words, evidence, limit_beside
from amptui.diagnosis.event_words import run_ended
from amptui.diagnosis.labels import SYNTHETIC, family_label, precision_label
from amptui.diagnosis.speed import (
    NO_STEPS,
    NOT_MEASURED,
    explanations,
    interval_ends,
    less_or_more,
    of_steps,
    peak_words,
    provisional_lines,
    result_cards,
    result_of_the_pair,
    uncounted,
    why_no_ratio,
)
from amptui.diagnosis.tensor_cores import flops_hints, mfu_words, rate_words
from amptui.records.findings import MemoryBreakdown
from amptui.records.run import RunFailed, RunFinished, reference_precision
from amptui.reports.export.markup import Markup, card, chip, element, paragraph, table
from amptui.reports.export.recorded_run import RecordedRun
from amptui.telemetry.comparison import ordered
from amptui.telemetry.view import PrecisionFlops, PrecisionStats, PrecisionTiming, SessionView

_WITHOUT_AN_END: Mapping[str, str] = {
    "starting": NO_STEPS,
    "running": "unfinished",
    "paused": "paused",
}
"""The badge of a journal without an end: the run crashed, or is still running."""


def header(recording: RecordedRun) -> Markup:
    """What was trained where, how it ended, and in which precision."""
    view, run = recording.view, recording.view.run
    badges = [_ending(view)]
    if view.precision:
        badges.append(chip(view.precision))
    if run is None:
        return element("header", element("h1", recording.name), element("p", *badges, class_="badges"))
    if not run.data.real:
        badges.append(element("span", f"⚠ {SYNTHETIC}", class_="badge warning"))
    where = element("p", f"{run.device_name} · {run.data.name}", class_="where")
    return element("header", element("h1", run.model), where, element("p", *badges, class_="badges"))


def _ending(view: SessionView) -> Markup:
    outcome = view.outcome
    if isinstance(outcome, RunFailed):
        return element("span", f"✖ {run_ended(outcome)}", class_="badge error")
    if isinstance(outcome, RunFinished):
        sign, kind = ("✖", "error") if outcome.unwatched else ("✔", "good")
        return element("span", f"{sign} {run_ended(outcome)}", class_=f"badge {kind}")
    text = _WITHOUT_AN_END[view.state]
    if view.step:
        text += f" at step {view.step:,}"
    return element("span", text, class_="badge")


def figures(recording: RecordedRun) -> Markup:
    """The main figures, each with its context."""
    view = recording.view
    tiles = [("loss, smoothed", units.loss(view.smoothed_loss), _best(view))]
    tiles += _validation(recording)
    tally = view.comparison
    tiles += _speed(view)
    if tally.memory_saving is not None:
        saving = units.percent(abs(tally.memory_saving))
        tiles.append(
            (precision_label(tally.low or ""), saving, f"{less_or_more(tally.memory_saving)} peak memory")
        )
    tiles.append(("steps", units.count(view.step), f"{units.count(view.scaler.skipped)} skipped in fp16"))
    tiles.append(("errors", units.count(view.errors), units.counted(view.warnings, "warning")))
    items = [
        element("li", element("small", label), element("strong", value), element("small", beside))
        for label, value, beside in tiles
    ]
    return element("ul", *items, class_="figures")


def _best(view: SessionView) -> str:
    if view.best_loss is None or view.best_loss_step is None:
        return ""
    return f"best {units.loss(view.best_loss)} at step {view.best_loss_step:,}"


def _speed(view: SessionView) -> list[tuple[str, str, str]]:
    """The A/B result with its interval; else the ratio of the medians."""
    tally, measured = view.comparison, result_of_the_pair(view)
    speedup = tally.speedup if measured is None else measured.speedup
    if speedup is None:
        return []
    than = f"the speed of {precision_label(tally.baseline or '')}"
    if measured is not None and (interval := interval_ends(measured.speedup_low, measured.speedup_high)):
        than += f" ({interval})"
    return [(precision_label(tally.low or ""), units.ratio(speedup), than)]


def _validation(recording: RecordedRun) -> list[tuple[str, str, str]]:
    last = recording.validations[-1].validation if recording.validations else None
    if last is None:
        return []
    accuracy = "" if last.accuracy is None else f"accuracy {units.percent(last.accuracy, 1)}"
    return [("validation loss", units.loss(last.loss), accuracy)]


_ROWS: tuple[tuple[str, Callable[[PrecisionStats], str]], ...] = (
    ("median step", lambda stats: of_steps(stats, units.milliseconds(stats.median_step_seconds))),
    ("samples", lambda stats: of_steps(stats, units.rate(stats.samples_per_second))),
    ("peak allocated", lambda stats: peak_words(stats, units.NOT_AVAILABLE)),
    ("waiting for data", lambda stats: units.percent(stats.data_fraction, 1)),
    ("GPU utilization", lambda stats: units.percent(_of_one(stats.utilization_percent))),
    ("last loss", lambda stats: units.loss(stats.last_loss)),
    ("skipped", lambda stats: units.count(stats.skipped)),
    ("steps counted", lambda stats: units.count(stats.steps)),
)


_FLOPS_ROWS: tuple[tuple[str, Callable[[PrecisionFlops], str]], ...] = (
    ("achieved", rate_words),
    ("MFU", mfu_words),
)


def _of_one(percent: float | None) -> float | None:
    return None if percent is None else percent / 100


def comparison(view: SessionView) -> Markup | None:
    """The precisions side by side, and the gain of AMP or FP8, or why it is unknown."""
    tally = view.comparison
    if not tally.rows:
        return None
    columns = ordered(tally)
    rows = [[label, *map(cell, columns)] for label, cell in _ROWS]
    flops = {counts.counted.precision: counts for counts in view.flops}
    for label, words in _FLOPS_ROWS:
        counts_row = [flops.get(stats.precision) for stats in columns]
        cells = (units.NOT_AVAILABLE if counts is None else words(counts) for counts in counts_row)
        rows.append([label, *cells])
    measured = [row for row in rows if not set(row[1:]) <= {units.NOT_AVAILABLE, NOT_MEASURED}]
    sides = table(["", *(chip(stats.precision) for stats in columns)], measured)
    turns = result_cards(view.compared, view.run) if view.compared is not None else []
    verdicts = (*turns, *_gain(view), *flops_hints(view.flops))
    gain = [paragraph(line, "verdict") for line in verdicts]
    note = paragraph("; ".join([*provisional_lines(tally), *uncounted(view)]), "note")
    return card("precisions side by side", sides, *gain, note)


def _gain(view: SessionView) -> list[str]:
    """Why there is no ratio, or why it is small; the ratio itself is in the answer."""
    tally = view.comparison
    if not {tally.baseline, tally.low} <= {stats.precision for stats in tally.rows}:
        than = precision_label(reference_precision(tally.low or ""))
        return [f"{than} and {family_label(tally.low)} did not both run: nothing to compare"]
    unknown = tally.speedup is None and result_of_the_pair(view) is None
    return [*([why_no_ratio(tally)] if unknown else []), *explanations(view)]


def time_spent(view: SessionView) -> Markup | None:
    """The parts of a step by precision, what the steps wait for, and what another precision can gain."""
    if not view.timings:
        return None
    names = dict.fromkeys(phase.name for timing in view.timings for phase in timing.phases)
    rows = [[name, *(_phase(timing, name) for timing in view.timings)] for name in names]
    head = ["", *(chip(timing.precision) for timing in view.timings)]
    said = [_bound(timing, view) for timing in view.timings]
    note = "Medians of timed steps, on the GPU's clock where there is one, otherwise on the host's."
    return card("where the time goes", table(head, rows), *said, paragraph(note, "note"))


def _phase(timing: PrecisionTiming, name: str) -> str:
    phase = next((phase for phase in timing.phases if phase.name == name), None)
    if phase is None:
        return "–"
    return units.milliseconds(phase.host_seconds if phase.device_seconds is None else phase.device_seconds)


def _bound(timing: PrecisionTiming, view: SessionView) -> Markup | None:
    limit = limit_beside(timing, view.timings, view.comparison, ranks=view.world_size)
    words = [bound_words(timing, ranks=view.world_size), evidence(timing), limit]
    text = "; ".join(word for word in words if word)
    return element("p", chip(timing.precision), f" {text}", class_="verdict") if text else None


def memory_spent(view: SessionView) -> Markup | None:
    """Kinds of tensors by precision, and torch's peak."""
    if not view.memory:
        return None
    kinds = dict.fromkeys((kind.kind, kind.dtype) for memory in view.memory for kind in memory.kinds)
    rows = [
        [f"{kind} {dtype}".rstrip(), *(_size(memory, kind, dtype) for memory in view.memory)]
        for kind, dtype in kinds
    ]
    rows.append(["peak", *(units.number_of_bytes(memory.peak_allocated_bytes) for memory in view.memory)])
    head = ["", *(chip(memory.precision) for memory in view.memory)]
    return card("where the memory goes", table(head, rows))


def _size(memory: MemoryBreakdown, kind: str, dtype: str) -> str:
    sizes = [part.size_bytes for part in memory.kinds if (part.kind, part.dtype) == (kind, dtype)]
    return units.number_of_bytes(sum(sizes)) if sizes else "–"
