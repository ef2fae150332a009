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

RUN_KEYS = (
    Key("p", ("p",), "toggle_precision", "AMP", "switch the running training: FP32, or AMP and what m chose"),
    Key("space", ("space",), "toggle_pause", "pause", "pause after the current step, or resume", "resume"),
    Key("d", ("d",), "detach", "detach", "close the screen, training continues; amptui attach reopens it"),
    Key("s", ("s",), "write_checkpoint", "save", "write a checkpoint after the current step"),
    Key("m", ("m",), "choose_precision", "precision", "choose any precision that this device supports"),
    Key("c", ("c",), "compare", "compare", "alternate FP32 and AMP, or bf16 and FP8: speed-up and interval"),
    Key(
        "x",
        ("x",),
        "take_xray",
        "X-ray",
        "compare the next batch in FP32 and AMP or FP8, layer by layer",
        is_page=True,
    ),
    Key("n", ("n",), "trace_modules", "", "find the module that overflows first or comes closest to it"),
)
"""What needs a run that is still training."""

VIEW_KEYS = (
    Key("f", ("f",), "focus_numerics", "float16", "measure how gradients fit into float16", is_page=True),
    Key("o", ("o",), "next_optimizer", "optimizer", "show the next of several optimizers in all panels"),
    Key("l", ("l",), "toggle_log", "log", "switch the loss axis between logarithmic and linear"),
    Key("+", ("plus", "equals_sign"), "zoom(1)", "", "zoom in: show half as many steps"),
    Key("-", ("minus",), "zoom(-1)", "", "zoom out: show twice as many steps"),
    Key("0", ("0",), f"zoom({-MAX_ZOOM})", "", "show the whole run"),
    Key("tab", ("tab",), "next_panel", "", "enlarge the next panel; on its curve, ← → read values"),
    Key("escape", ("escape",), "all_panels", "", "show all panels again"),
    Key(
        "g",
        ("g",),
        "open('metrics')",
        "metrics",
        "chart everything that is logged, with a cursor",
        is_page=True,
    ),
    Key("e", ("e",), "open('events')", "events", "list all events, with their details", is_page=True),
    Key(
        "t",
        ("t",),
        OPEN_OUTPUT,
        "output",
        "show what the script or the model prints, and its traceback",
        is_page=True,
    ),
    Key(
        "i",
        ("i",),
        "open('configuration')",
        "",
        "show options, versions, hardware and environment",
        is_page=True,
    ),
    Key("?", ("question_mark",), "show_help", "help", "show or close this help", is_page=True),
)
"""What changes the view only: it works in a replay and after the end too."""

QUIT_KEYS = (
    Key("q", ("q", "ctrl+q"), "ask_quit", "quit", "quit; during training, choose to stop the run or detach"),
    Key("ctrl+c", ("ctrl+c",), "interrupt", "", "stop the run and quit without asking; if attached, detach"),
)

KEYS = (*RUN_KEYS, *VIEW_KEYS, *QUIT_KEYS)


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
            words = precision_label(switches_to).removesuffix(" emulated").removeprefix("AMP ")
        if has_traceback and key.action == OPEN_OUTPUT:
            first.append((key.label, "traceback"))
        elif words and (several_optimizers or key.action != "next_optimizer"):
            hints.append((key.label, words))
    return (*first, *hints)


FOOTER_HINTS = footer_hints(KEYS)

ENDED_KEYS = (*VIEW_KEYS, *QUIT_KEYS)
"""What still works once the run has ended."""

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


@cache
def keys_of(
    accepts: frozenset[RequestKind], unsupported: frozenset[RequestKind] = frozenset()
) -> tuple[Key, ...]:
    """The keys that work in a live run that takes these kinds of request.

    ``unsupported``: those of which the device does not support the precisions that a key would ask for. The
    menu of all precisions stays.
    """
    taken = accepts - unsupported
    return tuple(
        key
        for key in KEYS
        if key.action not in REQUESTS
        or REQUESTS[key.action] in (accepts if key.action == "choose_precision" else taken)
    )
