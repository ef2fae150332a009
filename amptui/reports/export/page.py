"""A run as one self-contained HTML page, which needs no network and no other file: its cards from the top."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from amptui.base import units
from amptui.base.units import NOT_AVAILABLE, SEVERITY_SIGNS
from amptui.base.version import __version__
from amptui.diagnosis import float16_verdicts, loss_scale, speed
from amptui.diagnosis.amp_answer import amp_answer
from amptui.diagnosis.answer_words import SIGNS, answer_line, evidence_rows, question_words
from amptui.diagnosis.bottleneck import bound_words, evidence, limit_beside
from amptui.diagnosis.event_words import event_details, event_text, run_ended
from amptui.diagnosis.labels import (
    SYNTHETIC,
    family_label,
    optimizers_left_out,
    precision_label,
    signed_label,
)
from amptui.diagnosis.memory_use import saved_for_backward
from amptui.diagnosis.rank_words import place_words, rank_lost, ranks_disagree, size_words, speed_sentence
from amptui.diagnosis.run_facts import detail_facts, run_facts
from amptui.diagnosis.tensor_cores import flops_hints, mfu_words, rate_words
from amptui.records.findings import (
    Float16Window,
    LayerAgreement,
    MemoryBreakdown,
    ModulesTraced,
    ReferenceAgreement,
    XRayTaken,
)
from amptui.records.ranks import PERCENTILES
from amptui.records.run import RunFailed, RunFinished, reference_precision
from amptui.reports.export.charts import charts, histogram, step_axis
from amptui.reports.export.markup import (
    Markup,
    card,
    chip,
    details,
    document,
    element,
    facts,
    paragraph,
    table,
    verdict,
)
from amptui.reports.export.recorded_run import RecordedRun
from amptui.telemetry.comparison import ordered
from amptui.telemetry.events import Event
from amptui.telemetry.rank_watch import RankSummary
from amptui.telemetry.underflow import underflowing_share
from amptui.telemetry.view import PrecisionFlops, PrecisionStats, PrecisionTiming, SessionView

_T = TypeVar("_T")
_P = TypeVar("_P", bound=PrecisionStats | PrecisionTiming | MemoryBreakdown)

EVENTS_IN_SIGHT = 20
"""The newest events, which are visible at once; the others open on a click."""


def page(recording: RecordedRun) -> str:
    """The page as HTML."""
    view, run = recording.view, recording.view.run
    loss, others = _curves(recording, view)
    cards = [
        _figures(recording),
        answer(view),
        _optimizers(view),
        card("training", loss, _legend(recording)),
        comparison(view),
        ranks(view),
        time_spent(view),
        memory_spent(view),
        card("curves", others),
        *(_of_optimizer(recording, other) for other in recording.other_views),
        float16_window(view.numerics.window),
        trace(view.numerics.trace),
        xray(view.numerics.xray),
        events(view),
        _settings(recording),
    ]
    main = element("main", _header(recording), *cards, data_axis=_axis(view))
    by = "" if run is None else f", recorded by amptui {run.versions.get('amptui', '')}".rstrip()
    footer = element("footer", f"{recording.name}: exported by amptui {__version__}{by}")
    return document(f"{recording.name if run is None else run.model} · amptui", main, footer)


def _table(rows: Sequence[_T], columns: Sequence[tuple[str, Callable[[_T], str]]]) -> Markup | None:
    """Only columns in which some row has a value; the first one names the rows."""
    filled = [(title, [*map(words, rows)]) for title, words in columns]
    filled = [column for column in filled if column is filled[0] or set(column[1]) - {"", NOT_AVAILABLE}]
    return table([title for title, _ in filled], zip(*(cells for _, cells in filled), strict=True))


# ----------------------------------------------------------------------------------- the outcome


def _header(recording: RecordedRun) -> Markup:
    """What was trained where, how it ended, and in which precision."""
    view, run = recording.view, recording.view.run
    badges = [_ending(view), chip(view.precision) if view.precision else None]
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
    # A journal without an end: the run crashed, or is still running.
    text = {"starting": speed.NO_STEPS, "running": "unfinished", "paused": "paused"}[view.state]
    return element("span", f"{text} at step {view.step:,}" if view.step else text, class_="badge")


def _figures(recording: RecordedRun) -> Markup:
    """The main figures, each with its context."""
    view, tally = recording.view, recording.view.comparison
    best = ""
    if view.best_loss is not None and view.best_loss_step is not None:
        best = f"best {units.loss(view.best_loss)} at step {view.best_loss_step:,}"
    tiles = [("loss, smoothed", units.loss(view.smoothed_loss), best)]
    if recording.validations and (last := recording.validations[-1].validation) is not None:
        accuracy = "" if last.accuracy is None else f"accuracy {units.percent(last.accuracy, 1)}"
        tiles.append(("validation loss", units.loss(last.loss), accuracy))
    low, measured = precision_label(tally.low or ""), speed.result_of_the_pair(view)
    speedup = tally.speedup if measured is None else measured.speedup
    if speedup is not None:
        than = f"the speed of {precision_label(tally.baseline or '')}"
        if measured and (ends := speed.interval_ends(measured.speedup_low, measured.speedup_high)):
            than += f" ({ends})"
        tiles.append((low, units.ratio(speedup), than))
    if (saving := tally.memory_saving) is not None:
        tiles.append((low, units.percent(abs(saving)), f"{speed.less_or_more(saving)} peak memory"))
    tiles.append(("steps", units.count(view.step), f"{units.count(view.scaler.skipped)} skipped in fp16"))
    tiles.append(("errors", units.count(view.errors), units.counted(view.warnings, "warning")))
    items = [
        element("li", element("small", label), element("strong", value), element("small", beside))
        for label, value, beside in tiles
    ]
    return element("ul", *items, class_="figures")


def answer(view: SessionView) -> Markup | None:
    """The answer on AMP, each finding with what it is from, and the numbers behind them."""
    if view.run is None:
        return None
    verdicts = amp_answer(view)
    said = []
    for finding, words, source in evidence_rows(verdicts):
        severity = {"good": "info", "warning": "warning", "error": "error"}.get(finding.grade, "")
        mark = element("span", SIGNS[finding.grade], class_=f"sign {severity}")
        beside = element("span", f" {source}", class_="note") if source else None
        said.append(
            element("p", mark, " ", element("b", finding.subject), " ", words, beside, class_="verdict")
        )
    return card(
        f"{question_words(verdicts.precision)}?",
        paragraph(answer_line(verdicts), "verdict"),
        *said,
        facts([*_gradients(view), *_scale(view)]),
        paragraph(loss_scale.outlook(view.numerics.outlook), "note"),
    )


def _gradients(view: SessionView) -> Iterator[tuple[str, str]]:
    numerics = view.numerics
    if numerics.measured_step is None:
        return
    at = f"at step {numerics.measured_step:,}"
    yield "gradient norm", f"{units.loss(numerics.grad_norm)} {at}"
    yield "largest gradient", f"{units.loss(numerics.grad_max)} {at}"
    if numerics.nonfinite_gradients:
        yield "gradients with NaN or Inf", f"{units.count(numerics.nonfinite_gradients)} {at}"
    if numerics.headroom is not None:
        how = float16_verdicts.at_scale(numerics.headroom_scale, hypothetical=numerics.hypothetical)
        least = float16_verdicts.least_headroom(numerics)
        yield "headroom", f"{units.doublings(numerics.headroom)} doublings {how}; {least}"


def _scale(view: SessionView) -> Iterator[tuple[str, str]]:
    scaler = view.scaler
    if scaler.scale is not None:
        yield "loss scaler", loss_scale.scaler_state(view.numerics.scaler)
        yield "loss scale", units.count(scaler.scale)
        steps = f"{units.count(scaler.applied)} applied, {units.count(scaler.skipped)} skipped"
        yield "fp16 steps", steps
        yield "last change", loss_scale.last_change(scaler.last_change)


# ------------------------------------------------------------------------ optimizers and curves


def _optimizers(view: SessionView) -> Markup | None:
    """The newest numbers of each; None for a single one."""
    if not view.optimizers:
        return None
    front = next(optimizer.label for optimizer in view.optimizers if optimizer.is_front)
    notes = [f"the other figures and charts are of {front}, unless they say otherwise"]
    notes += optimizers_left_out(view)
    rows = _table(
        view.optimizers,
        (
            ("", lambda one: one.label),
            ("optimizer", lambda one: one.kind),
            ("steps", lambda one: units.count(one.step)),
            ("precision", lambda one: signed_label(one.precision or "unknown")),
            ("last loss", lambda one: units.loss(one.loss)),
            ("smoothed", lambda one: units.loss(one.smoothed_loss)),
            ("best", lambda one: units.loss(one.best_loss)),
            ("learning rate", lambda one: units.loss(one.lr)),
            ("skipped", lambda one: units.count(one.skipped)),
        ),
    )
    return card("optimizers", rows, *(paragraph(line, "note") for line in notes))


def _of_optimizer(recording: RecordedRun, view: SessionView) -> Markup | None:
    """The charts of another optimizer, over its own steps."""
    label = next(optimizer.label for optimizer in view.optimizers if optimizer.is_front)
    loss, others = _curves(recording, view)
    if loss is None and others is None:
        return None
    return card(label, element("div", loss, others, data_axis=_axis(view)))


def _curves(recording: RecordedRun, view: SessionView) -> tuple[Markup | None, Markup | None]:
    """The chart of the loss, and the other ones."""
    if not view.loss.count:
        return None, None
    loss, *others = charts(view, recording.validations)
    return loss, element("div", *others, class_="charts") if any(others) else None


def _axis(view: SessionView) -> str:
    return step_axis(view.loss.first_step, view.loss.last_step, view.switches)


def _legend(recording: RecordedRun) -> Markup | None:
    """The colours of the precisions that ran, and what the marks mean."""
    views = (recording.view, *recording.other_views)
    used = dict.fromkeys(switch.precision for view in views for switch in view.switches)
    if not used:
        return None
    marks = {"skip": "× step skipped", "nonfinite": "× NaN or Inf", "dots": "○ validation"}
    items = [element("li", chip(precision)) for precision in used]
    items += [element("li", words, class_=name) for name, words in marks.items()]
    return element("ul", *items, class_="legend")


# -------------------------------------------------------------------------- speed, time, memory

_ROWS: tuple[tuple[str, Callable[[PrecisionStats], str]], ...] = (
    ("median step", lambda stats: speed.of_steps(stats, units.milliseconds(stats.median_step_seconds))),
    ("samples", lambda stats: speed.of_steps(stats, units.rate(stats.samples_per_second))),
    ("peak allocated", lambda stats: speed.peak_words(stats, NOT_AVAILABLE)),
    ("waiting for data", lambda stats: units.percent(stats.data_fraction, 1)),
    (
        "GPU utilization",
        lambda stats: units.percent(
            None if stats.utilization_percent is None else stats.utilization_percent / 100
        ),
    ),
    ("last loss", lambda stats: units.loss(stats.last_loss)),
    ("skipped", lambda stats: units.count(stats.skipped)),
    ("steps counted", lambda stats: units.count(stats.steps)),
)


def _side_by_side(columns: Sequence[_P], rows: Iterable[tuple[str, Callable[[_P], str]]]) -> Markup | None:
    """A column for each precision; only rows in which one of them has a value."""
    filled = [[label, *map(words, columns)] for label, words in rows]
    filled = [row for row in filled if set(row[1:]) - {NOT_AVAILABLE, speed.NOT_MEASURED}]
    return table(["", *(chip(column.precision) for column in columns)], filled)


def comparison(view: SessionView) -> Markup | None:
    """The precisions side by side, and the gain of AMP or FP8, or why it is unknown."""
    tally = view.comparison
    if not tally.rows:
        return None
    flops = {counts.counted.precision: counts for counts in view.flops}

    def of_flops(words: Callable[[PrecisionFlops], str]) -> Callable[[PrecisionStats], str]:
        return lambda stats: words(flops[stats.precision]) if stats.precision in flops else NOT_AVAILABLE

    rows = (*_ROWS, ("achieved", of_flops(rate_words)), ("MFU", of_flops(mfu_words)))
    turns = speed.result_cards(view.compared, view.run) if view.compared is not None else []
    return card(
        "precisions side by side",
        _side_by_side(ordered(tally), rows),
        *(paragraph(line, "verdict") for line in (*turns, *_gain(view), *flops_hints(view.flops))),
        paragraph("; ".join([*speed.provisional_lines(tally), *speed.uncounted(view)]), "note"),
    )


def _gain(view: SessionView) -> list[str]:
    """Why there is no ratio, or why it is small; the ratio itself is in the answer."""
    tally = view.comparison
    if not {tally.baseline, tally.low} <= {stats.precision for stats in tally.rows}:
        than = precision_label(reference_precision(tally.low or ""))
        return [f"{than} and {family_label(tally.low)} did not both run: nothing to compare"]
    unknown = tally.speedup is None and speed.result_of_the_pair(view) is None
    return [*([speed.why_no_ratio(tally)] if unknown else []), *speed.explanations(view)]


_RANK_COLUMNS: tuple[tuple[str, Callable[[RankSummary], str]], ...] = (
    ("rank", lambda row: str(row.rank)),
    ("device", lambda row: place_words(row.place)),
    ("data wait", lambda row: units.milliseconds(row.data_seconds)),
    ("compute", lambda row: units.milliseconds(row.compute_seconds)),
    ("step", lambda row: units.milliseconds(row.step_seconds)),
    ("peak", lambda row: units.number_of_bytes(row.peak_allocated_bytes)),
    ("GPU memory", lambda row: units.number_of_bytes(row.memory_used_bytes)),
    ("grad norm", lambda row: "" if row.grad_norm is None else units.loss(row.grad_norm)),
    ("skipped", lambda row: units.count(row.skipped)),
    ("own Inf", lambda row: units.count(row.overflowed)),
    ("clock", lambda row: units.megahertz(row.sm_clock_mhz)),
    ("throttled", lambda row: ", ".join(row.throttled)),
)


def ranks(view: SessionView) -> Markup | None:
    """The newest numbers of the ranks that the journal tells of, and which is slow; None for one process."""
    seen = view.ranks
    if seen is None:
        return None
    alarms = [*map(rank_lost, seen.lost), *map(ranks_disagree, seen.disagreements)]
    said = [verdict("error", "ranks", text) for text in alarms]
    if sentence := speed_sentence(seen, view.run):
        said.append(verdict("info" if seen.straggler is None else "warning", "speed", sentence))
    has_all = len(seen.rows) == seen.world_size
    names = ({0: "least", 50: "median", 100: "most"}.get(place, f"{place}%") for place in PERCENTILES)
    percentiles = [[name, *map(units.milliseconds, values)] for name, values in seen.percentiles.items()]
    note = "no numbers of the ranks in the journal"
    if seen.step is not None:
        note = f"Times are medians of the last {seen.samples} samples up to step {units.count(seen.step)}."
        note += (
            "" if has_all else f" Of {units.count(seen.world_size)} ranks those that stand out have a row."
        )
    return card(
        size_words(seen.world_size, view.run),
        *said,
        None if has_all else table(["all ranks", *names], percentiles),
        _table(seen.rows, _RANK_COLUMNS),
        paragraph(note, "note"),
    )


def time_spent(view: SessionView) -> Markup | None:
    """The parts of a step by precision, what the steps wait for, and what another precision can gain."""
    if not view.timings:
        return None
    names = dict.fromkeys(phase.name for timing in view.timings for phase in timing.phases)
    said = []
    for timing in view.timings:
        limit = limit_beside(timing, view.timings, view.comparison, ranks=view.world_size)
        words = [bound_words(timing, ranks=view.world_size), evidence(timing), limit]
        if text := "; ".join(filter(None, words)):
            said.append(element("p", chip(timing.precision), f" {text}", class_="verdict"))
    note = "Medians of timed steps, on the GPU's clock where there is one, otherwise on the host's."
    phases = _side_by_side(view.timings, ((name, partial(_phase, name)) for name in names))
    return card("where the time goes", phases, *said, paragraph(note, "note"))


def _phase(name: str, timing: PrecisionTiming) -> str:
    for phase in timing.phases:
        if phase.name == name:
            seconds = phase.host_seconds if phase.device_seconds is None else phase.device_seconds
            return units.milliseconds(seconds)
    return "–"


def memory_spent(view: SessionView) -> Markup | None:
    """Kinds of tensors by precision, and torch's peak."""
    if not view.memory:
        return None
    kinds = dict.fromkeys((kind.kind, kind.dtype) for memory in view.memory for kind in memory.kinds)
    rows = [(" ".join(kind).rstrip(), partial(_size, kind)) for kind in kinds]
    peak = ("peak", lambda memory: units.number_of_bytes(memory.peak_allocated_bytes))
    return card("where the memory goes", _side_by_side(view.memory, [*rows, peak]))


