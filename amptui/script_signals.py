"""A script's own signal handlers, which may raise in the middle of our work: that is the script's, not ours.

Python calls them in the main thread only. Our work there is short, and lets pass what they raise; what takes
longer is done aside.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import CodeType, FrameType
from typing import Any, TypeVar

_T = TypeVar("_T")


def is_from_signal_handler(error: BaseException) -> bool:
    """Whether a signal handler of the script's raised ``error``: it may run in the middle of our code."""
    entry = error.__traceback__
    if entry is None:
        return False
    handlers = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    while entry is not None:
        if entry.tb_frame.f_code in handlers or _got_its_caller(entry.tb_frame):
            return True
        entry = entry.tb_next
    return False


@contextmanager
def suppressed(*kinds: type[Exception]) -> Iterator[None]:
    """As :func:`contextlib.suppress`, but lets pass what a signal handler of the script's raises."""
    try:
        yield
    except kinds as error:
        if is_from_signal_handler(error):
            raise


def aside(work: Callable[[], _T], *, abandoned: Callable[[_T], object] = lambda _result: None) -> _T:
    """Do ``work`` in another thread while the main thread waits; returns its result, or raises its error.

    What a signal handler of the script's raises meanwhile passes at once. The work is finished anyway, and
    ``abandoned`` gets its result. Called in another thread, it is done there.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    task = _Task(work, abandoned)
    try:
        task.begin()
        task.thread.join()
    except BaseException:
        task.abandon()
        raise
    result: _T = task.result()
    return result


def in_background(work: Callable[[], object]) -> None:
    """Do ``work`` in another thread; the process does not end before it is done."""
    _Task(work, lambda _result: None).begin()


class _Task:
    """A piece of work that is done once, by whichever thread comes first."""

    def __init__(self, work: Callable[[], _T], abandoned: Callable[[_T], object]) -> None:
        self.thread = threading.Thread(target=self._run, name="amptui-aside", daemon=False)
        self._work: Callable[[], Any] = work
        self._abandoned: Callable[[Any], object] = abandoned
        self._is_begun, self._lock = threading.Lock(), threading.Lock()
        self._is_abandoned = self._is_done = False
        self._result: Any = None
        self._error: BaseException | None = None

    def begin(self) -> None:
        """Start it; at the end of Python, where no thread can start, do it here."""
        try:
            self.thread.start()
        except RuntimeError as error:
            if is_from_signal_handler(error):
                raise
            self._run()

    def result(self) -> Any:
        """What the work returned. Raises what it raised."""
        if self._error is not None:
            raise self._error
        return self._result

    def abandon(self) -> None:
        """Nobody waits for the result any more; work that was interrupted before its start is started."""
        threading.Thread(target=self._run, name="amptui-aside", daemon=False).start()
        with self._lock:
            self._is_abandoned, is_done = True, self._is_done
        if is_done and self._error is None:
            self._abandoned(self._result)

    def _run(self) -> None:
        if not self._is_begun.acquire(blocking=False):
            return
        try:
            self._result = self._work()
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is asked for
            self._error = error
        with self._lock:
            self._is_done, is_abandoned = True, self._is_abandoned
        if is_abandoned and self._error is None:
            self._abandoned(self._result)


def _got_its_caller(frame: FrameType) -> bool:
    """Whether an argument of ``frame`` is the frame that it interrupted: no other function has such a one.

    Handlers may have been replaced since, by themselves for example.
    """
    code, caller = frame.f_code, frame.f_back
    if caller is None:
        return False
    count = code.co_argcount + bool(code.co_flags & _TAKES_ALL)
    with suppress(Exception):
        values = frame.f_locals
        for name in code.co_varnames[: count + code.co_kwonlyargcount]:
            value = values.get(name)
            if value is caller or (isinstance(value, tuple) and any(each is caller for each in value)):
                return True
    return False


_TAKES_ALL = 0x04
"""CO_VARARGS of :mod:`inspect`, which takes long to import: the function has ``*args``."""


def _code_of(handler: Any) -> CodeType | None:
    function = getattr(handler, "func", handler)  # a partial's
    for name in ("__func__", "__call__"):
        if not hasattr(function, "__code__"):
            function = getattr(function, name, function)
    return getattr(getattr(function, "__func__", function), "__code__", None)
