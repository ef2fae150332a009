"""Tells monitors of the error that ends the script, through one ``sys.excepthook`` for all of them."""

import sys
from collections.abc import Callable
from types import TracebackType

TakeError = Callable[[BaseException], object]

_takers: list[TakeError] = []
"""Of the monitors that are open: ``sys.excepthook`` is the process's own, and so is this list."""


class _ErrorHook:
    """Tells all of ``_takers``, and then whoever was to be told before."""

    def __init__(self) -> None:
        self.before = sys.excepthook

    def __call__(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None, /
    ) -> None:
        if not hasattr(sys, "ps1"):  # an interactive session goes on
            for take in _takers:
                take(error)
        self.before(kind, error, trace)


def begin_taking(take: TakeError) -> None:
    """Call ``take`` with the error that ends the script; the terminal is told as ever."""
    if not isinstance(sys.excepthook, _ErrorHook):  # nobody's yet, or somebody else's in front of ours
        sys.excepthook = _ErrorHook()
    _takers.append(take)


def end_taking(take: TakeError) -> None:
    """Call it no more; after the last one, ``sys.excepthook`` is what it was without us.

    A hook that somebody else has put in front of ours stays there, and ours behind it only passes errors on.
    """
    if take in _takers:
        _takers.remove(take)
    while not _takers and isinstance(sys.excepthook, _ErrorHook):
        sys.excepthook = sys.excepthook.before
