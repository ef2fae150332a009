"""The loss scaler in words: its state, skipped steps, and its next growth."""

import math
from collections.abc import Mapping, Sequence

from amptui.base import units
from amptui.diagnosis.float16_verdicts import module_of, origin_words, trace_verdict, what_overflowed_first
from amptui.diagnosis.labels import precision_label
from amptui.diagnosis.nonfinite import (
    LOSS_NOT_FINITE_EXPLAINED,
    by_module,
    first_and_more,
    on_ranks,
    span,
)
from amptui.records.findings import ModuleRange
from amptui.records.run import COLLAPSE_SKIPS, LossScaleChanged, StepSkipped
from amptui.telemetry.events import ScaleMove, SkipRow
from amptui.telemetry.scaling import ScalerVerdict, SkipMeaning
from amptui.telemetry.view import GrowthOutlook, SessionView

# -------------------------------------------------------------------------------------- the scaler


def scaler_state(verdict: ScalerVerdict) -> str:
    """The state's name; without an overflow the scaler is no judge of anything else."""
    state = "no overflow" if verdict.state == "healthy" else verdict.state
    return f"{state.replace('collapsing', 'collapsed')} in fp16" if verdict.is_past else state


def scaler_sentence(verdict: ScalerVerdict) -> str:
    """What the scaler's state means and what to do; empty while none is in use."""
    facts = verdict.facts
    if verdict.is_past:
        return ""
    if verdict.state == "forward overflow":
        return origin_words(verdict.trace)
    if verdict.state == "collapsing":
        names = facts.newest_skip.names if facts.newest_skip is not None else ()
        return _collapse(facts.skips_in_a_row < COLLAPSE_SKIPS, verdict.began, names)
    if verdict.severity == "warning":
        return "too many steps skipped by overflow: lower the learning rate, or use bf16"
    return _SCALER_IS_WELL.get(verdict.state, "")


_SCALER_IS_WELL: Mapping[str, str] = {
    "calibrating": "normal: the scale starts high on purpose and halves until the gradients fit",
    "healthy": "the scaler does not notice underflow",
    "backing off": "normal: the scaler finds its limit by occasional overflows",
}


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
    causes = [scaler_sentence(view.numerics.scaler)]
    if view.pause_cause == "weights" and view.checkpoint is None:
        causes = ["there is no checkpoint to go back to: quit and restart with a smaller --lr"]
    elif view.pause_cause == "weights" and view.checkpoint is not None:
        causes = [f"to go back to {view.checkpoint.name}: quit, then amptui train --resume"]
    return causes if view.numerics.trace is None else [*causes, trace_verdict(view.numerics.trace).text]


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
        return origin_words(row.trace)
    if row.meaning in ("collapsed", "falling"):
        return _collapse(row.meaning == "collapsed", began, row.newest.names)
    return "calibration, normal" if row.meaning == "calibration" else "normal"


def skip_details(row: SkipRow) -> list[str]:
    """An explanation, a line for each skip kept, and one for the trace."""
    left_out = row.count - len(row.first) - len(row.last)
    lines = [_EXPLAINED[row.meaning], *map(_skip_line, row.first)]
    if left_out:
        lines.append(f"{units.count(left_out)} more")
    lines += map(_skip_line, row.last)
    if row.trace is not None:
        module = what_overflowed_first(row.trace) or trace_verdict(row.trace).text
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


def _collapse(has_collapsed: bool, began: ModuleRange | None, names: Sequence[str]) -> str:
    """What to do about a scale below 1 or one that keeps falling, and the layer to look at.

    That is the module that ``began`` it, else the one of the worst of the parameters ``names``.
    """
    suspect = (names[0].rpartition(".")[0] or names[0]) if names else ""
    if began is not None:
        suspect = module_of(began)
    scale = "has collapsed" if has_collapsed else "keeps falling"
    return f"the scale {scale}: switch to bf16 or FP32{f'; check {suspect}' if suspect else ''}"
