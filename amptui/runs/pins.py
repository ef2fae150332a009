"""The metrics that a user pinned to the screen: kept in ``$XDG_STATE_HOME/amptui/pinned.json``."""

import json
from pathlib import Path

from amptui.base import strictjson
from amptui.base.errors import RunFolderError
from amptui.base.runfiles import open_to_read, replace_text
from amptui.runs.rundir import make_private, reason, xdg_folder

Pins = tuple[tuple[str, str], ...]
"""Kind and name of each."""

_MAX_BYTES = 4096


def read_pins() -> Pins:
    """Those that were written last; none if the file is missing, unreadable or no list of them."""
    try:
        with open_to_read(_path()) as file:
            content = strictjson.parse(file.read(_MAX_BYTES))
    except (OSError, ValueError, RunFolderError):
        return ()
    if not isinstance(content, list) or not all(isinstance(pin, list) and len(pin) == 2 for pin in content):
        return ()
    pins = ((kind, name) for kind, name in content if type(kind) is str and type(name) is str)
    return tuple(dict.fromkeys(pins))


def write_pins(pins: Pins) -> str:
    """Keep ``pins`` for the user's next screen; the reason if that fails, else empty."""
    text = json.dumps(pins)
    if len(text) > _MAX_BYTES:
        return "their names are too long"
    try:
        path = _path()
        make_private(path.parent)
        replace_text(path, text)
    except OSError as error:
        return reason(error)
    except RunFolderError as error:
        return str(error)
    return ""


def _path() -> Path:
    return xdg_folder("XDG_STATE_HOME", ".local/state") / "amptui" / "pinned.json"
