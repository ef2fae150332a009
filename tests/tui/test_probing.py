"""What was asked for from the screen, until it came or cannot come any more."""

from amptui.findings import ModulesTraced
from amptui.records import Note, PauseChanged, Record, RunFinished
from amptui.telemetry.session import Session
from amptui.telemetry.view import SessionView
from amptui.tui.probing import Came, Probing
from tests.tui.overlays.opened import xray
from tests.tui.watching import started, steps

NO_XRAY = Note(time=5.0, severity="warning", text="no X-ray: CUDA out of memory in the X-ray")


def traced(time: float) -> ModulesTraced:
    return ModulesTraced(
        time=time,
        step=7,
        precision="fp16",
        loss_scale=65536.0,
        asked=True,
        first=None,
        nearest=(),
        modules=12,
        seconds=None,
    )


def after(session: Session, *records: Record) -> SessionView:
    session.fold(records)
    return session.view()


def session_of(*records: Record) -> Session:
    session = Session()
    session.fold([started(), *steps(3), *records])
    return session


def test_an_x_ray_is_waited_for_until_a_newer_one_is_there() -> None:
    session, probing = session_of(xray(time=1.0)), Probing()
    assert probing.words(session.view()) == ""
    probing.ask("x-ray", session.view())
    assert probing.words(session.view()) == "X-ray with the next step …"
    assert probing.came(after(session, traced(2.0))) == []
    assert probing.came(after(session, xray(time=3.0))) == [Came("x-ray")]
    assert probing.came(session.view()) == []
    assert probing.words(session.view()) == ""


def test_a_trace_is_waited_for_alike_and_both_may_be() -> None:
    session, probing = session_of(), Probing()
    probing.ask("trace", session.view())
    assert probing.words(session.view()) == "trace with the next step …"
    probing.ask("x-ray", session.view())
    assert probing.words(session.view()) == "trace and X-ray with the next step …"
    assert probing.came(after(session, traced(2.0), xray(time=2.0))) == [Came("trace"), Came("x-ray")]


def test_asking_twice_before_it_came_is_asking_once() -> None:
    session, probing = session_of(), Probing()
    probing.ask("x-ray", session.view())
    view = after(session, xray(time=2.0))
    probing.ask("x-ray", view)
    assert probing.came(view) == [Came("x-ray")]


def test_an_x_ray_that_failed_is_told_with_its_reason() -> None:
    session, probing = session_of(NO_XRAY), Probing()
    probing.ask("x-ray", session.view())
    assert probing.came(session.view()) == []
    view = after(session, NO_XRAY, *steps(9)[3:])
    (came,) = probing.came(view)
    assert came.failure.startswith(NO_XRAY.text)
    assert probing.words(view) == ""


def test_in_a_pause_it_says_what_it_waits_for() -> None:
    session, probing = session_of(), Probing()
    probing.ask("x-ray", session.view())
    view = after(session, PauseChanged(time=1.0, step=3, paused=True))
    assert probing.words(view) == "X-ray when training goes on …"


def test_after_the_end_nothing_is_waited_for() -> None:
    session, probing = session_of(), Probing()
    probing.ask("x-ray", session.view())
    view = after(session, RunFinished(time=2.0, steps=3, seconds=1.0, reason="done"))
    assert probing.came(view) == []
    assert probing.words(view) == ""
