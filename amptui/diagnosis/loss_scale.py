"""The loss scaler in words: its state, skipped steps, and its next growth."""

import math
from collections.abc import Mapping

from amptui.base import units
from amptui.diagnosis.labels import precision_label
from amptui.diagnosis.nonfinite import (
    LOSS_NOT_FINITE_EXPLAINED,
    by_module,
    first_and_more,
    on_ranks,
    span,
)
from amptui.diagnosis.probe_words import what_overflowed_first
from amptui.diagnosis.words import LOSS_NOT_FINITE, long_words
from amptui.records.run import COLLAPSE_SKIPS, LossScaleChanged, StepSkipped
from amptui.telemetry.events import ScaleMove, SkipRow
from amptui.telemetry.health import judge_trace
from amptui.telemetry.scaling import SkipMeaning
from amptui.telemetry.view import GrowthOutlook, SessionView

NEVER_USED = "no loss scale: only AMP fp16 uses one"


def idle_words(view: SessionView) -> str:
    """``kept while FP32 runs``; "" if the scale is in use or there is none."""
    if view.scaler.scale is None or view.precision in (None, "fp16"):
        return ""
    return f"kept while {precision_label(view.precision)} runs"


def last_change(change: LossScaleChanged | None) -> str:
    """``backoff at step 612: 131,072 → 65,536``; empty without a change."""
    if change is None:
        return ""
    return f"{change.reason} at step {units.count(change.step)}: {_move(change.previous, change.current)}"


def outlook(growth: GrowthOutlook | None) -> str:
    """``the scale doubles in 760 steps, headroom then 1.4``, or that it will overflow; else empty."""
    if growth is None:
        return ""
    after = f"the scale doubles in {units.counted(growth.steps, 'step')}"
    if growth.overflow_step is not None:
        scale, step = units.count(growth.overflow_scale), units.count(growth.overflow_step)
        return f"{after} and will probably overflow: {scale} overflowed at step {step}"
    assert growth.headroom_then is not None, "an outlook has a headroom or an overflow"
    if growth.headroom_then < 0:
        return f"{after} and will probably overflow: smallest headroom {units.doublings(growth.headroom_now)}"
    return f"{after}, headroom then {units.doublings(growth.headroom_then)}"


def scale_moved(move: ScaleMove) -> str:
    """``loss scale 65,536 → 131,072 after 2,000 clean steps``, or a backoff."""
    change, interval = move.record, move.growth_interval
    moved = f"loss scale {_move(change.previous, change.current)}"
    if change.reason == "backoff":
        return f"overflow: {moved}"
    return f"{moved} after {units.count(interval)} clean steps" if interval else moved


def _move(previous: float, current: float | None) -> str:
    """``131,072 → 65,536``; only the first if the second is unknown."""
    return units.count(previous) + ("" if current is None else f" → {units.count(current)}")


# ------------------------------------------------------------------- a run that paused by itself

WITHOUT_OVERFLOW = {"bf16": "float32's range, no loss scaling", "fp32": "no overflow at 65,504"}
"""Why another precision helps."""


def pause_causes(view: SessionView) -> list[str]:
    """What is known about the cause of a pause that nobody asked for."""
    scaler = view.numerics.scaler
    causes = [long_words(scaler)] if scaler.freshness == "fresh" else []
    if view.pause_cause == "weights" and view.checkpoint is None:
        causes = ["there is no checkpoint to go back to: quit and restart with a smaller --lr"]
    elif view.pause_cause == "weights" and view.checkpoint is not None:
        causes = [f"to go back to {view.checkpoint.name}: quit, then amptui train --resume"]
    trace = view.numerics.trace
    return list(dict.fromkeys(causes if trace is None else [*causes, long_words(judge_trace(trace))]))


def resume_words(view: SessionView) -> str:
    """What it means to go on in the same precision."""
    if view.pause_cause == "weights":
        return "continue, though NaN weights never recover"
    return f"continue with the loss scale held at {units.count(view.scaler.scale)}"


