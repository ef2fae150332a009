"""One line of plain English for each event, and its details."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from amptui.base import units
from amptui.diagnosis import probe_words, speed
from amptui.diagnosis.labels import data_label, precision_label, run_words
from amptui.diagnosis.words import explanation, long_words
from amptui.records.findings import (
    Float8Layers,
    FloatHindrance,
    ModelCompiled,
    ModulesTraced,
    PrecisionsCompared,
    XRayTaken,
)
from amptui.records.keeping import CheckpointWritten, KeepingChanged, WeightsSaved
from amptui.records.own_loop import GradientsDropped, OptimizerFollowed
from amptui.records.ranks import PHASE_WORDS
from amptui.records.run import (
    EpochFinished,
    LossScaleChanged,
    NonFiniteKind,
    Note,
    PauseChanged,
    PrecisionChanged,
    Printed,
    RunFailed,
    RunFinished,
    RunResumed,
    RunStarted,
    StepSkipped,
    Validated,
    Validation,
)
from amptui.telemetry.events import Event
from amptui.telemetry.finding import FindingReported
from amptui.telemetry.health import judge_trace, judge_xray, least_agreeing
from amptui.telemetry.trouble import SkipRow, Storm

_NAMED_RANKS = 4

_WORST_LAYERS = 8
"""So many lines on the layers of an X-ray, those that agree least."""

_HINDRANCES: Mapping[FloatHindrance, str] = {
    "size": "not divisible by 16",
    "kind": "not an nn.Linear",
    "subclass": "a subclass of nn.Linear",
    "forward": "its forward() was replaced",
    "weight": "its weight is not a plain parameter in float32, bfloat16 or float16",
}


def event_text(event: Event) -> str:
    """The event in one line."""
    text = _TEXTS[type(event.about)](event.about)
    if event.optimizer:
        text = f"{event.optimizer}: {text}"
    return text if event.times == 1 else f"{text} (×{units.count(event.times)})"


def event_details(event: Event) -> list[str]:
    """More to read when the line is opened, for example a traceback."""
    tell = _DETAILS.get(type(event.about))
    return tell(event.about) if tell is not None else []


# ------------------------------------------------------------------------- the loss scale, NaN and Inf

_KINDS: Mapping[NonFiniteKind, str] = {"nan": "NaN", "inf": "Inf"}


def skipped(row: SkipRow) -> str:
    """``overflow: step skipped, scale 131,072 → 65,536, ...``, with what it means."""
    first, last = row.first, row.last
    steps, scale_now = "step skipped", row.scale_after
    if row.count > 1:
        whole = last.step - first.step + 1
        of_all = "" if whole == row.count else f" of {units.count(whole)}"
        steps = f"{units.count(row.count)}{of_all} steps skipped, {_span(first.step, last.step)}"
        scale_now = last.loss_scale if scale_now is None else scale_now  # the lowest known one
    where = f", non-finite gradient in {_first_and_more(last.names, last.count)}" if last.names else ""
    where += f"{'' if where else ','}{_on_ranks(last.ranks)}" if last.ranks else ""
    moved = probe_words.scale_move(first.loss_scale, scale_now)
    return f"overflow: {steps}, scale {moved}{where}; {long_words(row.finding)}"


def _skip_details(row: SkipRow) -> list[str]:
    """An explanation, a line for the first and the last skip, and one for the trace."""
    skips = [_skip_line(skip) for skip in (row.first, row.last)[: row.count]]
    if row.count > 2:
        skips.insert(1, f"{units.count(row.count - 2)} more")
    return [*filter(None, [explanation(row.finding)]), *skips, *_trace_line(row.trace)]


def _skip_line(skip: StepSkipped) -> str:
    """``step 612, scale 131,072, loss 0.503: Inf in features.13.conv (weight); 2 more``."""
    loss = "not measured" if skip.loss is None else units.loss(skip.loss)
    finite = "" if skip.loss is None or math.isfinite(skip.loss) else " (not finite)"
    step = f"step {units.count(skip.step)}, scale {units.count(skip.loss_scale)}, loss {loss}{finite}"
    places = _by_module(skip.names, skip.kinds, skip.count)
    if not places and skip.count:
        places = f"NaN or Inf in {units.count(skip.count)} gradients"
    step += f",{_on_ranks(skip.ranks)}" if skip.ranks else ""
    return f"{step}: {places}" if places else step


def _trace_line(trace: ModulesTraced | None) -> list[str]:
    if trace is None:
        return []
    origin = probe_words.what_overflowed_first(trace) or long_words(judge_trace(trace))
    return [f"trace of step {units.count(trace.step)}: {origin}"]


def storm_text(storm: Storm) -> str:
    """``the loss is NaN in 100 steps, 612 to 711; ...``, ``NaN in the gradient of head.weight (+2); ...``."""
    first, kind = storm.first, _KINDS[storm.first.kind]
    place = "the buffer" if first.what == "buffer" else "the gradient of"
    text = f"{kind} in {place} {_first_and_more(first.names, first.count)}"
    if first.what == "loss":
        text = f"the loss is {kind}"
    text += _on_ranks(first.ranks)
    if storm.count > 1:
        text += f" in {units.count(storm.count)} steps, {_span(first.step, storm.last.step)}"
    if first.ranks and not storm.in_float16:
        text += "; averaging spread it to all ranks"
    return f"{text}; {long_words(storm.finding)}"


def _storm_details(storm: Storm) -> list[str]:
    """An explanation, what was found first and last, and the trace."""
    ends = {record.step: record for record in (storm.first, storm.last)}
    places = {step: _by_module(record.names, record.kinds, record.count) for step, record in ends.items()}
    lines = [f"step {units.count(step)}: {names}" for step, names in places.items() if names]
    return [*filter(None, [explanation(storm.finding)]), *lines, *_trace_line(storm.trace)]


def _on_ranks(ranks: Sequence[int]) -> str:
    """Whose own loss was not finite, where several ranks train: `` on rank 3``."""
    if not ranks:
        return ""
    more = " and others" if len(ranks) > _NAMED_RANKS else ""
    return f" on rank{'' if len(ranks) == 1 else 's'} {', '.join(map(str, ranks[:_NAMED_RANKS]))}{more}"


def _span(first_step: int, last_step: int) -> str:
    """``612 to 614``."""
    return f"{units.count(first_step)} to {units.count(last_step)}"


def _first_and_more(names: Sequence[str], count: int | None) -> str:
    """The worst of ``count`` names and how many more there are: ``features.13.conv.weight (+2)``."""
    if not names:
        return f"{units.count(count)} tensors"
    return f"{names[0]} (+{units.count(count - 1)})" if count is not None and count > 1 else names[0]


def _by_module(names: Sequence[str], kinds: Sequence[NonFiniteKind], count: int | None) -> str:
    """Parameters or buffers by NaN or Inf and by module; empty without names.

    ``NaN in head (weight, bias); Inf in features.13.conv (weight); 3 more``. Names without a kind are ``NaN
    or Inf``. ``count`` is how many there are in all.
    """
    modules_by_kind: dict[str, dict[str, list[str]]] = {}
    for index, name in enumerate(names):
        module, _, last = name.rpartition(".")
        kind = _KINDS[kinds[index]] if index < len(kinds) else "NaN or Inf"
        modules_by_kind.setdefault(kind, {}).setdefault(module or "the model", []).append(last)
    parts = [
        f"{kind} in " + ", ".join(f"{module} ({', '.join(last)})" for module, last in modules.items())
        for kind, modules in modules_by_kind.items()
    ]
    more = (count or 0) - len(names)
    if parts and more > 0:
        parts.append(f"{units.count(more)} more")
    return "; ".join(parts)


# ------------------------------------------------------------------------------------- all the others


def run_started(record: RunStarted) -> str:
    """``run started: mnist-deep on NVIDIA H200, MNIST, FP32``; of several ranks also how many."""
    where = f"{record.device_name}, {data_label(record.data)}"
    ranks = run_words(record)
    return f"run started: {record.model} on {where}, {precision_label(record.precision)}{ranks}"


def comparison_over(result: PrecisionsCompared) -> str:
    """The first result of a comparison as a card, or that it was stopped before it had one."""
    stopped = "comparison stopped: " if result.reason == "stopped" else ""
    first = next(iter(speed.result_cards(result)), "no precision completed a block")
    return stopped + first


def epoch_finished(record: EpochFinished) -> str:
    """``epoch 3: loss 0.0312, validation loss 0.0351, accuracy 99.1% in 2.30 s``."""
    text = f"epoch {units.count(record.epoch)}: loss {units.loss(record.mean_loss)}"
    if record.validation is not None:
        text += f", validation {validation_words(record.validation)}"
    return text if record.seconds is None else f"{text} in {units.span(record.seconds)}"


def validation_words(validation: Validation) -> str:
    """``loss 0.0351, accuracy 99.1%``, then the experiment's own metrics."""
    text = f"loss {units.loss(validation.loss)}"
    if validation.accuracy is not None:
        text += f", accuracy {units.percent(validation.accuracy, digits=1)}"
    return text + "".join(f", {name} {units.loss(value)}" for name, value in validation.metrics.items())


