"""A recording ends whole: whatever was begun is ended, and its folder is free for another process."""

import threading
from pathlib import Path

import pytest

from amptui.base.errors import RunFolderError
from amptui.process.recording import Recording
from amptui.records.control import PauseRequest, Request, new_number
from amptui.records.run import Printed, Record, RunFinished
from amptui.runs import protocol
from amptui.runs.elsewhere import runs_elsewhere
from amptui.runs.lock import holder
from amptui.runs.reader import JournalReader
from amptui.runs.rundir import RunDir
from amptui.runs.socket_place import connect

FINISHED = RunFinished(time=1.0, steps=0, seconds=1.0, reason="done")

THREADS = ("amptui-server", "amptui-recorder", "device-sampler", "gpu-probe")


def opened(folder: Path, *, goes_on: bool = False) -> Recording:
    return Recording(RunDir(folder), request={}, goes_on=goes_on)


def nothing_asked(_request: Request, _number: int) -> None:
    raise AssertionError("no screen is there")


def start(recording: Recording) -> None:
    recording.start(nothing_asked, read_allocator=lambda: None)


@pytest.mark.parametrize("name", THREADS)
def test_what_cannot_be_started_leaves_no_thread_no_socket_and_no_lock(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_thread = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == name:
            raise RuntimeError("can't start new thread")
        start_thread(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    before = set(threading.enumerate())
    with opened(tmp_path) as recording:
        assert holder(tmp_path) is not None
        with pytest.raises(RuntimeError, match="can't start new thread"):
            start(recording)
    assert set(threading.enumerate()) <= before
    assert holder(tmp_path) is None
    with pytest.raises(RunFolderError):
        connect(tmp_path)


def test_a_run_is_listed_wherever_its_folder_is(tmp_path: Path) -> None:
    with opened(tmp_path) as recording:
        start(recording)
    assert runs_elsewhere().runs == [str(tmp_path)]


def test_no_index_and_no_thread_for_it_costs_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start_thread = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "amptui-index":
            raise RuntimeError("can't start new thread")
        start_thread(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with opened(tmp_path) as recording:
        start(recording)
        recording.emit(FINISHED)
    assert list(JournalReader(tmp_path / "journal.jsonl"))
    assert runs_elsewhere().runs == []


def test_the_folder_is_free_for_another_process_once_a_recording_is_closed(tmp_path: Path) -> None:
    with opened(tmp_path) as recording:
        start(recording)
        recording.emit(FINISHED)
        recording.close()
        with opened(tmp_path, goes_on=True):
            recording.close()  # once more, which must not release what is another's now
            assert holder(tmp_path) is not None
    assert list(JournalReader(tmp_path / "journal.jsonl"))[-1] == FINISHED


def test_a_request_of_a_screen_comes_to_whoever_answers(tmp_path: Path) -> None:
    asked: list[tuple[Request, int]] = []
    request, number = PauseRequest(paused=True), new_number()
    answered = threading.Event()

    def answer(request: Request, number: int) -> None:
        asked.append((request, number))
        answered.set()

    with opened(tmp_path) as recording:
        recording.start(answer, read_allocator=lambda: None)
        with connect(tmp_path) as screen:
            screen.sendall(protocol.encode(protocol.Hello()) + protocol.encode(protocol.Ask(number, request)))
            assert answered.wait(60)
    assert asked == [(request, number)]


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
    told: list[Record] = [
        r for r in JournalReader(tmp_path / "journal.jsonl") if isinstance(r, Printed | RunFinished)
    ]
    assert [r.text for r in told if isinstance(r, Printed)] == ["the last line"]
    assert told[-1] == FINISHED


def test_a_recording_that_never_began_leaves_the_folder_free(tmp_path: Path) -> None:
    opened(tmp_path).close()
    assert holder(tmp_path) is None
