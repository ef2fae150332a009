"""A script's own signal handlers, which may raise in the middle of our work: that is the script's, not ours.

Python calls them in the main thread only. Our work there is short, and lets pass what they raise; what takes
longer is done aside.
"""

import atexit
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from queue import SimpleQueue
from types import CodeType, FrameType
from typing import Any, Generic, TypeVar

_LOOK_INTERVAL_SECONDS = 0.05
"""How soon a handler is called whose signal came just before the main thread began to wait, or to another
thread."""

_T = TypeVar("_T")


class _Reference(weakref.ref[Any]):
    """Hashed and compared by identity: its object may be neither hashable nor comparable."""

    __slots__ = ()
    __hash__ = object.__hash__
    __eq__ = object.__eq__


class HeldWith(Generic[_T]):
    """A value that is held for no longer than ``owner`` lives, and let go of without a line of Python.

    A signal handler may raise at any line of Python, and in a callback of a weak reference nobody hears of
    that. ``dict.pop`` has none.
    """

    __slots__ = ("get",)

    get: Callable[[], _T | None]
    """The value; None once the owner is gone."""

    def __init__(self, owner: object, value: _T) -> None:
        values: dict[_Reference, _T] = {}
        reference = _Reference(owner, values.pop)
        values[reference] = value
        self.get = partial(values.get, reference)


def is_from_signal_handler(error: BaseException) -> bool:
    """Whether a signal handler of the script's raised ``error``: it may run in the middle of our code."""
    entry = error.__traceback__
    if entry is None:
        return False
    handlers = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    running = _running_frames()
    while entry is not None:
        frame = entry.tb_frame
        if frame not in running and (frame.f_code in handlers or _got_its_caller(frame)):
            return True
        entry = entry.tb_next
    return False


def _running_frames() -> set[FrameType]:
    """Those that handle the error. To read their variables would keep it alive in them."""
    frames = set()
    frame: FrameType | None = sys._getframe(2)  # not the caller's, which would hold itself
    while frame is not None:
        frames.add(frame)
        frame = frame.f_back
    return frames


@contextmanager
def suppressed(*kinds: type[BaseException]) -> Iterator[None]:
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
        _HELPER.do(task)
        while not task.done.acquire(timeout=_LOOK_INTERVAL_SECONDS):
            pass
    except BaseException:
        task.is_abandoned = True
        _HELPER.do(task)  # once more: it may not have come so far, and is done once
        raise
    result: _T = task.result()
    return result


def in_background(work: Callable[[], object]) -> None:
    """Do ``work`` in another thread; the process does not end before it is done."""
    _HELPER.do(_Task(work, lambda _result: None))


class _Task:
    """A piece of work for the helper."""

    def __init__(self, work: Callable[[], _T], abandoned: Callable[[_T], object]) -> None:
        self.done = threading.Lock()
        self.done.acquire()
        self.is_abandoned = False
        self._work: Callable[[], Any] = work
        self._abandoned: Callable[[Any], object] = abandoned
        self._is_begun = self._is_settled = False
        self._result: Any = None
        self._error: BaseException | None = None

    def result(self) -> Any:
        """What the work returned. Raises what it raised."""
        if self._error is not None:
            raise self._error
        return self._result

    def run(self) -> None:
        """Do it, in one thread, the first time; later settle what was abandoned in the end."""
        if not self._is_begun:
            self._is_begun = True
            try:
                self._result = self._work()
            except BaseException as error:  # noqa: BLE001 - it is raised where the result is asked for
                self._error = error
            self.done.release()
        if self.is_abandoned and not self._is_settled and self._error is None:
            self._is_settled = True
            self._abandoned(self._result)


class _Helper:
    """One thread for all tasks of the process, in their order.

    It stays: a thread that ends while the main thread looks on runs code of Python's there in which errors of
    signal handlers are lost.
    """

    def __init__(self) -> None:
        self._tasks: SimpleQueue[_Task | threading.Event] = SimpleQueue()
        self._pid = 0

    def do(self, task: _Task) -> None:
        """Do it soon; at the end of Python, where no thread can start, do it here."""
        try:
            self._start()
        except RuntimeError as error:
            if is_from_signal_handler(error):
                raise
            task.run()
            return
        self._tasks.put(task)

    def _start(self) -> None:
        pid = os.getpid()
        if self._pid == pid:
            return
        self._tasks = SimpleQueue()  # a forked process has no thread of its parent's
        threading.Thread(target=self._run, args=(self._tasks,), name="amptui-aside", daemon=True).start()
        if not self._pid:
            atexit.register(self._finish)
        self._pid = pid

    def _run(self, tasks: "SimpleQueue[_Task | threading.Event]") -> None:
        while True:
            task = tasks.get()
            if isinstance(task, threading.Event):
                task.set()
            else:
                with suppress(Exception):  # nobody is left whom it concerns
                    task.run()
            del task  # which may hold a model, while the next one is waited for

    def _finish(self) -> None:
        """Wait at the end of the process for what it has begun."""
        if self._pid == os.getpid():
            finished = threading.Event()
            self._tasks.put(finished)
            finished.wait(_FINISHING_SECONDS)


_HELPER = _Helper()

_FINISHING_SECONDS = 20.0
"""How long the process waits at its end for work in the background: closing a run takes 19 s at most."""


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
            if value is caller or (isinstance(value, tuple) and any(item is caller for item in value)):
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