def _size(kind: tuple[str, str], memory: MemoryBreakdown) -> str:
    sizes = [part.size_bytes for part in memory.kinds if (part.kind, part.dtype) == kind]
    return units.number_of_bytes(sum(sizes)) if sizes else "–"


# --------------------------------------------------------------------------------- what was found


def float16_window(window: Float16Window | None) -> Markup | None:
    """The newest float16 histogram, and the parameters that lose the most."""
    if window is None or not window.counts:
        return None
    how = float16_verdicts.at_scale(window.loss_scale, hypothetical=window.hypothetical)
    note = f"All gradients of step {window.step:,} by exponent, {how}."
    if not window.hypothetical:
        note += " Gradients that float16 flushed are among the zeros."
    worst = _table(
        window.worst,
        (
            ("parameter", lambda one: one.name),
            ("of its norm", lambda one: units.share(underflowing_share(one), 1)),
            ("flushed", lambda one: units.share(one.flushed, one.elements - one.zeros)),
            ("subnormal", lambda one: units.share(one.subnormal, one.elements - one.zeros)),
            ("overflow", lambda one: units.share(one.overflowing, one.elements - one.zeros)),
        ),
    )
    return card(
        "gradients in float16's range",
        paragraph(note, "note"),
        histogram(window),
        details("parameters that lose the most", worst),
    )


