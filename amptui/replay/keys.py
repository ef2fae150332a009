"""The keys of a replay: those that move it, and those of the screen that only look."""

from amptui.tui.keys import KEYS, Key

MOVING = (
    Key("space", ("space",), "toggle_pause", "pause", "pause the replay, or go on; at its end begin again"),
    Key(".", ("full_stop",), "faster", "faster", "play twice as fast"),
    Key(",", ("comma",), "slower", "slower", "play half as fast"),
    Key(">", ("greater_than_sign", "right"), "skip_on", "on", "go on by a twentieth of the run; so does →"),
    Key("<", ("less_than_sign", "left"), "skip_back", "back", "go back by a twentieth of the run; so does ←"),
    Key("end", ("end",), "skip_to_end", "", "go to the end"),
    Key("home", ("home",), "begin_again", "", "go to the beginning"),
    Key("x", ("x",), "take_xray", "X-ray", "the newest X-ray that was recorded up to here"),
)
"""What a replay does otherwise than a training, or only a replay does."""

LOOKING = frozenset(
    {
        "focus_numerics",
        "toggle_log",
        "zoom_in",
        "zoom_out",
        "zoom_all",
        "next_panel",
        "all_panels",
        "browse_events",
        "show_help",
    }
)
"""What looks at a run and asks nothing of it: the same in a replay."""

_QUIT = Key("q", ("q", "ctrl+q", "ctrl+c"), "ask_quit", "quit", "leave the replay")

REPLAY_KEYS = (*MOVING, *(key for key in KEYS if key.action in LOOKING), _QUIT)
"""All keys of a replay, for its footer and its help; the screen's others ask something of a training."""
