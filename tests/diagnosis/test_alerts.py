"""Each cause is told once, the past not at all, and of several at once the most urgent."""

from dataclasses import replace

import pytest

from amptui.diagnosis.alerts import MIN_REPEAT_SECONDS, MIN_STALL_SECONDS, STALL_PAUSES, STALL_STEPS, Alerts
from amptui.records.run import Note, PauseChanged, PhaseChanged, Record, RunFailed, RunFinished
from tests.builders import fold, make_started, make_step
from tests.telemetry.record_samples import nonfinite

SINCE = 100.0


class Listening:
    def __init__(self, *before: Record) -> None:
        self.session = fold([make_started(time=90.0), *before], "runs/x")
        self.alerts = Alerts(SINCE)

    def hears(self, *records: Record, stop_asked: bool = False, lost: str = "") -> str:
        self.session.fold(records)
        return self.alerts.news(self.session.view(), stop_asked=stop_asked, exit_reason=lost)


def finished(reason: str = "done") -> RunFinished:
    return RunFinished(time=200.0, steps=9, seconds=3.0, reason=reason)  # type: ignore[arg-type]


def failed() -> RunFailed:
    return RunFailed(time=200.0, step=9, error="wrong; do this", traceback="Traceback")


def paused(cause: str = "weights", time: float = 150.0) -> PauseChanged:
    why = "the loss has been nan since step 7" if cause else ""
    return PauseChanged(time=time, step=9, paused=True, cause=cause, reason=why)  # type: ignore[arg-type]


def alarm(time: float = 150.0, step: int = 7) -> Record:
    return replace(nonfinite(step, what="loss", kind="nan", names=()), time=time)


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (finished(), "mnist-deep: done after 9 steps in 0:03"),
        (failed(), "mnist-deep: failed: wrong; do this"),
        (paused(), "mnist-deep needs an answer: the loss has been nan since step 7"),
        (Note(time=150.0, severity="error", text="disk full"), "mnist-deep: disk full"),
    ],
)
def test_each_cause_is_told_once(record: Record, said: str) -> None:
    listening = Listening()
    assert listening.hears() == ""
    assert listening.hears(record) == said
    assert [listening.hears() for _ in range(3)] == ["", "", ""]


@pytest.mark.parametrize(
    "record", [replace(finished(), time=99.0), replace(failed(), time=99.0), alarm(99.0)]
)
def test_the_past_of_a_run_is_no_news_for_a_screen_that_attaches(record: Record) -> None:
    listening = Listening(record)
    assert listening.hears() == ""
    assert listening.hears(Note(time=101.0, severity="error", text="new")) == "mnist-deep: new"


def test_of_several_at_once_the_most_urgent_is_told_and_the_others_are_not_told_later() -> None:
    listening = Listening()
    assert listening.hears(alarm(), paused()).startswith("mnist-deep needs an answer")
    assert listening.hears() == ""
    listening = Listening()
    assert listening.hears(alarm(), failed()).startswith("mnist-deep: failed")
    assert listening.hears() == ""


def test_a_trouble_that_comes_and_goes_is_told_once_a_minute() -> None:
    listening = Listening()
    heard = [bool(listening.hears(alarm(150.0 + 10 * i, 7 + 1000 * i))) for i in range(13)]
    assert len({event.number for event in listening.session.view().events}) > 12
    assert [10 * i for i, rang in enumerate(heard) if rang] == [0, MIN_REPEAT_SECONDS, 2 * MIN_REPEAT_SECONDS]


def test_the_end_that_one_asked_for_is_no_news_and_a_failure_is() -> None:
    assert Listening().hears(finished("stopped"), stop_asked=True) == ""
    assert Listening().hears(finished("stopped"))
    assert Listening().hears(alarm(), stop_asked=True) == ""
    assert Listening().hears(failed(), stop_asked=True)


def test_a_run_that_ended_without_a_word_is_told_once() -> None:
    listening = Listening()
    assert (
        listening.hears(lost="the training process was killed")
        == "mnist-deep: the training process was killed"
    )
    assert listening.hears(lost="the training process was killed") == ""


# ------------------------------------------------------------------------------------------ a stall


class Waiting(Listening):
    """A run whose steps take a second, on a clock of its own."""

    def __init__(self) -> None:
        super().__init__(PhaseChanged(time=100.0, phase="training"))
        self.now, self.last_step = 0.0, 0
        self.alerts = Alerts(SINCE, clock=lambda: self.now)

    def steps(self, count: int, *, step_seconds: float = 1.0) -> None:
        for _ in range(count):
            self.last_step += 1
            step = make_step(self.last_step, time=100.0 + self.now, step_seconds=step_seconds)
            self.now += step_seconds
            assert self.hears(step) == ""

    def hears_in(self, seconds: float, *records: Record) -> str:
        self.hears(*records)
        end, said = self.now + seconds, ""
        while self.now < end and not said:  # somebody looks all the time
            self.now = min(end, self.now + 10.0)
            said = self.hears()
        self.now = end
        return said


def test_a_stall_is_told_once_until_there_are_steps_again() -> None:
    run = Waiting()
    run.steps(10)
    assert run.hears_in(MIN_STALL_SECONDS - 1) == ""
    assert run.hears_in(1) == "mnist-deep: no step for 5:00, after step 10"
    assert run.hears_in(10 * MIN_STALL_SECONDS) == ""
    run.steps(1)
    # The stall was a pause of 3,300 s: it shows what may be usual here.
    assert run.hears_in(10 * MIN_STALL_SECONDS) == ""
    assert run.hears_in(11 * STALL_PAUSES * MIN_STALL_SECONDS) != ""


def test_long_steps_are_no_stall() -> None:
    run = Waiting()
    run.steps(10, step_seconds=60.0)
    assert run.hears_in(60 * STALL_STEPS - 1) == ""
    assert run.hears_in(1) == "mnist-deep: no step for 20:00, after step 10"


@pytest.mark.parametrize(
    "record", [PhaseChanged(time=150.0, phase="validating"), paused(""), finished()], ids=type
)
def test_what_makes_no_steps_does_not_stall(record: Record) -> None:
    run = Waiting()
    run.steps(10)
    assert run.hears_in(10 * MIN_STALL_SECONDS, record) == ""