def model_compiled(record: ModelCompiled) -> str:
    """``compiled for FP32 in 9.6 s``; a recompilation gives torch's reason."""
    what = {"first": "compiled", "again": "recompiled", "graphs": "recorded CUDA graphs"}[record.what]
    where = precision_label(record.precision) + ("" if record.training else " validation")
    text = f"{what} for {where} in {units.span(record.seconds)}"
    return f"{text}: {record.reason}" if record.reason else text


def gradients_dropped(record: GradientsDropped) -> str:
    """``gradients never used in a step, loss nan``: cleared before it, or left at the end."""
    passes = "" if record.passes == 1 else f" of {units.count(record.passes)} backward passes"
    loss = "" if record.loss is None else f", loss {units.loss(record.loss)}"
    return f"gradients{passes} never used in a step{loss}"


def pause_changed(record: PauseChanged) -> str:
    """``paused``; with the reason if the trainer paused by itself."""
    text = "paused" if record.paused else "resumed"
    return f"{text}: {_first_line(record.reason)}" if record.reason else text


def checkpoint_written(record: CheckpointWritten) -> str:
    """``checkpoint step-000001200.pt, 12.3 MiB``."""
    return f"checkpoint {record.name}, {units.number_of_bytes(record.size_bytes)}"


def weights_saved(record: WeightsSaved) -> str:
    """``averaged weights saved to /home/me/mine.pt``."""
    return f"{'averaged weights' if record.averaged else 'weights'} saved to {record.path}"


