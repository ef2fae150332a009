"""A run as one self-contained HTML page, which needs no network and no other file: its cards from the top."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from amptui.base import units
from amptui.base.units import NOT_AVAILABLE, SEVERITY_SIGNS, milliseconds
from amptui.base.version import __version__
from amptui.diagnosis import labels, probe_words, speed
from amptui.diagnosis.amp_answer import amp_answer, answer_line, evidence_rows, question_words
from amptui.diagnosis.event_words import event_details, event_text, run_ended
from amptui.diagnosis.finding_fields import cosine_words, interval_ends
from amptui.diagnosis.labels import RANK_NUMBERS, precision_label
from amptui.diagnosis.run_facts import detail_facts, run_facts
from amptui.diagnosis.tensor_cores import flops_hints, mfu_words, rate_words
from amptui.diagnosis.words import SIGNS, SUBJECTS, long_words
from amptui.records.findings import Float16Window, ModulesTraced, XRayTaken
from amptui.records.run import EpochFinished, Record, RunFailed, RunFinished, Validated, reference_precision
from amptui.records.steps import Steps
from amptui.reports.export.charts import charts, histogram, step_axis, zones
from amptui.reports.export.table import late_columns
from amptui.reports.export.template import Block, Card, Span, Words, chip, document, table, verdict
from amptui.telemetry.comparison import ordered
from amptui.telemetry.optimizers import FIRST
from amptui.telemetry.session import Session
from amptui.telemetry.view import SessionView


class RecordedRun:
    """Collects the records of a journal in order."""

    def __init__(self, name: str, folder: str) -> None:
        self.name = name
        """The run's name, from its files."""
        self.steps = 0
        """Steps in the journal; a step that was repeated after a resume counts twice."""
        self.validations: list[EpochFinished | Validated] = []
        self.passed_over = ""
        """What of the journal could not be read, in one line."""
        self.late_columns: dict[str, None] = {}
        """The columns of a table of its steps that not every table has."""
        self.is_empty = True
        self._session = Session(folder)

    def add(self, records: Sequence[Record]) -> None:
        """Add the next records."""
        self.is_empty = False
        self.late_columns |= dict.fromkeys(late_columns(records))
        self.steps += sum(record.count for record in records if isinstance(record, Steps))
        self._session.fold(records)
        self.validations += [
            record
            for record in records
            if isinstance(record, EpochFinished | Validated) and record.validation is not None
        ]

    @property
    def first_label(self) -> str:
        """What the first of several optimizers is called."""
        return next((one.label for one in self.views()[0].optimizers if one.name == FIRST), "")

    def views(self) -> list[SessionView]:
        """The view after the last record, with each optimizer in front; the run's first is the first."""
        first = self._session.view(FIRST)
        return [first, *(self._session.view(one.name) for one in first.optimizers if one.name != FIRST)]


def page(recording: RecordedRun) -> str:
    """The page as HTML."""
    views = recording.views()
    view, run = views[0], views[0].run
    (loss, *others), *of_others = [
        charts(shown, place, recording.validations) for place, shown in enumerate(views)
    ]
    # The colours of the precisions that ran, and what the marks mean.
    used = dict.fromkeys(switch.precision for shown in views for switch in shown.switches)
    marks = [Span("× step skipped", "skip"), Span("× NaN or Inf", "nonfinite"), Span("○ validation", "dots")]
    cards = [
        answer(view),
        _optimizers(view),
        ("training", ("charts", [loss]), ("legend", [*map(chip, used), *marks] if used else [])),
        comparison(view),
        ranks(view),
        time_spent(view),
        memory_spent(view),
        ("curves", ("charts", others)),
        *(
            (_front_label(other), ("charts", figures[:1]), ("charts", figures[1:]))
            for other, figures in zip(views[1:], of_others, strict=True)
        ),
        float16_window(view.numerics.window),
        trace(view.numerics.trace),
        xray(view.numerics.xray),
        events(view),
        _settings(recording, view),
    ]
    by = "" if run is None else f", recorded by amptui {run.versions.get('amptui', '')}".rstrip()
    badges = [_ending(view)]
    if view.precision:
        badges.append(chip(view.precision))
    if run is not None and not run.data.real:
        badges.append(Span(f"⚠ {labels.SYNTHETIC}", "badge warning"))
    heading = recording.name if run is None else run.model
    return document(
        f"{heading} · amptui",
        cards,
        heading=heading,
        where="" if run is None else f"{run.device_name} · {run.data.name}",
        badges=badges,
        tiles=[*_tiles(view, recording.validations)],
        axes=[step_axis(shown) for shown in views],
        footer=f"{recording.name}: exported by amptui {__version__}{by}",
    )


