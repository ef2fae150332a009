"""Requests cross from a front to the trainer without either waiting for the other."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.control import Control
from amptui.records import PRECISIONS


def test_nothing_is_asked_for_at_first() -> None:
    control = Control()
    assert control.take_precision() is None
    assert control.requested_precision is None
    assert control.stop_reason is None
    assert not control.paused
    control.wait_while_paused()


@given(st.lists(st.sampled_from(PRECISIONS), min_size=1))
def test_the_last_precision_asked_for_is_taken_and_only_once(asked: list[str]) -> None:
    control = Control()
    for precision in asked:
        control.request_precision(precision)
    assert control.requested_precision == asked[-1]
    assert control.take_precision() == asked[-1]
    assert control.take_precision() is None
    assert control.requested_precision is None


def test_the_first_reason_to_stop_is_kept() -> None:
    control = Control()
    control.request_stop("SIGTERM")
    control.request_stop("the screen ended")
    assert control.stop_reason == "SIGTERM"


@pytest.mark.parametrize(
    "end",
    [
        lambda control: control.request_pause(False),
        lambda control: control.request_stop("test"),
        lambda control: control.request_precision("bf16"),
    ],
    ids=["going on", "stopping", "switching"],
)
def test_a_pause_is_waited_out_until_something_is_asked_for(end: object) -> None:
    control = Control()
    control.request_pause(True)
    woken = threading.Event()

    def wait() -> None:
        control.wait_while_paused()
        woken.set()

    thread = threading.Thread(target=wait)
    thread.start()
    control.request_pause(True)  # wakes the waiter, who goes back to waiting
    assert not woken.is_set()
    assert callable(end)
    end(control)
    assert woken.wait(60)
    thread.join()
