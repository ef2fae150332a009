"""Keeps a model file's code from ending the process that trains it and from closing its files."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

_LEAVING = ("_exit", "execv", "execve")
"""Functions of ``os`` that end or replace this process; its other ``exec`` functions call these."""

_CLOSING = "closerange"


@contextmanager
def guarded(leave: Callable[[str], object], warn: Callable[[str], object]) -> Iterator[None]:
    """Within it, only the main thread can end this process at once or close all of its files.

    In other threads such a call is passed to ``leave``, as ``"os._exit(0)"`` for example, and raises
    SystemExit instead; an attempt to close all files is ignored, and ``warn`` gets one line. Forked processes
    are not guarded.
    """
    pid, main = os.getpid(), threading.main_thread()

    def instead(name: str, original: Callable[..., Any], *args: Any) -> Any:
        if os.getpid() != pid or threading.current_thread() is main:
            return original(*args)
        what = f"os.{name}({', '.join(map(repr, args))})"[:200]
        if name == _CLOSING:
            warn(f"{what} was ignored: it would close the run's own files")
            return None
        leave(what)
        raise SystemExit(what)

    originals = {name: getattr(os, name) for name in (*_LEAVING, _CLOSING)}
    ours = {name: partial(instead, name, original) for name, original in originals.items()}
    for name, guard in ours.items():
        setattr(os, name, guard)
    try:
        yield
    finally:
        for name, original in originals.items():
            if getattr(os, name) is ours[name]:  # unless other code has replaced it since
                setattr(os, name, original)
