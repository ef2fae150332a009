"""The fronts without a screen: each event once, honest status lines, readers that leave early."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.process.plain_lines import PlainFront
from amptui.records import codec
from amptui.records.run import NonFinite, Note, PauseChanged, Record
from amptui.records.steps import Steps
from amptui.runs.journal import JournalReader
from amptui.telemetry.session import Session
from tests.living import train_arguments
from tests.telemetry.record_samples import skip_row
from tests.tui import views
from tests.warm import WarmSource


def note(number: int) -> Note:
    return Note(time=float(number), severity="info", text=f"note {number}")


def nan_loss(step: int) -> NonFinite:
    return NonFinite(time=float(step), step=step, what="loss", kind="nan", names=(), count=1)


class Looks:
    """A front that looks at a session when told to, and what it wrote."""

    def __init__(self) -> None:
        self.session = Session("runs/x")
        self.out = io.StringIO()
        self.front = PlainFront(self.session.view, self.out)

    def look(self, *records: Record) -> list[str]:
        """Fold, look once, and return the lines that were written, without their clocks."""
        self.session.fold(records)
        self.out.seek(0)
        self.out.truncate()
        self.front._write_news(self.session.view())
        return [line[9:].strip() for line in self.out.getvalue().splitlines()]


@given(st.lists(st.integers(0, 5), max_size=8))
def test_every_event_is_told_once_and_in_order_however_often_one_looks(looks: list[int]) -> None:
    front, output_text, number = Looks(), list[str](), 0
    for new in looks:
        output_text += front.look(*[note(number + i) for i in range(new)])
        number += new
    assert output_text == [f"note {i}" for i in range(number)]


def test_two_events_of_a_step_are_two() -> None:
    front = Looks()
    assert front.look(PauseChanged(time=1.0, step=4, paused=True)) == ["step 4: paused"]
    assert front.look(PauseChanged(time=2.0, step=4, paused=False)) == ["step 4: resumed"]


def test_a_storm_is_told_once_and_what_comes_within_it_is_told_too() -> None:
    front = Looks()
    (first,) = front.look(nan_loss(10))
    assert first.startswith("x step 10: ")
    assert "NaN" in first
    assert front.look(nan_loss(11), nan_loss(12)) == []
    assert front.look(note(1), nan_loss(13)) == ["note 1"]
    assert front.look(nan_loss(14), note(2)) == ["note 2"]


def test_skips_are_told_once_and_again_when_the_scale_collapses() -> None:
    front = Looks()
    first, *others = skip_row(10, 8, 65536.0)
    (calm,) = front.look(first)
    assert calm.startswith("step 10: overflow: step skipped")
    (alarm,) = [line for record in others for line in front.look(record)]
    assert alarm.startswith("x step 14: overflow: 5 steps skipped, 10 to 14")


def test_phases_are_told_until_the_first_step_and_their_progress_is_not() -> None:
    front = Looks()
    view = views.downloading()
    assert view.phase is not None
    for process in (1, 2):
        front.front._write_news(replace(view, phase=replace(view.phase, done=process)))
    front.front._write_news(views.validating())
    text = front.out.getvalue()
    assert text.count("downloading train-images") == 1
    assert "validating" not in text


def test_json_is_every_record_of_the_journal_and_the_answer_last(warm: WarmSource, tmp_path: Path) -> None:
    arguments = train_arguments(
        tmp_path / "run", "--json", "--steps", "40", "--set", "trouble=print", "--set", "at=99"
    )
    process = warm.run(*arguments)
    assert process.returncode == 0, process.stderr
    *lines, last = process.stdout.decode().splitlines()
    for line in (*lines, last):
        json.loads(line, parse_constant=pytest.fail)
    assert json.loads(last)["type"] == "AmpAnswer"
    records = [codec.loads(line) for line in lines]
    assert records == list(JournalReader(tmp_path / "run" / "journal.jsonl"))
    assert sum(record.count for record in records if isinstance(record, Steps)) == 40
    for said in ("print from step 40", "printf from C 40", "red stderr 40"):
        assert said in process.stderr.decode()
        assert said not in process.stdout.decode()
