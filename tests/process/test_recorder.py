"""Everything that is emitted is kept, in order, whatever fails beside it; whatever was begun is ended."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from amptui.diagnosis.event_words import event_text
from amptui.process.recorder import Recorder
from amptui.process.recording import Recording
from amptui.records.control import Request
from amptui.records.keeping import UNSAVED_STATUS, ViewersChanged, unsaved_status
from amptui.records.run import Note, Printed, Record, RunFailed, RunFinished
from amptui.records.samples import DeviceSample, HostSample
from amptui.runs.lock import holder
from amptui.runs.reader import JournalReader
from amptui.runs.rundir import RunDir
from amptui.telemetry.session import Session
from tests.builders import of
from tests.living import wait_until
from tests.tui import views

ENOUGH_SECONDS = 60.0


def note(number: int) -> Note:
    return Note(time=float(number), severity="info", text=str(number))


def texts(records: Sequence[Record]) -> list[str]:
    return [record.text for record in of(Note, records)]


class Pump:
    """A recorder over a real session and a real folder."""

    def __init__(self, folder: Path, **options: Any) -> None:
        folder.mkdir(exist_ok=True)
        self.run_dir = RunDir(folder)
        self.session = Session(str(folder))
        self.recorder = Recorder(self.session, self.run_dir, request={"model": "m", "steps": 3}, **options)
        self.recorder.start()

    def close(self) -> list[Record]:
        """Drain; what the journal holds."""
        assert self.recorder.close(ENOUGH_SECONDS)
        return list(JournalReader(self.run_dir.journal_path))


def test_what_several_threads_emit_is_kept_with_each_one_s_order(tmp_path: Path) -> None:
    shown: list[Record] = []
    pump = Pump(tmp_path, listeners=[shown.extend])
    threads = [
        threading.Thread(target=lambda t=t: [pump.recorder.emit(note(1000 * t + i)) for i in range(1000)])
        for t in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kept = [int(text) for text in texts(pump.close())]
    assert sorted(kept) == list(range(4000))
    for t in range(4):
        mine = [number for number in kept if number // 1000 == t]
        assert mine == sorted(mine)
    assert [int(text) for text in texts(shown)] == kept
    assert pump.recorder.unsaved == ()


def test_no_sample_of_the_device_and_no_screen_that_leaves_comes_after_a_run_s_last_word(
    tmp_path: Path,
) -> None:
    shown: list[Record] = []
    pump = Pump(tmp_path, listeners=[shown.extend])
    sample = DeviceSample(time=1.0, gpus=(), host=HostSample())
    screens = ViewersChanged(time=1.0, viewers=0, change="detached")
    failed = RunFailed(time=2.0, step=0, error="none", traceback="")
    for record in (sample, screens, failed, sample, screens, note(3)):
        pump.recorder.emit(record)
    assert pump.close() == shown == [sample, screens, failed, note(3)]


def test_a_listener_that_raises_costs_nobody_else_a_record_and_is_told_once(tmp_path: Path) -> None:
    shown: list[Record] = []
    calls = threading.Semaphore(0)

    def broken(_batch: Sequence[Record]) -> None:
        calls.release()
        raise ValueError("no pipe")

    pump = Pump(tmp_path, listeners=[broken, shown.extend])
    for number in range(3):
        pump.recorder.emit(note(number))
        assert calls.acquire(timeout=ENOUGH_SECONDS)
    kept = texts(pump.close())
    assert [text for text in kept if text.isdecimal()] == ["0", "1", "2"]
    assert [text for text in kept if not text.isdecimal()] == [
        "some records could not be shown: ValueError: no pipe"
    ]
    assert sorted(texts(shown)) == sorted(kept)


def test_closing_says_when_it_took_too_long(tmp_path: Path) -> None:
    let_go = threading.Event()
    pump = Pump(tmp_path, listeners=[lambda _batch: let_go.wait(ENOUGH_SECONDS)])
    pump.recorder.emit(note(1))
    assert not pump.recorder.close(0.01)
    assert unsaved_status(pump.recorder.unsaved) == UNSAVED_STATUS
    let_go.set()
    assert texts(pump.close()) == ["1"]


def test_a_checkpoint_waits_for_all_that_was_emitted_before_it(tmp_path: Path) -> None:
    pump = Pump(tmp_path)
    pump.recorder.emit(note(1))
    pump.recorder.wait_until_kept(1)
    assert texts(list(JournalReader(tmp_path / "journal.jsonl"))) == ["1"]
    pump.close()


def test_a_run_that_goes_on_writes_nothing_before_its_journal_was_cut(tmp_path: Path) -> None:
    first = Pump(tmp_path)
    first.recorder.emit(views.run_started())
    first.recorder.emit(note(1))
    before = first.close()
    second = Pump(tmp_path, goes_on=True)
    second.recorder.emit(note(2))
    wait_until(lambda: second.recorder.view().events, "nothing is known of it")
    assert list(JournalReader(tmp_path / "journal.jsonl")) == before
    assert second.recorder.cut_after(0) == 0
    known = [event_text(event) for event in second.recorder.view().events]
    assert known[:2] == ["2", "1"], "what was said meanwhile is known beside what was known before"
    assert texts(second.close()) == ["1", "2"]


def test_a_run_without_a_journal_is_nothing_that_can_be_cut(tmp_path: Path) -> None:
    pump = Pump(tmp_path, goes_on=True)
    assert pump.recorder.cut_after(5) is None
    pump.close()


# ------------------------------------------------------------------------- with all that belongs to a run

FINISHED = RunFinished(time=1.0, steps=0, seconds=1.0, reason="done")


def opened(folder: Path, *, goes_on: bool = False) -> Recording:
    folder.mkdir(exist_ok=True)
    return Recording(RunDir(folder), request={}, goes_on=goes_on)


def nothing_asked(_request: Request, _number: int) -> None:
    raise AssertionError("no screen is there")


def start(recording: Recording) -> None:
    recording.start(nothing_asked, read_allocator=lambda: None)


def test_the_folder_is_free_for_another_process_once_a_recording_is_closed(tmp_path: Path) -> None:
    opened(tmp_path / "never began").close()
    assert holder(tmp_path / "never began") is None
    with opened(tmp_path) as recording:
        start(recording)
        recording.emit(FINISHED)
        recording.close()
        with opened(tmp_path, goes_on=True):
            recording.close()  # once more, which must not release what is another's now
            assert holder(tmp_path) is not None
    assert list(JournalReader(tmp_path / "journal.jsonl"))[-1] == FINISHED


def test_the_last_lines_of_the_output_come_before_the_last_record(tmp_path: Path) -> None:
    output = RunDir(tmp_path).output_path
    output.write_text("seen before\n")
    with opened(tmp_path) as recording:
        start(recording)
        recording.follow_output(skip=True)
        with output.open("a") as file:
            file.write("the last line\n")
        recording.end_output()
        recording.emit(FINISHED)
    told = list(JournalReader(tmp_path / "journal.jsonl"))
    assert [r.text for r in of(Printed, told)] == ["the last line"]
    assert told.index(FINISHED) == len(told) - 1
