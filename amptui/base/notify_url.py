"""How the URL of ``--notify`` comes to the process of a run: in the environment, which that process clears.

Imports next to nothing: a script that is observed loads it before its own first line.
"""

import os
from collections.abc import MutableMapping

VARIABLE = "AMPTUI_NOTIFY"
"""The environment variable with the URL. A user may set it as well."""


def take_url(environment: MutableMapping[str, str] = os.environ) -> str:
    """The URL of this process's run, or ``""``; no child process inherits it from here on."""
    return environment.pop(VARIABLE, "")
