"""Lines for a person at the prompt, on streams whose other end may be gone."""

import os
import sys

from amptui.inert import write_line


def replace_closed_streams() -> None:
    """Let standard streams that were closed before we started lead nowhere, and not into files of ours."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:  # the lowest that is free
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    # Python has none for those. They live as long as the process.
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def say(*lines: str) -> None:
    """Write lines to standard output."""
    for line in lines:
        write_line(sys.stdout, line)


def complain(text: str) -> None:
    """Write ``amptui: text`` to standard error."""
    write_line(sys.stderr, f"amptui: {text}")
