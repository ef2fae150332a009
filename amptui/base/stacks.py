"""Where a process killed by a fatal signal, such as SIGSEGV, leaves the stacks of its threads."""

import faulthandler
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def print_stacks_if_killed() -> None:
    """Have Python write all threads' stacks to descriptor 2 on SIGSEGV, SIGABRT and their like."""
    if not faulthandler.is_enabled():  # perhaps by PYTHONFAULTHANDLER
        faulthandler.enable(2)


@contextmanager
def stacks_if_killed(log: Path) -> Iterator[None]:
    """Within, those stacks go to the end of ``log``: what reads descriptor 2 here dies with this process.

    A ``log`` that is still empty afterwards is removed.
    """
    from amptui.base.runfiles import open_to_append  # not in a script that is only watched

    file = None
    with suppress(OSError):  # what comes first on a full disk is the training
        file = open_to_append(log)
        faulthandler.enable(file)
    try:
        yield
    finally:
        if file is not None:
            faulthandler.disable()
            with suppress(OSError):
                written = os.fstat(file.fileno())
                if not written.st_size and os.path.samestat(written, log.lstat()):
                    log.unlink()
            file.close()
