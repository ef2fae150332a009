"""Lines for a person at the prompt, on streams whose other end may be gone."""

import sys

from amptui.inert import write_line


def say(*lines: str) -> None:
    """Write lines to standard output."""
    for line in lines:
        write_line(sys.stdout, line)


def complain(text: str) -> None:
    """Write ``amptui: text`` to standard error."""
    write_line(sys.stderr, f"amptui: {text}")
