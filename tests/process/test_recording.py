"""Everything that is emitted is kept, in order, whatever fails beside it; whatever was begun is ended."""

import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from amptui.diagnosis.event_words import event_text
from amptui.process.recording import Recording
from amptui.records.answers import RequestMade
from amptui.records.keeping import UNSAVED_STATUS, unsaved_status
from amptui.records.run import (
    Note,
    PhaseChanged,
    Printed,
    Record,
    RunFailed,
    RunFinished,
    RunResumed,
    RunStarted,
)
from amptui.records.samples import DeviceSample, HostSample
from amptui.runs.journal import JournalReader
from amptui.runs.lock import holder
from amptui.runs.rundir import RunDir
from tests.builders import make_resumed, make_started, of
from tests.living import wait_until

ENOUGH_SECONDS = 60.0

FINISHED = RunFinished(time=1.0, steps=0, seconds=1.0, reason="done")


def note(number: int) -> Note:
    return Note(time=float(number), severity="info", text=str(number))


def texts(records: Sequence[Record]) -> list[str]:
    return [record.text for record in of(Note, records)]


def opened(folder: Path, **options: Any) -> Recording:
    folder.mkdir(exist_ok=True)
    return Recording(RunDir(folder), request={"model": "m", "steps": 3}, **options)


def nothing_asked(_request: RequestMade) -> None:
    raise AssertionError("no screen is there")


def started(folder: Path, **options: Any) -> Recording:
    recording = opened(folder, **options)
    recording.start(nothing_asked, read_allocator=lambda: None)
    return recording


def closed(recording: Recording) -> list[Record]:
    recording.close(ENOUGH_SECONDS)
    return list(JournalReader(recording.run_dir.journal_path))


def test_what_several_threads_emit_is_kept_with_each_one_s_order(tmp_path: Path) -> None:
    shown: list[Record] = []
    recording = started(tmp_path, listeners=[shown.extend])
    threads = [
        threading.Thread(target=lambda t=t: [recording.emit(note(1000 * t + i)) for i in range(1000)])
        for t in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kept = [int(text) for text in texts(closed(recording))]
    assert sorted(kept) == list(range(4000))
    for t in range(4):
        mine = [number for number in kept if number // 1000 == t]
        assert mine == sorted(mine)
    assert [int(text) for text in texts(shown)] == kept
    assert recording.unsaved == ()


def test_no_sample_of_the_device_comes_after_a_run_s_last_word(tmp_path: Path) -> None:
    shown: list[Record] = []
    recording = started(tmp_path, listeners=[shown.extend])
    sample = DeviceSample(time=1.0, gpus=(), host=HostSample())
    failed = RunFailed(time=2.0, step=0, error="none", traceback="")
    for record in (sample, failed, sample, note(3)):
        recording.emit(record)
    kept = closed(recording)
    assert kept == shown
    assert kept.count(sample) == 1
    assert kept[kept.index(failed) :] == [failed, note(3)]


def test_a_listener_that_raises_costs_nobody_else_a_record_and_is_told_once(tmp_path: Path) -> None:
    shown: list[Record] = []
    calls = threading.Semaphore(0)

    def broken(batch: Sequence[Record]) -> None:
        if of(Note, batch):
            calls.release()
        raise ValueError("no pipe")

    recording = started(tmp_path, listeners=[broken, shown.extend])
    for number in range(3):
        recording.emit(note(number))
        assert calls.acquire(timeout=ENOUGH_SECONDS)
    kept = texts(closed(recording))
    assert [text for text in kept if text.isdecimal()] == ["0", "1", "2"]
    assert [text for text in kept if not text.isdecimal()] == [
        "some records could not be shown: ValueError: no pipe"
    ]
    assert sorted(texts(shown)) == sorted(kept)


def test_closing_says_when_it_took_too_long(tmp_path: Path) -> None:
    let_go = threading.Event()
    recording = started(tmp_path, listeners=[lambda _batch: let_go.wait(ENOUGH_SECONDS)])
    recording.emit(note(1))
    recording.close(0.01)
    assert unsaved_status(recording.unsaved) == UNSAVED_STATUS
    let_go.set()
    journal = recording.run_dir.journal_path
    wait_until(lambda: texts(list(JournalReader(journal))) == ["1"], "its last record is lost")


def test_a_checkpoint_waits_for_all_that_was_emitted_before_it(tmp_path: Path) -> None:
    with closing(started(tmp_path)) as recording:
        recording.emit(note(1))
        recording.wait_until_kept(1)
        assert texts(list(JournalReader(tmp_path / "journal.jsonl"))) == ["1"]


def test_a_run_that_goes_on_writes_nothing_before_its_journal_was_cut(tmp_path: Path) -> None:
    first = started(tmp_path)
    first.begin(make_started())
    first.emit(note(1))
    before = closed(first)
    second = started(tmp_path, goes_on=True)
    second.emit(note(2))
    wait_until(lambda: second.view().events, "nothing is known of it")
    assert list(JournalReader(tmp_path / "journal.jsonl")) == before
    second.begin(make_started(), make_resumed(0))
    events = [event_text(event) for event in second.view().events]
    assert {"1", "2"} <= {*events}, "what was said meanwhile is known beside what was known before"
    after = closed(second)
    assert texts(after) == ["1", "2"]
    assert [len(of(kind, after)) for kind in (RunStarted, RunResumed)] == [1, 1]


def test_a_run_whose_journal_is_gone_says_again_how_it_began(tmp_path: Path) -> None:
    recording = started(tmp_path, goes_on=True)
    recording.emit(PhaseChanged(time=1.0, phase="data"))
    recording.begin(make_started(), make_resumed(5))
    after = closed(recording)
    assert [len(of(kind, after)) for kind in (RunStarted, RunResumed)] == [1, 1]
    assert texts(after) == ["the journal ends at step 0: the steps from there to 5 are not in it"]


def test_the_folder_is_free_for_another_process_once_a_recording_is_closed(tmp_path: Path) -> None:
    opened(tmp_path / "never began").close()
    assert holder(tmp_path / "never began") is None
    with closing(started(tmp_path)) as recording:
        recording.emit(FINISHED)
        recording.close()
        with closing(opened(tmp_path, goes_on=True)):
            recording.close()  # once more, which must not release what is another's now
            assert holder(tmp_path) is not None
    assert list(JournalReader(tmp_path / "journal.jsonl"))[-1] == FINISHED


def test_the_last_lines_of_the_output_come_before_the_last_record(tmp_path: Path) -> None:
    output = RunDir(tmp_path).output_path
    output.write_text("seen before\n")
    with closing(started(tmp_path)) as recording:
        recording.follow_output(skip=True)
        with output.open("a") as file:
            file.write("the last line\n")
        recording.emit(FINISHED)
    records = list(JournalReader(tmp_path / "journal.jsonl"))
    assert [r.text for r in of(Printed, records)] == ["the last line"]
    assert records.index(FINISHED) == len(records) - 1
