"""One line of the event list, in plain English, for each record that a person should read."""

from amptui import units
from amptui.findings import ModelCompiled, ModulesTraced, PrecisionsCompared, XRayTaken
from amptui.records import (
    CheckpointWritten,
    EpochFinished,
    KeepingChanged,
    LossScaleChanged,
    Note,
    PauseChanged,
    PrecisionChanged,
    RunFailed,
    RunFinished,
    RunResumed,
    RunStarted,
    Severity,
    ViewersChanged,
)
from amptui.telemetry import health
from amptui.telemetry.card import result_cards
from amptui.telemetry.labels import precision_label
from amptui.telemetry.scaling import MIN_SOUND_SCALE
from amptui.telemetry.view import Event, EventKind


def run_started(record: RunStarted) -> Event:
    """``run started: mnist-deep on NVIDIA H200, MNIST, FP32``."""
    data = record.data.name if record.data.real else f"{record.data.name} (synthetic)"
    label = precision_label(record.precision)
    text = f"run started: {record.model} on {record.device_name}, {data}, {label}"
    return Event(record.time, None, "note", "info", text)


def precision_changed(record: PrecisionChanged) -> Event:
    """``FP32 → AMP fp16``."""
    text = f"{precision_label(record.previous)} → {precision_label(record.current)}"
    return Event(record.time, record.step, "switch", "info", text)


def precisions_compared(record: PrecisionsCompared, run: RunStarted | None) -> Event:
    """The result of a comparison, one card a line, or that it was stopped before it had one."""
    cards = result_cards(record, run)
    stopped = "comparison stopped: " if record.reason == "stopped" else ""
    first, *rest = cards or ["no precision finished a block"]
    return Event(record.time, record.step, "compared", "info", stopped + first, "\n".join(rest))


def loss_scale_changed(record: LossScaleChanged, growth_interval: int | None) -> Event:
    """A growth, or a backoff without a record of its skipped step."""
    moved = f"loss scale {scale_move(record.previous, record.current)}"
    if record.reason == "growth":
        after = f" after {units.count(growth_interval)} clean steps" if growth_interval else ""
        return Event(record.time, record.step, "growth", "info", moved + after)
    severity: Severity = "error" if record.current < MIN_SOUND_SCALE else "info"
    return Event(record.time, record.step, "skip", severity, f"overflow: {moved}")


def epoch_finished(record: EpochFinished) -> Event:
    """``epoch 3: loss 0.0312, validation 0.0351 99.1% in 2.30 s``."""
    text = f"epoch {units.count(record.epoch)}: loss {units.loss(record.mean_loss)}"
    if record.validation is not None:
        text += f", validation {units.loss(record.validation.loss)}"
        if record.validation.accuracy is not None:
            text += f" {units.percent(record.validation.accuracy, digits=1)}"
    if record.seconds is not None:
        text += f" in {_span(record.seconds)}"
    return Event(record.time, record.step, "epoch", "info", text)


def pause_changed(record: PauseChanged) -> Event:
    """``paused after step 600``; an error with the reason if the trainer paused by itself."""
    text = f"{'paused' if record.paused else 'resumed'} after step {units.count(record.step)}"
    if not record.reason:
        return Event(record.time, record.step, "pause", "info", text)
    line, _, rest = record.reason.strip().partition("\n")
    return Event(record.time, record.step, "pause", "error", f"{text}: {line}", rest)


def modules_traced(record: ModulesTraced) -> Event:
    """The module that overflowed first, if any; the modules closest to an overflow in the detail."""
    verdict = health.judge_trace(record)
    asked = "trace" if record.asked else "automatic trace"
    nearest = (f"{health.place_of(found)}: {health.distance(found)}" for found in record.nearest)
    kind: EventKind = "note" if record.first is None else "nonfinite"
    text = f"{asked}: {verdict.text}"
    return Event(record.time, record.step, kind, verdict.severity, text, "\n".join(nearest))


