"""What was asked of a run is known to every screen until it is answered, or nobody is there to answer."""

import pytest

from amptui.records.answers import RequestMade, RequestRefused, RequestTaken
from amptui.records.run import Record, RunFailed, RunFinished
from amptui.telemetry.session import Session
from tests.builders import fold
from tests.telemetry.record_samples import resumed, run, steps


def made(number: int) -> RequestMade:
    return RequestMade(time=101.0, number=number, kind="x-ray")


def taken(number: int) -> RequestTaken:
    return RequestTaken(time=102.0, step=5, request=made(number))


def refused(number: int) -> RequestRefused:
    return RequestRefused(time=102.0, step=5, request=made(number), reason="failed", detail="out of memory")


def session_of(*records: Record) -> Session:
    return fold([run(), *steps(1, 5), *records])


def test_a_request_is_pending_until_its_answer_comes() -> None:
    session = session_of()
    assert (session.view().pending, session.view().answers) == ((), ())
    session.fold([made(1), made(2), made(3)])
    assert session.view().pending == (made(1), made(2), made(3))
    session.fold([refused(2), taken(1)])
    assert session.view().pending == (made(3),)
    assert session.view().answers == (refused(2), taken(1))


@pytest.mark.parametrize(
    "order", [(made(1), made(1), taken(1)), (made(1), taken(1), made(1)), (taken(1), made(1))]
)
def test_a_screen_s_own_word_of_its_request_may_come_at_any_time(order: tuple[Record, ...]) -> None:
    view = session_of(*order).view()
    assert (view.pending, view.answers) == ((), (taken(1),))


@pytest.mark.parametrize(
    "last",
    [
        RunFinished(time=103.0, steps=5, seconds=3.0, reason="done"),
        RunFailed(time=103.0, step=5, error="out of memory", traceback=""),
    ],
)
def test_nothing_is_pending_after_the_end_nor_for_the_process_that_goes_on(last: Record) -> None:
    session = session_of(made(1), last)
    assert session.view().pending == ()
    session.fold([resumed(5)])
    assert session.view().pending == ()


def test_what_is_asked_before_a_run_begins_is_pending_until_it_is_answered() -> None:
    session = fold([made(1), run()])
    assert session.view().pending == (made(1),)
    session.fold([*steps(1, 5), taken(1)])
    assert session.view().pending == ()