# ----------------------------------------------------------------------------------- the outcome


def _ending(view: SessionView) -> Span:
    outcome = view.outcome
    if isinstance(outcome, RunFailed):
        return Span(f"✖ {run_ended(outcome)}", "badge error")
    if isinstance(outcome, RunFinished):
        sign, kind = ("✖", "error") if outcome.unwatched else ("✔", "good")
        return Span(f"{sign} {run_ended(outcome)}", f"badge {kind}")
    # A journal without an end: the run crashed, or is still running.
    text = {"starting": speed.NO_STEPS, "running": "unfinished", "paused": "paused"}[view.state]
    return Span(f"{text} at step {view.step:,}" if view.step else text, "badge")


def _tiles(
    view: SessionView, validations: Sequence[EpochFinished | Validated]
) -> Iterator[tuple[str, str, str]]:
    """The main figures: of what, the value, its context."""
    tally, best = view.comparison, ""
    if view.best_loss is not None and view.best_loss_step is not None:
        best = f"best {units.loss(view.best_loss)} at step {view.best_loss_step:,}"
    yield "loss, smoothed", units.loss(view.smoothed_loss), best
    if validations and (last := validations[-1].validation) is not None:
        accuracy = "" if last.accuracy is None else f"accuracy {units.percent(last.accuracy, 1)}"
        yield "validation loss", units.loss(last.loss), accuracy
    low, measured = precision_label(tally.low or ""), speed.result_of_the_pair(view)
    speedup = tally.speedup if measured is None else measured.speedup
    if speedup is not None:
        than = f"the speed of {precision_label(tally.baseline or '')}"
        if measured and (ends := interval_ends(measured.speedup_low, measured.speedup_high)):
            than += f" ({ends})"
        yield low, units.ratio(speedup), than
    if (saving := tally.memory_saving) is not None:
        yield low, units.percent(abs(saving)), f"{'less' if saving >= 0 else 'more'} peak memory"
    yield "steps", units.count(view.step), f"{units.count(view.scaler.skipped)} skipped in fp16"
    yield "errors", units.count(view.errors), units.counted(view.warnings, "warning")


def answer(view: SessionView) -> Card | None:
    """The answer on AMP, each finding with what it is from, and the numbers behind them."""
    if view.run is None:
        return None
    verdicts = amp_answer(view)
    lines: list[Words] = [answer_line(verdicts)]
    for finding, words, source in evidence_rows(verdicts):
        severity = {"good": "info", "warning": "warning", "error": "error"}.get(finding.grade, "")
        mark, label = (
            Span(SIGNS[finding.grade], f"sign {severity}"),
            Span(SUBJECTS.get(finding.subject, finding.subject), "label"),
        )
        lines.append([mark, " ", label, f" {words}", Span(f" {source}" if source else "", "note")])
    return question_words(verdicts.precision), ("verdict", lines)


# ------------------------------------------------------------------------ optimizers and curves


def _optimizers(view: SessionView) -> Card | None:
    """The newest numbers of each; None for a single one."""
    if not view.optimizers:
        return None
    front = f"the other figures and charts are of {_front_label(view)}, unless they say otherwise"
    rows = table(
        view.optimizers,
        (
            ("", lambda one: one.label),
            ("optimizer", lambda one: one.kind),
            ("steps", lambda one: units.count(one.step)),
            ("precision", lambda one: labels.signed_label(one.precision or "unknown")),
            ("last loss", lambda one: units.loss(one.loss)),
            ("smoothed", lambda one: units.loss(one.smoothed_loss)),
            ("best", lambda one: units.loss(one.best_loss)),
            ("learning rate", lambda one: units.loss(one.lr)),
            ("skipped", lambda one: units.count(one.skipped)),
        ),
    )
    return "optimizers", rows, ("note", [front, *labels.optimizers_left_out(view)])


def _front_label(view: SessionView) -> str:
    return next(optimizer.label for optimizer in view.optimizers if optimizer.is_front)


# -------------------------------------------------------------------------- speed, time, memory


