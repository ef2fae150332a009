"""Requests to the run from any screen, in words: what is pending, and what was refused."""

from amptui.diagnosis.labels import precision_label
from amptui.records.answers import RequestKind, RequestMade, RequestRefused
from amptui.telemetry.view import SessionView
from amptui.tui.panels import ab_comparison

_NAMES: dict[RequestKind, str] = {
    "x-ray": "X-ray",
    "trace": "trace",
    "histogram": "histogram",
    "checkpoint": "checkpoint",
}


def newest(view: SessionView, kind: RequestKind) -> RequestMade | None:
    """The last request of that kind that has no answer yet."""
    return next((made for made in reversed(view.pending) if made.kind == kind), None)


def wanted_precision(view: SessionView) -> str | None:
    """The last precision requested that is not running yet."""
    made = newest(view, "precision")
    return None if made is None or made.precision == view.precision else made.precision


def pending_words(view: SessionView) -> list[str]:
    """``comparing: round  3/24, c ends it``, ``X-ray with the next step …``: all pending requests."""
    runs, comparison = ab_comparison.running(view), newest(view, "comparison")
    words = []
    if runs is not None:
        words.append(f"comparing: {ab_comparison.short_round_words(runs)}, c ends it")
    elif comparison is not None and comparison.precisions:
        words.append("comparison starts at the next step …")
    kinds = [made.kind for made in view.pending]
    probes = dict.fromkeys(_NAMES[kind] for kind in kinds if kind in ("x-ray", "trace", "histogram"))
    if probes:
        when = "when training resumes" if view.state == "paused" else "with the next step"
        words.append(f"{' and '.join(probes)} {when} …")
    if "checkpoint" in kinds:
        words.append("checkpoint after this step …")
    return words


def refusal_words(refused: RequestRefused) -> str:
    """``no X-ray: CUDA out of memory``; empty if another request overruled it: that one is shown."""
    request, detail = refused.request, refused.detail
    if refused.reason == "overruled":
        return ""
    if refused.reason == "comparison running":
        return "already comparing: c ends it"
    if request.kind in _NAMES:
        return f"no {_NAMES[request.kind]}: {detail}"
    if request.precision is not None and refused.reason == "unavailable":
        return f"{precision_label(request.precision)}: {detail}"
    return detail
