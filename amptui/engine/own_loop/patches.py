"""Replaces functions of torch's for a time, and puts back what was there, whoever replaced them meanwhile."""

import functools
from collections.abc import Callable
from typing import Any

from amptui.engine.own_loop.guard import leave_traceback, not_compiled

Around = Callable[..., Any]
"""Called with the original function and the arguments of the call; calls it, and returns its result."""


class Patch:
    """A function or method in whose place ``around`` is called, until :meth:`remove`.

    An error that passes through has none of our frames in its traceback.
    """

    def __init__(self, owner: Any, name: str, around: Around) -> None:
        self._owner = owner
        self._name = name
        self._around: Around | None = around
        self._is_own = name in vars(owner)
        before: Callable[..., Any] = getattr(owner, name)
        self._before = before

        @functools.wraps(before)
        def patched(*args: Any, **kwargs: Any) -> Any:
            around = self._around
            try:
                if around is None:  # removed, but called by somebody who replaced it after us
                    return before(*args, **kwargs)
                return around(before, *args, **kwargs)
            except BaseException as error:
                leave_traceback(error)
                raise

        not_compiled(patched, calls=False)
        self._patched = patched
        setattr(owner, name, patched)

    def remove(self) -> None:
        """Put the function back; if somebody has replaced ours, theirs stays, and ours only passes on."""
        self._around = None
        if getattr(self._owner, self._name) is not self._patched:
            return
        if self._is_own:
            setattr(self._owner, self._name, self._before)
        else:
            delattr(self._owner, self._name)