def run_resumed(record: RunResumed) -> str:
    """``resumed after step 1,200 from step-000001200.pt on NVIDIA H200; 37 steps are repeated``.

    After a restart by the launcher also how many there were, and why.
    """
    text = f"resumed after step {units.count(record.step)} from {record.checkpoint} on {record.device_name}"
    if not record.checkpoint and record.step:
        text = f"the script continues after step {units.count(record.step)} on {record.device_name}"
    elif not record.checkpoint:
        text = f"started from the beginning, before the first checkpoint, on {record.device_name}"
    if record.restarts:
        text = f"restart {units.count(record.restarts)}, {' '.join(record.cause.split())}: {text}"
    if record.lost_steps:
        again = "step is" if record.lost_steps == 1 else "steps are"
        text += f"; {units.count(record.lost_steps)} {again} repeated"
    return text


def not_saved(changes: Sequence[KeepingChanged]) -> str:
    """``journal and checkpoints not saved``."""
    return f"{' and '.join(change.what for change in changes)} not saved"


def run_ended(outcome: RunFinished | RunFailed) -> str:
    """``done after 2,340 steps in 0:41``; of a failure its error, on one line.

    ``not watched after step 12: ...`` of a script that went on alone.
    """
    if isinstance(outcome, RunFailed):
        where = f" at step {units.count(outcome.step)}" if outcome.step else ""
        return f"failed{where}: {' '.join(outcome.error.split())}"
    if outcome.unwatched:
        return f"not watched after step {units.count(outcome.steps)}: {outcome.unwatched}"
    steps = units.counted(outcome.steps, "step")
    return f"{outcome.reason} after {steps} in {units.duration(outcome.seconds)}"


def _xray_details(xray: XRayTaken) -> list[str]:
    layers = map(probe_words.layer_line, least_agreeing(xray.layers)[:_WORST_LAYERS])
    return [probe_words.xray_losses(xray), *layers, f"took {units.milliseconds(xray.seconds)}"]


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


