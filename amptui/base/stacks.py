"""Where a process killed by a fatal signal, such as SIGSEGV, leaves the stacks of its threads."""

import faulthandler


def print_stacks_if_killed() -> None:
    """Have Python write all threads' stacks to descriptor 2 on SIGSEGV, SIGABRT and their like."""
    if not faulthandler.is_enabled():  # perhaps by PYTHONFAULTHANDLER
        faulthandler.enable(2)
