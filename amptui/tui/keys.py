"""The one table of keys: it feeds dispatch, footer, help and the README's test."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Key:
    """A key and what it does."""

    label: str
    """As it is written on the screen."""
    presses: tuple[str, ...]
    """Textual's names of the presses that count as this key."""
    action: str
    hint: str
    """One word for the footer; empty keeps the key out of it."""
    meaning: str
    """One line for the help and the README."""


KEYS = (
    Key("p", ("p",), "toggle_precision", "precision", "switch the running training between FP32 and AMP"),
    Key("space", ("space",), "toggle_pause", "pause", "pause after the current step, or go on"),
    Key("d", ("d",), "detach", "detach", "leave the screen, training goes on; amptui attach comes back"),
    Key("s", ("s",), "write_checkpoint", "save", "write a checkpoint after the current step"),
    Key("m", ("m",), "choose_precision", "modes", "choose any precision this device can run"),
    Key(
        "c",
        ("c",),
        "compare",
        "compare",
        "measure FP32 and AMP in turns: how much faster, and how surely",
    ),
    Key("x", ("x",), "take_xray", "X-ray", "X-ray the next batch: FP32 beside AMP, layer by layer"),
    Key("f", ("f",), "focus_numerics", "float16", "how the gradients fit into float16, or all panels again"),
    Key("n", ("n",), "trace_modules", "", "name the module that overflows first or comes nearest to it"),
    Key("l", ("l",), "toggle_log", "log", "logarithmic or linear axis for the loss"),
    Key("+", ("plus", "equals_sign"), "zoom_in", "", "show half as many steps, the newest"),
    Key("-", ("minus",), "zoom_out", "", "show twice as many steps"),
    Key("0", ("0",), "zoom_all", "", "show the whole run"),
    Key("tab", ("tab",), "next_panel", "", "give the next panel the whole screen"),
    Key("escape", ("escape",), "all_panels", "", "show all panels again"),
    Key("e", ("e",), "browse_events", "events", "read all events; each with its details"),
    Key("?", ("question_mark",), "show_help", "help", "show this help, or leave it"),
    Key(
        "q",
        ("q", "ctrl+q"),
        "ask_quit",
        "quit",
        "quit; while training it asks whether to stop the run or detach",
    ),
    Key("ctrl+c", ("ctrl+c",), "interrupt", "", "stop the run and leave without asking; if attached, detach"),
)

FOOTER_HINTS = tuple((key.label, key.hint) for key in KEYS if key.hint)

ACTIONS = {press: key.action for key in KEYS for press in key.presses}
"""Press to action."""