def _other_lines(text: str) -> list[str]:
    return text.strip().split("\n")[1:]


def _stack_lines(event: FindingReported) -> list[str]:
    """Rank by rank what each was doing, and its stack."""
    lines = []
    for stack in event.stacks:
        lines.append(f"rank {stack.rank}, {PHASE_WORDS[stack.phase]}, step {units.count(stack.step)}")
        lines.extend(stack.stack.splitlines())
    return lines


def float8_layers(record: Float8Layers) -> str:
    """``FP8: 16 of 17 layers in float8``."""
    layers = units.counted(record.layers + record.left_out_count, "layer")
    what = f"{units.count(record.layers)} of {layers} in float8"
    return f"{precision_label(record.precision)}: {what}"


def float8_details(record: Float8Layers) -> list[str]:
    """One line for each layer that does not multiply in float8, then the names of those that do."""
    names = ", ".join(name or "the model" for name in record.names)
    more = record.layers - len(record.names)
    other_left_out = record.left_out_count - len(record.left_out)
    lines = []
    for layer in record.left_out:
        what = f"{layer.kind} {'×'.join(map(str, layer.shape))}, {_HINDRANCES[layer.why]}"
        lines.append(f"{layer.name or 'the model'} in bfloat16: {what}")
    if other_left_out:
        lines.append(f"and {units.count(other_left_out)} more in bfloat16")
    return [*lines, f"in float8: {names}" + (f" and {units.count(more)} more" if more else "")]


_TEXTS: Mapping[type[Any], Callable[[Any], str]] = {
    RunStarted: run_started,
    PrecisionChanged: lambda it: f"{precision_label(it.previous)} → {precision_label(it.current)}",
    LossScaleChanged: lambda it: (
        f"{'overflow: ' if it.reason == 'backoff' else ''}"
        f"loss scale {probe_words.scale_move(it.previous, it.current)}"
    ),
    SkipRow: skipped,
    Storm: storm_text,
    ModulesTraced: lambda it: f"{'trace' if it.asked else 'automatic trace'}: {long_words(judge_trace(it))}",
    FindingReported: lambda it: long_words(it.finding),
    XRayTaken: lambda it: f"X-ray: {long_words(judge_xray(it))}",
    PrecisionsCompared: comparison_over,
    EpochFinished: epoch_finished,
    Validated: lambda it: f"validation {validation_words(it.validation)}",
    ModelCompiled: model_compiled,
    Float8Layers: float8_layers,
    PauseChanged: pause_changed,
    Note: lambda it: _first_line(it.text),
    Printed: lambda it: it.text.rstrip(),
    CheckpointWritten: checkpoint_written,
    WeightsSaved: weights_saved,
    RunResumed: run_resumed,
    KeepingChanged: lambda it: (
        it.trouble or f"saving {'the journal' if it.what == 'journal' else it.what} again"
    ),
    OptimizerFollowed: lambda it: (
        f"optimizer replaced: {it.kind} for {it.replaces}"
        if it.replaces
        else f"{it.kind} trains {it.model}, {units.count(it.parameters)} parameters"
    ),
    GradientsDropped: gradients_dropped,
    RunFinished: run_ended,
    RunFailed: lambda it: f"failed: {_first_line(it.error)}",  # the list has a column for the step
}

_DETAILS: Mapping[type[Any], Callable[[Any], list[str]]] = {
    SkipRow: _skip_details,
    Storm: _storm_details,
    ModulesTraced: lambda it: [
        f"{probe_words.place_of(module)}: {probe_words.distance(module)}" for module in it.nearest
    ],
    XRayTaken: _xray_details,
    PrecisionsCompared: lambda it: speed.result_cards(it)[1:],
    Float8Layers: float8_details,
    CheckpointWritten: lambda it: [
        f"written in {units.span(it.seconds)}, training blocked for {units.milliseconds(it.blocked_seconds)}"
    ],
    PauseChanged: lambda it: _other_lines(it.reason),
    FindingReported: _stack_lines,
    Note: lambda it: _other_lines(it.text),
    RunFailed: lambda it: [*_other_lines(it.error), *it.traceback.splitlines()],
}
