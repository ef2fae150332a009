"""Replaces functions of torch's for a time, and puts back what was there, whoever replaced them meanwhile."""

import functools
from collections.abc import Callable
from typing import Any

from amptui.guest.loop.guard import not_compiled

Around = Callable[["Patch", Callable[..., Any]], Callable[..., Any]]
"""Makes what stands in the place of the original function, of the patch and the original.

It calls the original alone once ``patch.is_removed``: somebody who replaced it may call it still. It is one
function, since each call costs the loop time, and takes itself out of the traceback of an error that passes
through (:func:`leave_traceback`).
"""


class Patch:
    """A function or method in whose place another one is called, until :meth:`remove`."""

    def __init__(self, owner: Any, name: str, around: Around) -> None:
        self._owner = owner
        self._name = name
        self.is_removed = False
        self._is_own = name in vars(owner)
        self._before: Callable[..., Any] = getattr(owner, name)
        self._patched = around(self, self._before)
        not_compiled(self._patched, calls=False)
        setattr(owner, name, functools.wraps(self._before)(self._patched))

    def remove(self) -> None:
        """Put the function back; if somebody has replaced ours, theirs stays, and ours only passes on."""
        self.is_removed = True
        if getattr(self._owner, self._name) is not self._patched:
            return
        if self._is_own:
            setattr(self._owner, self._name, self._before)
        else:
            delattr(self._owner, self._name)
