"""The one table of keys: it feeds dispatch, footer, help and the README's test."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Key:
    """A key and what it does."""

    label: str
    """How the screen shows it."""
    presses: tuple[str, ...]
    """Textual's names for the presses that count as this key."""
    action: str
    hint: str
    """One word for the footer; empty keeps the key out of it."""
    meaning: str
    """One line for the help and the README."""


KEYS = (
    Key("p", ("p",), "toggle_precision", "AMP", "switch the running training between FP32 and AMP"),
    Key("space", ("space",), "toggle_pause", "pause", "pause after the current step, or resume"),
    Key("d", ("d",), "detach", "detach", "close the screen, training continues; amptui attach reopens it"),
    Key("s", ("s",), "write_checkpoint", "save", "write a checkpoint after the current step"),
    Key("m", ("m",), "choose_precision", "precision", "choose any precision that this device supports"),
    Key(
        "c",
        ("c",),
        "compare",
        "compare",
        "alternate FP32 and AMP: the speed-up with a 95% interval",
    ),
    Key("x", ("x",), "take_xray", "X-ray", "compare the next batch in FP32 and AMP, layer by layer"),
    Key("f", ("f",), "focus_numerics", "float16", "show how the gradients fit into float16, or all panels"),
    Key("n", ("n",), "trace_modules", "", "find the module that overflows first or comes closest to it"),
    Key("l", ("l",), "toggle_log", "log", "switch the loss axis between logarithmic and linear"),
    Key("+", ("plus", "equals_sign"), "zoom_in", "", "zoom in: show half as many steps"),
    Key("-", ("minus",), "zoom_out", "", "zoom out: show twice as many steps"),
    Key("0", ("0",), "zoom_all", "", "show the whole run"),
    Key("tab", ("tab",), "next_panel", "", "enlarge the next panel to the whole screen"),
    Key("escape", ("escape",), "all_panels", "", "show all panels again"),
    Key("e", ("e",), "browse_events", "events", "list all events, with their details"),
    Key("?", ("question_mark",), "show_help", "help", "show or close this help"),
    Key(
        "q",
        ("q", "ctrl+q"),
        "ask_quit",
        "quit",
        "quit; during training, choose to stop the run or detach",
    ),
    Key("ctrl+c", ("ctrl+c",), "interrupt", "", "stop the run and quit without asking; if attached, detach"),
)

FOOTER_HINTS = tuple((key.label, key.hint) for key in KEYS if key.hint)

ACTIONS = {press: key.action for key in KEYS for press in key.presses}
"""Press to action."""
