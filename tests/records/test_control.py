"""Requests cross from a front to the trainer without either waiting for the other."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.records.answers import RequestMade, RequestRefused, RequestTaken
from amptui.records.control import (
    KINDS,
    CheckpointRequest,
    ComparisonRequest,
    Control,
    HistogramRequest,
    PauseRequest,
    PrecisionRequest,
    Request,
    StopRequest,
    TraceRequest,
    XRayRequest,
)
from amptui.records.run import PRECISIONS
from tests.tiny import Log

ONE_OF_EACH: list[Request] = [
    PrecisionRequest("bf16"),
    PauseRequest(True),
    XRayRequest(),
    TraceRequest(),
    HistogramRequest(),
    ComparisonRequest(("fp32", "bf16")),
    CheckpointRequest(),
    StopRequest("SIGTERM"),
]


@given(st.lists(st.sampled_from(PRECISIONS), min_size=1))
def test_the_last_precision_asked_for_is_taken_once_and_what_differs_is_refused(asked: list[str]) -> None:
    log = Log()
    control = Control(log.emit)
    for precision in asked:
        control.ask(PrecisionRequest(precision))
    assert control.newest(PrecisionRequest) == PrecisionRequest(asked[-1])
    taken = control.take(PrecisionRequest)
    assert taken is not None
    assert taken.request.precision == asked[-1]
    assert control.take(PrecisionRequest) is None
    control.answer(taken)
    answered = [record.request for record in log if isinstance(record, RequestTaken | RequestRefused)]
    assert answered == log.of(RequestMade)
    assert {record.reason for record in log.of(RequestRefused)} <= {"overruled"}
    assert {record.request.precision for record in log.of(RequestTaken)} == {asked[-1]}


def test_a_second_answer_is_none() -> None:
    log = Log()
    control = Control(log.emit)
    control.look(7)
    number = control.ask(XRayRequest(), number=5)
    asked = control.take(XRayRequest)
    control.answer(asked, "out of memory")
    control.answer(asked)
    control.refuse(asked, "unavailable")
    control.answer(None)
    (answer,) = log.of(RequestRefused)
    assert (answer.request.number, answer.step, answer.reason, answer.detail) == (
        5,
        7,
        "failed",
        "out of memory",
    )
    assert number == 5
    assert log.of(RequestTaken) == []


@pytest.mark.parametrize(
    "make",
    [
        lambda: PrecisionRequest("fp4"),
        lambda: ComparisonRequest(("fp32",)),
        lambda: ComparisonRequest(("fp32", "fp32")),
        lambda: ComparisonRequest(("fp32 eager", "fp32")),
        lambda: StopRequest("x" * 201),
    ],
)
def test_what_no_run_can_do_cannot_be_asked(make: object) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match=r"precision|reason"):
        make()


@pytest.mark.parametrize("request_", ONE_OF_EACH, ids=lambda request: KINDS[type(request)])
def test_a_trainer_that_stands_still_waits_until_something_is_asked_for(request_: Request) -> None:
    control = Control()
    woken = threading.Event()

    def wait() -> None:
        control.wait()
        woken.set()

    thread = threading.Thread(target=wait)
    thread.start()
    assert not woken.is_set()
    control.ask(request_)
    assert woken.wait(60)
    thread.join()
    assert not control.attention
    control.wake()
    control.wait()  # at once: it was woken before