# ----------------------------------------------------------------------------------- skipped steps


def skipped(row: SkipRow) -> str:
    """``overflow: step skipped, scale 131,072 → 65,536, ...``, with what it means."""
    first, last = row.first[0], row.newest
    steps = "step skipped"
    if row.count > 1:
        steps = f"{units.count(row.count)} steps in a row skipped {span(first.step, last.step)}"
    scale_now = row.scale_after
    if scale_now is None and row.count > 1:
        scale_now = last.loss_scale  # the lowest known one
    where = f", non-finite gradient in {first_and_more(last.names, last.count)}" if last.names else ""
    where += f"{'' if where else ','}{on_ranks(last.ranks)}" if last.ranks else ""
    return f"overflow: {steps}, scale {_move(first.loss_scale, scale_now)}{where}; {skip_means(row)}"


def skip_means(row: SkipRow) -> str:
    """What skipped steps mean and what to do, in one line."""
    began = row.trace.first if row.trace is not None else None
    if row.meaning == "forward overflow":
        return LOSS_NOT_FINITE if row.trace is None else long_words(judge_trace(row.trace))
    if row.meaning in ("collapsed", "falling"):
        suspect = next((name.rpartition(".")[0] or name for name in row.newest.names), "")
        if began is not None:
            suspect = f"{began.name or 'the model'} ({began.kind}, {began.dtype})"
        scale = "has collapsed" if row.meaning == "collapsed" else "keeps falling"
        return f"the scale {scale}: switch to bf16 or FP32{f'; check {suspect}' if suspect else ''}"
    return "calibration, normal" if row.meaning == "calibration" else "normal"


def skip_details(row: SkipRow) -> list[str]:
    """An explanation, a line for each skip kept, and one for the trace."""
    left_out = row.count - len(row.first) - len(row.last)
    lines = [_EXPLAINED[row.meaning], *map(_skip_line, row.first)]
    if left_out:
        lines.append(f"{units.count(left_out)} more")
    lines += map(_skip_line, row.last)
    if row.trace is not None:
        module = what_overflowed_first(row.trace) or long_words(judge_trace(row.trace))
        lines.append(f"trace of step {units.count(row.trace.step)}: {module}")
    return lines


_EXPLAINED: Mapping[SkipMeaning, str] = {
    "forward overflow": LOSS_NOT_FINITE_EXPLAINED,
    "calibration": "The scaler starts with a high scale on purpose and halves it until the gradients fit "
    "into float16: the first few skipped steps are part of that. Nothing to do.",
    "normal": "At this scale a gradient exceeded float16's range: the scaler skipped the step and halved "
    "its scale, which it will double again later. An occasional skip is normal: nothing to do.",
    "falling": f"After {COLLAPSE_SKIPS} skips in a row another halving is unlikely to help, and the model "
    "is not learning. Switch to bf16 or FP32, then check the layer whose gradients are not finite.",
    "collapsed": "Below 1 the scaler shrinks gradients, the opposite of its purpose; at 0 the next step "
    "would turn every weight into NaN. Switch to bf16 or FP32, then check the layer whose gradients are "
    "not finite.",
}


def _skip_line(skip: StepSkipped) -> str:
    """``step 612, scale 131,072, loss 0.503: Inf in features.13.conv (weight); 2 more``."""
    loss = "not measured" if skip.loss is None else units.loss(skip.loss)
    finite = "" if skip.loss is None or math.isfinite(skip.loss) else " (not finite)"
    step = f"step {units.count(skip.step)}, scale {units.count(skip.loss_scale)}, loss {loss}{finite}"
    places = by_module(skip.names, skip.kinds, skip.count)
    if not places and skip.count:
        places = f"NaN or Inf in {units.count(skip.count)} gradients"
    step += f",{on_ranks(skip.ranks)}" if skip.ranks else ""
    return f"{step}: {places}" if places else step
