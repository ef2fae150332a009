"""Keeps code of a model file from leaving the process that trains it, and from closing its files."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

_LEAVING = ("_exit", "execv", "execve")
"""What ends this process or makes another program of it; the others of their kind call these."""

_CLOSING = ("closerange",)


@contextmanager
def guarded(leave: Callable[[str], object], warn: Callable[[str], object]) -> Iterator[None]:
    """Within it, no thread but the main one can leave this process without a word, or close all of its files.

    ``leave`` is told of a call that would have left, ``"os._exit(0)"`` say, and SystemExit is then raised in
    its place. ``warn`` is told, in one line, of a call that is not obeyed. Forked processes do as they like.
    """
    pid, main = os.getpid(), threading.main_thread()

    def instead(name: str, original: Callable[..., Any], *args: Any) -> Any:
        if os.getpid() != pid or threading.current_thread() is main:
            return original(*args)
        what = f"os.{name}({', '.join(map(repr, args))})"[:200]
        if name in _CLOSING:
            warn(f"{what} was ignored: it would close the run's own files")
            return None
        leave(what)
        raise SystemExit(what)

    originals = {name: getattr(os, name) for name in (*_LEAVING, *_CLOSING)}
    ours = {name: partial(instead, name, original) for name, original in originals.items()}
    for name, guard in ours.items():
        setattr(os, name, guard)
    try:
        yield
    finally:
        for name, original in originals.items():
            if getattr(os, name) is ours[name]:  # unless somebody has put their own in its place
                setattr(os, name, original)
