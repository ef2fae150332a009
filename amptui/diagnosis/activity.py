"""What the run is doing, what any screen asked of it, what keys would ask for, and what it refused."""

from collections.abc import Collection, Sequence

from amptui.base import units
from amptui.diagnosis.labels import precision_label
from amptui.diagnosis.speed import round_words, running
from amptui.records.answers import RequestKind, RequestMade, RequestRefused
from amptui.records.run import (
    AMP_PRECISIONS,
    PRECISIONS,
    PhaseChanged,
    RunStarted,
    reference_precision,
)
from amptui.telemetry.comparison import BASELINES
from amptui.telemetry.view import SessionView

_PHASES = {"importing": "importing torch", "data": "loading data", "model": "building the model"}
"""What to say of a phase without a detail, if not its name."""

_REQUESTS: dict[RequestKind, str] = {
    "x-ray": "X-ray",
    "trace": "trace",
    "histogram": "histogram",
    "checkpoint": "checkpoint",
}

LOST = "the training process exited unexpectedly: see `amptui runs`"
"""Of a run that ended without its last record."""

_EARLY: dict[RequestKind, str] = {"precision": "switch", "comparison": "comparison", **_REQUESTS}


def waiting_words(view: SessionView, *, silence: str = "") -> str:
    """``downloading train-images 3.10 / 9.50 MiB``; "" while steps run, after the end and in ``silence``."""
    if view.state in ("finished", "failed") or silence:
        return ""
    if view.phase is None:
        return "starting" if view.state == "starting" else ""
    phase, amount = view.phase, ""
    if phase.done is not None and phase.unit == "bytes":
        amount = units.bytes_of(phase.done, phase.total)
    elif phase.done is not None:
        amount = units.count(phase.done) + ("" if phase.total is None else f"/{units.count(phase.total)}")
    return f"{phase_words(phase)} {amount}".strip()


def is_stopping(view: SessionView) -> bool:
    """Whether the run says that it is stopping, for whatever reason."""
    over = view.state in ("finished", "failed")
    return not over and view.phase is not None and view.phase.phase == "stopping"


def phase_words(phase: PhaseChanged | None) -> str:
    """``first step: autotuning kernels``, without the progress; "" while steps run."""
    if phase is None or phase.phase == "training":
        return ""
    if phase.phase == "first step" and phase.detail not in ("", "first step"):
        return f"first step: {phase.detail}"
    return phase.detail or _PHASES.get(phase.phase, phase.phase)


def newest(view: SessionView, kind: RequestKind) -> RequestMade | None:
    """The last request of that kind that has no answer yet."""
    return next((request for request in reversed(view.pending) if request.kind == kind), None)


def wanted_precision(view: SessionView) -> str | None:
    """The last precision requested that is not running yet."""
    request = newest(view, "precision")
    return None if request is None or request.precision == view.precision else request.precision


def switch_target(view: SessionView) -> str:
    """The precision that ``p`` asks for, "" before the run has begun: FP32; from there what ran before it."""
    if view.run is None:
        return ""
    comparison = running(view)
    chosen = comparison.chosen if comparison is not None else ""  # during a comparison, the one before it
    now = wanted_precision(view) or chosen or view.precision
    others = [name for name in PRECISIONS if name != "fp32" and name not in view.run.unsupported]
    return _last_ran(view.run, view, others) or view.run.amp_precision if now == "fp32" else "fp32"


def compared_precisions(view: SessionView) -> tuple[str, ...]:
    """What ``c`` compares: FP8 with its reference while it runs; else FP32 or TF32 with the run's AMP."""
    if view.run is None:
        return ()
    if view.precision == "fp8":
        return reference_precision(view.precision), view.precision
    amp = _last_ran(view.run, view, AMP_PRECISIONS) or view.run.amp_precision
    return _last_ran(view.run, view, BASELINES) or "fp32", amp


def _last_ran(run: RunStarted, view: SessionView, names: Collection[str]) -> str:
    """Which of these precisions runs, or ran last; "" if none did."""
    ran = (view.precision or "", *(switch.precision for switch in reversed(view.switches)), run.precision)
    return next((precision for precision in ran if precision in names), "")


def pending_words(view: SessionView, early: Sequence[RequestKind] = ()) -> list[str]:
    """``comparing: round 3/24, c ends it``, ``X-ray with the next step …``: all pending requests.

    ``early`` waits on this screen until the run has begun.
    """
    comparison, request = running(view), newest(view, "comparison")
    kept = ", ".join(_EARLY[kind] for kind in dict.fromkeys(early))
    words, target = [f"once training runs: {kept}"] if early else [], wanted_precision(view)
    if view.precision is None and target is not None:  # later the header shows it
        words.append(f"first step in {precision_label(target)}")
    if comparison is not None:
        words.append(f"comparing: {round_words(comparison, brief=True)}, c ends it")
    elif request is not None and request.precisions:
        words.append("comparison starts at the next step …")
    kinds = [request.kind for request in view.pending]
    probes = dict.fromkeys(_REQUESTS[kind] for kind in kinds if kind in ("x-ray", "trace", "histogram"))
    if probes:
        when = "when training resumes" if view.state == "paused" else "with the next step"
        words.append(f"{' and '.join(probes)} {when} …")
    if "checkpoint" in kinds:
        words.append("checkpoint after this step …")
    return words


def refusal_words(refusal: RequestRefused) -> str:
    """``no X-ray: CUDA out of memory``; empty if another request overruled it: that one is shown."""
    request, detail = refusal.request, refusal.detail
    if refusal.reason == "overruled":
        return ""
    if refusal.reason == "comparison running":
        return "already comparing: c ends it"
    if request.kind in _REQUESTS:
        return f"no {_REQUESTS[request.kind]}: {detail}"
    if request.precision is not None and refusal.reason == "unavailable":
        return f"{precision_label(request.precision)}: {detail}"
    return detail