def xray_taken(record: XRayTaken) -> Event:
    """The verdict on an X-ray; losses, memory and the layers that agree least in the detail."""
    verdict = health.judge_xray(record)
    detail = health.xray_details(record)
    return Event(record.time, record.step, "note", verdict.severity, f"X-ray: {verdict.text}", detail)


def model_compiled(record: ModelCompiled) -> Event:
    """``compiled for FP32 in 9.6 s``; a recompilation gives torch's reason."""
    what = {
        "first": "compiled",
        "again": "recompiled",
        "graphs": "recorded CUDA graphs",
    }[record.what]
    where = precision_label(record.precision) + ("" if record.training else " validation")
    text = f"{what} for {where} in {_span(record.seconds)}"
    return Event(
        record.time, record.step, "note", "info", text + (f": {record.reason}" if record.reason else "")
    )


def note(record: Note) -> Event:
    """A note: its first line in the list, the others in the detail."""
    line, _, rest = record.text.strip().partition("\n")
    return Event(record.time, None, "note", record.severity, line, rest)


def checkpoint_written(record: CheckpointWritten) -> Event:
    """``checkpoint step-000001200.pt: 12.3 MiB in 0.41 s, training blocked for 12 ms``."""
    text = (
        f"checkpoint {record.name}: {units.number_of_bytes(record.size_bytes)} in "
        f"{_span(record.seconds)}, training blocked for "
        f"{units.milliseconds(record.blocked_seconds)}"
    )
    return Event(record.time, record.step, "note", "info", text)


def run_resumed(record: RunResumed, device_before: str) -> Event:
    """``resumed after step 1,200 from step-000001200.pt on NVIDIA H200; 37 steps are repeated``."""
    text = f"resumed after step {units.count(record.step)} from {record.checkpoint} on {record.device_name}"
    if record.device_name != device_before:
        text += f" (was {device_before}): the comparison starts over"
    if record.lost_steps:
        again = "step is" if record.lost_steps == 1 else "steps are"
        text += f"; {units.count(record.lost_steps)} {again} repeated"
    return Event(record.time, record.step, "note", "info", text)


def keeping_changed(record: KeepingChanged) -> Event:
    """What is no longer saved, as an error, or that it is saved again."""
    again = {"journal": "saving the journal again", "checkpoints": "saving checkpoints again"}
    severity: Severity = "error" if record.trouble else "info"
    return Event(record.time, None, "note", severity, record.trouble or again[record.what])


_VIEWER_CHANGES = {
    "attached": "screen attached",
    "detached": "screen detached",
    "hung up": "terminal closed",
    "lost": "screen disconnected",
    "refused": "connection refused",
}


def viewers_changed(record: ViewersChanged) -> Event:
    """``terminal closed; training continues, 0 watching``."""
    text = _VIEWER_CHANGES[record.change]
    if record.detail:
        text += f": {record.detail}"
    continues = "" if record.change in ("attached", "refused") else "; training continues"
    return Event(record.time, None, "note", "info", f"{text}{continues}, {record.viewers} watching")


def run_finished(record: RunFinished) -> Event:
    """``done: 2,340 steps in 0:41``."""
    text = f"{record.reason}: {units.count(record.steps)} steps in {_span(record.seconds)}"
    return Event(record.time, record.steps, "finished", "info", text)


def run_failed(record: RunFailed) -> Event:
    """The error in one line, with its traceback to open."""
    line, _, rest = record.error.strip().partition("\n")
    detail = "\n".join(part for part in (rest, record.traceback) if part)
    return Event(record.time, record.step, "failed", "error", f"failed: {line}", detail)


def run_ended(record: RunFinished | RunFailed) -> Event:
    """Either of the two."""
    return run_finished(record) if isinstance(record, RunFinished) else run_failed(record)


def scale_move(previous: float, current: float | None) -> str:
    """``131,072 → 65,536``; only the first if the second is unknown."""
    return units.count(previous) + ("" if current is None else f" → {units.count(current)}")


def _span(seconds: float) -> str:
    """Seconds with three digits below a minute, otherwise as a clock shows them."""
    return units.milliseconds(seconds) if seconds < 60 else units.duration(seconds)
