"""The table of keys: dispatch, footer, help and replay read it, and a test holds the README to it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from amptui.diagnosis.labels import precision_label
from amptui.records.answers import RequestKind


@dataclass(frozen=True, slots=True)
class Key:
    """A key and what it does."""

    label: str
    """The key as the screen shows it."""
    presses: tuple[str, ...]
    """Textual's names of the presses that count as this key."""
    action: str
    hint: str
    """One word for the footer; empty if the key is not shown there."""
    meaning: str
    """One line for the help."""
    hint_paused: str = ""
    """The word while the run is paused, if it is another."""
    is_page: bool = False
    """Whether it opens something to read, which it does from other pages too."""


MAX_ZOOM = 16

OPEN_OUTPUT = "open('output')"

_ZOOM = ("plus", "equals_sign", "minus", "0")

KEYS = (
    Key("p", ("p",), "toggle_precision", "AMP", "switch this run to FP32, and back to AMP"),
    Key("c", ("c",), "compare", "compare", "alternate FP32 and AMP: the speed-up with a 95% interval"),
    Key("f", ("f",), "focus_numerics", "float16", "check gradients against float16's range", is_page=True),
    Key("x", ("x",), "take_xray", "gradients", "compare gradients in FP32 and AMP, by layer", is_page=True),
    Key("d", ("d",), "detach", "detach", "close the screen, training continues; amptui attach reopens it"),
    Key("space", ("space",), "toggle_pause", "pause", "pause or resume", "resume"),
    Key("s", ("s",), "write_checkpoint", "save", "write a checkpoint"),
    Key("m", ("m",), "choose_precision", "precision", "choose any precision"),
    Key("n", ("n",), "trace_modules", "", "find what overflows"),
    Key("tab", ("tab",), "next_panel", "", "enlarge the next panel; ← → move its cursor"),
    Key("esc", ("escape",), "all_panels", "", "show all panels"),
    Key("+ - 0", _ZOOM, "zoom('{press}')", "", "zoom in, out; all steps"),
    Key("l", ("l",), "toggle_log", "log axis", "log or linear loss"),
    Key("o", ("o",), "next_optimizer", "optimizer", "show the next optimizer"),
    Key("g", ("g",), "open('metrics')", "metrics", "plot what is logged", is_page=True),
    Key("e", ("e",), "open('events')", "events", "events with their details", is_page=True),
    Key("t", ("t",), OPEN_OUTPUT, "output", "what the run prints", is_page=True),
    Key("i", ("i",), "open('configuration')", "", "options and versions", is_page=True),
    Key("?", ("question_mark",), "show_help", "keys", "these keys, then a glossary", is_page=True),
    Key("q", ("q", "ctrl+q"), "leave", "quit", "quit; asks first while training"),
    Key("ctrl+z", ("ctrl+z",), "suspend_process", "", "suspend the screen; training goes on"),
    Key("ctrl+c", ("ctrl+c",), "interrupt", "", "stop the run and quit; if attached, detach"),
)


def footer_hints(
    keys: Sequence[Key],
    *,
    paused: bool = False,
    switches_to: str = "",
    several_optimizers: bool = False,
    has_traceback: bool = False,
) -> tuple[tuple[str, str], ...]:
    """The footer's hints: each key with its word; ``switches_to`` is the precision that ``p`` asks for.

    If the run ended with a traceback, its key is the first, which has a place on every screen.
    """
    first, hints = [], []
    for key in keys:
        words = (paused and key.hint_paused) or key.hint
        if key.action == "toggle_precision" and switches_to:
            words = precision_label(switches_to).removeprefix("AMP ")
        if has_traceback and key.action == OPEN_OUTPUT:
            first.append((key.label, "traceback"))
        elif words and (several_optimizers or key.action != "next_optimizer"):
            hints.append((key.label, words))
    return (*first, *hints)


FOOTER_HINTS = footer_hints(KEYS)

REQUESTS: Mapping[str, RequestKind] = {
    "toggle_precision": "precision",
    "choose_precision": "precision",
    "toggle_pause": "pause",
    "write_checkpoint": "checkpoint",
    "compare": "comparison",
    "take_xray": "x-ray",
    "trace_modules": "trace",
}
"""What an action asks of the run; stopping and detaching are choices of their own."""


ENDED_KEYS = tuple(key for key in KEYS if key.action not in (*REQUESTS, "detach"))
"""What changes the view only: it works in a replay and once the run has ended too."""


@cache
def keys_of(accepts: frozenset[RequestKind]) -> tuple[Key, ...]:
    """The keys that work in a live run that takes these kinds of request."""
    return tuple(key for key in KEYS if key.action not in REQUESTS or REQUESTS[key.action] in accepts)
