"""Which warnings end a test: all, but other people's deprecations only where the environment asks for it.

What a newer torch, Python or textual calls deprecated still works: after the README's command it stands in
pytest's summary of warnings, and `.ci/run` fails by it. amptui itself gives no warning of these categories.
"""

import os

STRICT = "AMPTUI_STRICT_WARNINGS"
"""The variable that makes them errors, set to 1."""

CATEGORIES = ("DeprecationWarning", "PendingDeprecationWarning", "FutureWarning")


def filters_for_pytest() -> list[str]:
    """What to add to the ``filterwarnings`` of ``pyproject.toml``; of lines that match, the last counts."""
    if not _are_errors():
        return []
    errors = [f"error::{category}" for category in CATEGORIES]
    return [*errors, "ignore::DeprecationWarning:torch"]  # of torch's own modules: not ours to repair


def options_for_python() -> list[str]:
    """Options for a Python that is to end by a warning, as a test does; it prints no deprecation either."""
    tolerated = [] if _are_errors() else [f"ignore::{category}" for category in CATEGORIES]
    return [option for action in ("error", *tolerated) for option in ("-W", action)]


def _are_errors() -> bool:
    return os.environ.get(STRICT, "0") not in ("", "0")