def trace(traced: ModulesTraced | None) -> Markup | None:
    """The newest module trace: the module that overflowed first, and those closest to an overflow."""
    if traced is None or (traced.first is None and not traced.nearest):
        return None
    first = float16_verdicts.what_overflowed_first(traced)
    columns = (("module", float16_verdicts.place_of), ("largest value", float16_verdicts.distance))
    return card(
        "largest values by module",
        paragraph(f"Step {traced.step:,}, {units.count(traced.modules)} modules.", "note"),
        verdict("warning", "first", first) if first else None,
        details("closest to 65,504", _table(traced.nearest, columns)),
    )


def _reference(layer: LayerAgreement) -> ReferenceAgreement:
    nothing = ReferenceAgreement(cosine=None, relative_error=None, added_cosine=None, added_error=None)
    return layer.reference or nothing


_LAYER_COLUMNS: tuple[tuple[str, Callable[[LayerAgreement], str]], ...] = (
    ("layer", lambda layer: layer.name or "the model"),
    ("kind", lambda layer: layer.kind),
    ("cosine", lambda layer: float16_verdicts.cosine_words(layer.cosine, 5)),
    ("in bf16", lambda layer: float16_verdicts.cosine_words(_reference(layer).cosine, 5)),
    (
        "to bf16",
        lambda layer: float16_verdicts.cosine_words(_reference(layer).added_cosine, 5),
    ),
    ("relative error", lambda layer: units.loss(layer.relative_error)),
    ("error in bf16", lambda layer: units.loss(_reference(layer).relative_error)),
    ("error to bf16", lambda layer: units.loss(_reference(layer).added_error)),
    ("lost", lambda layer: units.share(layer.lost, 1)),
    ("output", lambda layer: "float8" if layer.in_float8 else layer.output_dtype),
)