def comparison(view: SessionView) -> Card | None:
    """The precisions side by side, and the gain of AMP or FP8, or why it is unknown."""
    tally = view.comparison
    if not tally.rows:
        return None
    flops = {counts.counted.precision: (rate_words(counts), mfu_words(counts)) for counts in view.flops}
    unknown = NOT_AVAILABLE, NOT_AVAILABLE
    rows = table(
        ordered(tally),
        (
            ("", lambda stats: chip(stats.precision)),
            ("median step", lambda stats: speed.of_steps(stats, milliseconds(stats.median_step_seconds))),
            ("samples", lambda stats: speed.of_steps(stats, units.rate(stats.samples_per_second))),
            ("peak allocated", lambda stats: speed.peak_words(stats, NOT_AVAILABLE)),
            ("waiting for data", lambda stats: units.percent(stats.data_fraction, 1)),
            ("GPU utilization", lambda stats: _of_hundred(stats.utilization_percent)),
            ("last loss", lambda stats: units.loss(stats.last_loss)),
            ("skipped", lambda stats: units.count(stats.skipped)),
            ("steps counted", lambda stats: units.count(stats.steps)),
            ("achieved", lambda stats: flops.get(stats.precision, unknown)[0]),
            ("MFU", lambda stats: flops.get(stats.precision, unknown)[1]),
        ),
        upright=True,
    )
    turns = speed.result_cards(view.compared, view.run) if view.compared is not None else []
    return (
        "precisions side by side",
        rows,
        ("verdict", [*turns, *_gain(view), *flops_hints(view.flops)]),
        ("note", ["; ".join([*speed.provisional_lines(tally), *speed.uncounted(view)])]),
    )


def _of_hundred(value: float | None) -> str:
    return units.percent(None if value is None else value / 100)


def _gain(view: SessionView) -> list[str]:
    """Why there is nothing to compare, or little memory was saved; the rest is in the answer."""
    tally = view.comparison
    if not {tally.baseline, tally.low} <= {stats.precision for stats in tally.rows}:
        than = precision_label(reference_precision(tally.low or ""))
        return [f"{than} and {labels.family_label(tally.low)} did not both run: nothing to compare"]
    return [*map(long_words, speed.little_memory(view))]


def ranks(view: SessionView) -> Card | None:
    """The newest numbers of the ranks that the journal tells of, and which is slow; None for one process."""
    seen = view.ranks
    if seen is None:
        return None
    lines = [
        verdict(
            finding.severity, "speed" if finding.subject == "rank speed" else "ranks", long_words(finding)
        )
        for finding in seen.findings
    ]
    note = "no numbers of the ranks in the journal"
    if seen.step is not None:
        note = f"Times are medians of the last {seen.samples} samples up to step {units.count(seen.step)}."
    rows = table(
        seen.rows,
        (
            ("rank", lambda row: str(row.rank)),
            ("device", lambda row: "" if row.place is None else row.place.name),
            *((number.title, number.text) for number in RANK_NUMBERS),
            ("throttled", lambda row: ", ".join(row.throttled)),
        ),
    )
    return (
        labels.size_words(seen.world_size, view.run),
        ("verdict", lines),
        rows,
        ("note", [note]),
    )


def time_spent(view: SessionView) -> Card | None:
    """The parts of a step by precision, what the steps wait for, and what another precision can gain."""
    if not view.timings:
        return None
    seconds = {
        timing.precision: {
            phase.name: phase.host_seconds if phase.device_seconds is None else phase.device_seconds
            for phase in timing.phases
        }
        for timing in view.timings
    }
    note = "Medians of timed steps, on the GPU's clock where there is one, otherwise on the host's."
    rows = _by_precision(seconds, milliseconds)
    limits = speed.limit_lines(view, {timing.precision for timing in view.timings})
    return "where the time goes", rows, ("verdict", limits), ("note", [note])


def memory_spent(view: SessionView) -> Card:
    """Kinds of tensors by precision, and torch's peak."""
    sizes = {
        memory.precision: {
            **{f"{kind.kind} {kind.dtype}".rstrip(): kind.size_bytes for kind in memory.kinds},
            "peak": memory.peak_allocated_bytes,
        }
        for memory in view.memory
    }
    return "where the memory goes", _by_precision(sizes, units.number_of_bytes)


