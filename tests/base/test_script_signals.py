"""Errors of a script's signal handlers are told from all others, and work of ours survives them."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import amptui
from amptui.base.script_signals import aside, in_background, is_from_signal_handler, suppressed
from amptui.records.run import RunFinished
from amptui.runs.lock import holder
from amptui.runs.reader import JournalReader
from tests.living import wait_until
from tests.observed import Loop


class AlarmError(TimeoutError):
    """What the handlers raise."""


def ring(*_: object) -> None:
    raise AlarmError


class Bell:
    def ring(self, _number: int, _frame: object) -> None:
        raise AlarmError

    def __call__(self, _number: int, _frame: object) -> None:
        raise AlarmError


@pytest.fixture(autouse=True)
def _signals_as_before() -> Iterator[None]:
    before = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, before)


def ring_now() -> None:
    signal.raise_signal(signal.SIGUSR1)


HANDLERS: dict[str, Callable[..., Any]] = {"function": ring, "bound method": Bell().ring, "object": Bell()}


@pytest.mark.parametrize("handler", HANDLERS.values(), ids=HANDLERS)
def test_what_a_handler_raises_is_recognised_and_is_not_suppressed(handler: Callable[..., Any]) -> None:
    signal.signal(signal.SIGUSR1, handler)
    with pytest.raises(AlarmError) as raised, suppressed(OSError):
        ring_now()
    assert is_from_signal_handler(raised.value)


def test_other_errors_are_suppressed_and_not_taken_for_a_handler_s() -> None:
    signal.signal(signal.SIGUSR1, ring)
    with suppressed(OSError):
        os.stat("/no/such/file")  # noqa: PTH116 - a C function's error
    with pytest.raises(AlarmError) as raised:
        raise AlarmError
    assert not is_from_signal_handler(raised.value)


def test_work_aside_returns_its_result_or_raises_its_error() -> None:
    threads = []
    assert aside(lambda: threads.append(threading.current_thread()) or 3) == 3  # type: ignore[func-returns-value]
    assert threads != [threading.main_thread()]
    with pytest.raises(ZeroDivisionError):
        aside(lambda: 1 // 0)
    assert aside(lambda: aside(lambda: 4)) == 4
    done = threading.Event()
    in_background(done.set)
    done.wait()


def test_a_run_whose_close_an_alarm_interrupts_is_closed_anyway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    signal.signal(signal.SIGUSR1, ring)
    loop = Loop("fp32")
    monitor = amptui.observe(loop.model, loop.optimizer)
    loop.run(3)
    run = monitor._run
    assert run is not None
    path = run.path
    assert path is not None
    run.loop.close = lambda **_: ring_now()  # type: ignore[method-assign]
    with pytest.raises(AlarmError):
        monitor.close()
    wait_until(lambda: holder(path) is None, "the run was not closed")
    assert isinstance(list(JournalReader(path / "journal.jsonl"))[-1], RunFinished)