def xray(measured: XRayTaken | None) -> Markup | None:
    """The newest X-ray: both losses, memory, and every layer."""
    if measured is None:
        return None
    losses = [
        *(
            (f"loss in {precision_label(name)}", units.loss(loss))
            for name, loss in float16_verdicts.losses_of(measured)
        ),
        ("memory", saved_for_backward(measured)),
        ("took", units.milliseconds(measured.seconds)),
    ]
    between, said = [], None
    if measured.reference:
        between = [", ", chip(measured.reference)]
        judged = float16_verdicts.xray_verdict(measured)
        said = verdict(judged.severity, "verdict", judged.text)
    what = [f"Step {measured.step:,}, FP32", *between, " and ", chip(measured.precision)]
    return card(
        "X-ray",
        element("p", *what, f". {float16_verdicts.layers_legend(measured)}.", class_="note"),
        said,
        facts(losses),
        details(f"layers: {units.count(len(measured.layers))}", _table(measured.layers, _LAYER_COLUMNS)),
    )


# ---------------------------------------------------------------------------- events and details


def events(view: SessionView) -> Markup | None:
    """The events, newest first, each with details to open."""
    if not view.events:
        return None
    began = view.run.time if view.run is not None else view.events[-1].time
    items = [_event(event, began) for event in view.events]
    first, others = items[:EVENTS_IN_SIGHT], items[EVENTS_IN_SIGHT:]
    older = element("ol", *others, class_="events") if others else None
    return card(
        "events",
        element("ol", *first, class_="events"),
        details(f"{units.count(len(others))} older events", older),
    )


def _event(event: Event, began: float) -> Markup:
    text, more = event_text(event), event_details(event)
    return element(
        "li",
        # Events before the start of the run have no run time.
        element("time", "" if event.time < began else units.duration(event.time - began)),
        element("span", "" if event.step is None else f"step {event.step:,}", class_="step"),
        element(
            "span",
            "" if event.severity == "info" else SEVERITY_SIGNS[event.severity],
            class_=f"sign {event.severity}",
        ),
        element("div", details(text, element("pre", "\n".join(more))) if more else text),
    )


def _settings(recording: RecordedRun) -> Markup | None:
    """Model, data, device, versions and every setting, as the run recorded them."""
    run = recording.view.run
    passed_over = paragraph(recording.passed_over, "note")
    if run is None:
        return card("run details", passed_over)
    duration = ("duration", units.duration(recording.view.elapsed_seconds))
    return card(
        "run details",
        facts([("run", recording.name), *run_facts(run).pairs, duration]),
        *(details(group.title, facts(group.pairs)) for group in detail_facts(run)),
        passed_over,
    )