def _by_precision(
    figures: Mapping[str, Mapping[Any, float | None]], words: Callable[[float | None], str]
) -> Block:
    """A column for each precision, ``–`` where it lacks what another one has; a peak stands last."""
    names = dict.fromkeys(name for column in figures.values() for name in column)
    rows = [
        [name, *(words(column[name]) if name in column else "–" for column in figures.values())]
        for name in sorted(names, key="peak".__eq__)
    ]
    return "table", [["", *map(chip, figures)], *(row for row in rows if {*row[1:]} - {NOT_AVAILABLE})]


# --------------------------------------------------------------------------------- what was found


def float16_window(window: Float16Window | None) -> Card | None:
    """The newest float16 histogram, and the parameters that lose the most."""
    if window is None or not window.counts:
        return None
    how = probe_words.at_scale(window.loss_scale, hypothetical=window.hypothetical)
    note = f"All gradients of step {window.step:,} by exponent, {how}."
    if not window.hypothetical:
        note += " Gradients that float16 flushed are among the zeros."
    worst = table(
        window.worst,
        (
            ("parameter", lambda one: one.name),
            ("of its norm", lambda one: units.share(one.underflowing_share, 1)),
            ("flushed", lambda one: units.share(one.flushed, one.elements - one.zeros)),
            ("subnormal", lambda one: units.share(one.subnormal, one.elements - one.zeros)),
            ("overflow", lambda one: units.share(one.overflowing, one.elements - one.zeros)),
        ),
    )
    return (
        "gradients in float16's range",
        ("note", [note]),
        ("blocks", [histogram(window)]),
        ("legend", zones(window), "zones"),
        ("fold", worst, "parameters that lose the most"),
    )


def trace(traced: ModulesTraced | None) -> Card | None:
    """The newest module trace: the module that overflowed first, and those closest to an overflow."""
    if traced is None or (traced.first is None and not traced.nearest):
        return None
    first = probe_words.what_overflowed_first(traced)
    columns = (("module", probe_words.place_of), ("largest value", probe_words.distance))
    return (
        "largest values by module",
        ("note", [f"Step {traced.step:,}, {units.count(traced.modules)} modules."]),
        ("verdict", [verdict("warning", "first", first)] if first else []),
        ("fold", table(traced.nearest, columns), "closest to 65,504"),
    )


def xray(measured: XRayTaken | None) -> Card | None:
    """The newest X-ray: both losses, and every layer."""
    if measured is None:
        return None
    losses = [
        ("loss in FP32", units.loss(measured.loss_fp32)),
        (f"loss in {precision_label(measured.precision)}", units.loss(measured.loss_amp)),
        ("took", milliseconds(measured.seconds)),
    ]
    legend = probe_words.layers_legend(measured)
    layers = table(
        measured.layers,
        (
            ("layer", lambda layer: layer.name or "the model"),
            ("kind", lambda layer: layer.kind),
            ("cosine", lambda layer: cosine_words(layer.cosine, 5)),
            ("relative error", lambda layer: units.loss(layer.relative_error)),
            ("lost", lambda layer: units.share(layer.lost, 1)),
            ("output", lambda layer: layer.output_dtype),
        ),
    )
    return (
        "X-ray",
        ("note", [[f"Step {measured.step:,}, FP32 and ", chip(measured.precision), f". {legend}."]]),
        ("facts", losses),
        ("fold", layers, f"layers: {units.count(len(measured.layers))}"),
    )


# ---------------------------------------------------------------------------- events and details


def events(view: SessionView) -> Card:
    """The events, newest first, each with details to open."""
    began = view.run.time if view.run is not None else view.events[-1].time if view.events else 0.0
    items = [
        {
            # Events before the start of the run have no run time.
            "time": "" if event.time < began else units.duration(event.time - began),
            "step": "" if event.step is None else f"step {event.step:,}",
            "sign": "" if event.severity == "info" else SEVERITY_SIGNS[event.severity],
            "severity": event.severity,
            "text": event_text(event),
            "details": "\n".join(event_details(event)),
        }
        for event in view.events
    ]
    return "events", ("events", items)


def _settings(recording: RecordedRun, view: SessionView) -> Card:
    """Model, data, device, versions and every setting, as the run recorded them."""
    run, passed_over = view.run, ("note", [recording.passed_over])
    if run is None:
        return "run details", passed_over
    duration = ("duration", units.duration(view.elapsed_seconds))
    return (
        "run details",
        ("facts", [("run", recording.name), *run_facts(run).pairs, duration]),
        *(("fold", ("facts", group.pairs), group.title) for group in detail_facts(run)),
        passed_over,
    )
