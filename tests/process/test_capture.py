"""What user code and libraries print while the screen owns the terminal: real descriptors, real children."""

import os
import pty
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.process.capture import MAX_LINE_CHARACTERS, MAX_LINES_A_SECOND, LogTail, OutputLines
from amptui.records.run import Note, Printed, Record
from amptui.runs.journal import JournalReader
from amptui.telemetry.session import Session
from tests import deprecations
from tests.builders import of
from tests.living import wait_until

PRELUDE = """
import json, os, resource, subprocess, sys, time
from pathlib import Path
from amptui.records import codec
from amptui.process.capture import OutputCapture
from amptui.records.run import Note, Printed

folder = Path(sys.argv[1])
records = []
log = folder / "output.log"
"""

REPORT = """
(folder / "records.jsonl").write_text("".join(codec.dumps(r) + chr(10) for r in records))
"""


@dataclass(frozen=True)
class Captured:
    """A program that ran with a terminal as its standard output and standard error."""

    log: bytes
    terminal: bytes
    records: list[Record]

    def printed(self, stream: str) -> list[str]:
        """The lines that became records."""
        return [record.text for record in of(Printed, self.records) if record.stream == stream]

    @property
    def notes(self) -> list[str]:
        """What was said about the log itself."""
        return [note.text for note in of(Note, self.records)]


def run(folder: Path, body: str, *, after: str = "", stderr: int | None = None) -> Captured:
    """``body`` within a capture, ``after`` outside of it again, in a process with a terminal of its own."""
    captured = "with OutputCapture(records.append, log) as capture:\n" + textwrap.indent(
        textwrap.dedent(body), "    "
    )
    program = f"{PRELUDE}{captured}\n{textwrap.dedent(after)}{REPORT}"
    master, slave = pty.openpty()
    with subprocess.Popen(
        [sys.executable, *deprecations.options_for_python(), "-c", program, str(folder)],
        stdin=subprocess.DEVNULL,
        stdout=slave,
        stderr=slave if stderr is None else stderr,
        # Unbuffered, Python writes a line and its end apart, and the two streams' may come in turn.
        env={**os.environ, "PYTHONIOENCODING": "utf-8", "PYTHONUNBUFFERED": ""},
    ) as process:
        os.close(slave)
        terminal = _read_to_end(master)
        assert process.wait(timeout=60) == 0, terminal.decode(errors="replace")
    log = folder / "output.log"
    return Captured(
        log.read_bytes() if log.is_file() else b"", terminal, list(JournalReader(folder / "records.jsonl"))
    )


def _read_to_end(descriptor: int) -> bytes:
    data = bytearray()
    try:
        while piece := os.read(descriptor, 65536):
            data += piece
    except OSError:
        pass  # how Linux says that a terminal's other end is closed
    os.close(descriptor)
    return bytes(data)


def test_every_way_of_printing_is_kept_and_none_reaches_the_terminal(tmp_path: Path) -> None:
    found = run(
        tmp_path,
        """
        from ctypes import CDLL
        libc = CDLL(None)
        print("from print", flush=True)
        print("from stderr", file=sys.stderr, flush=True)
        libc.printf(b"from printf\\n")
        libc.fflush(None)
        os.write(1, b"from write 1\\n")
        os.write(2, b"from write 2\\n")
        os.system("echo from system; echo from system error >&2")
        subprocess.run([sys.executable, "-c", "import os; os.write(1, b'from a child\\\\n')"], check=True)
        """,
    )
    out = ["from print", "from printf", "from write 1", "from system", "from a child"]
    err = ["from stderr", "from write 2", "from system error"]
    assert found.printed("stdout") == out
    assert found.printed("stderr") == err
    assert sorted(found.log.decode().splitlines()) == sorted(out + err)
    assert b"from" not in found.terminal


def test_afterwards_the_descriptors_and_streams_are_what_they_were(tmp_path: Path) -> None:
    found = run(
        tmp_path,
        """
        terminal = sys.__stdout__
        assert os.isatty(terminal.fileno()) and not os.isatty(1) and not os.isatty(2)
        print("drawn", file=terminal, flush=True)
        print("captured at the very end")
        """,
        after="""
        assert os.isatty(1) and os.isatty(2)
        assert sys.__stdout__ is sys.stdout and sys.__stderr__ is sys.stderr
        assert terminal.closed
        print("said to out", flush=True)
        print("said to err", file=sys.stderr, flush=True)
        assert len(os.listdir("/proc/self/fd")) == 4  # three, and the listing's own
        """,
    )
    assert found.terminal.split() == b"drawn said to out said to err".split()
    assert found.printed("stdout") == ["captured at the very end"]


def test_a_redirected_standard_error_stays_redirected(tmp_path: Path) -> None:
    with (tmp_path / "errors.txt").open("wb") as errors:
        found = run(
            tmp_path,
            """
            print("to the file", file=sys.stderr, flush=True)
            os.write(2, b"and this\\n")
            print("captured")
            """,
            stderr=errors.fileno(),
        )
    assert (tmp_path / "errors.txt").read_text() == "to the file\nand this\n"
    assert found.log == b"captured\n"
    assert found.printed("stderr") == []


@pytest.mark.ci
def test_a_flood_is_complete_in_the_file_and_bounded_in_the_records(tmp_path: Path) -> None:
    found = run(
        tmp_path,
        """
        began = int(time.time())
        for i in range(50_000):
            print("flood", i)
        sys.stdout.flush()
        """,
        after="""
        seconds = int(time.time()) - began + 1
        records.append(Note(time=0.0, severity="info", text=str(seconds)))
        """,
    )
    assert found.log.decode().splitlines() == [f"flood {i}" for i in range(50_000)]
    (seconds,) = map(int, found.notes)
    lines = found.printed("stdout")
    assert MAX_LINES_A_SECOND <= len(lines) <= MAX_LINES_A_SECOND * (seconds + 1)
    assert "more lines in output.log" in lines[MAX_LINES_A_SECOND - 1]


@pytest.mark.parametrize(
    ("break_it", "reason"),
    [
        ("log.mkdir()", "Is a directory"),
        ("resource.setrlimit(resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY))", "File too large"),
    ],
    ids=["a folder in its place", "a full disk"],
)
def test_a_log_that_cannot_be_written_is_told_once_and_never_raises_into_a_print(
    break_it: str, reason: str, tmp_path: Path
) -> None:
    found = run(
        tmp_path,
        f"""
        {break_it}
        for i in range(5):
            print("line", i, flush=True)
            os.write(2, b"error\\n")
        """,
        after="resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)",
    )
    assert found.printed("stdout") == [f"line {i}" for i in range(5)]
    assert found.printed("stderr") == ["error"] * 5
    (note,) = found.notes
    assert note == f"output is no longer saved in {tmp_path / 'output.log'}: {reason}"
    assert len(found.log) in (0, 10)  # a disk takes what still fits


def test_a_progress_bar_of_a_script_is_shown_at_once_and_recorded_when_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amptui.process.capture.LIVE_INTERVAL_SECONDS", 0.0)
    log, records = tmp_path / "output.log", list[Record]()
    with log.open("wb", buffering=0) as output:
        tail = LogTail(log, records.append, skip=False)
        tail.start()
        for piece, count in ((b"before\n\r 0%\r 50%", 2), (b"\r    \r", 3), (b"\r 0%\r51%", 4)):
            output.write(piece)
            wait_until(lambda: len(records) == count, f"record {count}")  # noqa: B023 - called at once
        output.write(b"\r100%\nafter\n")
        tail.stop()
    printed = of(Printed, records)
    assert [record.text for record in printed if not record.live] == ["before", "100%", "after"]
    assert [record.text for record in printed if record.live] == [" 50%", "", "51%"]
    session, counts = Session(), []
    for record in records:
        session.fold([record])
        counts.append(len(session.view().printed))
    assert counts == [1, 2, 1, 2, 2, 3], "a bar that is cleared leaves no line"


# The lines of a stream, however it is cut, from text and from progress bars.

UP = "\x1b[A"

PIECES = (
    *("step", "ä", "日本", "  ", "x" * 300, "\n", "\r", "\r\n", "\b", "\t", "\x1b", UP, "\x1b[2A", "\x1b[K"),
    *("\x1b[31;1m", "\x1b[m", "\x1b]0;title\a", "\x1b]8;;x\x1b\\", "\x1b(B", "\x1b[?25l", "\x1b]", "\x1b["),
)


def lines_of(*pieces: bytes) -> list[str]:
    lines = OutputLines()
    return [line for piece in pieces for line in lines.feed(piece)] + lines.finish()


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("one\ntwo\r\n\n  \nthree", ["one", "two", "three"]),
        ("\r 10%\r 50%\r100%\n", ["100%"]),
        ("10%\r20%\r\n", ["20%"]),
        ("a long line\rshort\n", ["short"]),
        ("a long line\r\x1b[Kshort\n", ["short"]),
        ("loss \x1b[31m0.5\x1b[0m \x1b]8;;file:x\x1b\\here\x1b]8;;\x1b\\\n", ["loss 0.5 here"]),
        ("gone\r    \rdone\n", ["done"]),
        ("gone\r    \r\n", []),
        ("x" * 2000 + "\ny\n", ["x" * MAX_LINE_CHARACTERS, "y"]),
        (f"\router 0%\n\rinner 0%{UP}\n\rinner 9%{UP}\router 1%\n\rinner 0%{UP}", ["outer 0%", "outer 1%"]),
        ("\x1b[", []),
        ("\x1b[1\nx", ["1", "x"]),
    ],
)
def test_a_line_is_what_stands_in_it_when_it_ends(text: str, lines: list[str]) -> None:
    assert lines_of(text.encode()) == lines


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join), st.data())
def test_how_output_is_cut_changes_no_line(text: str, data: st.DataObject) -> None:
    whole = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)))))
    cut = [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert lines_of(*cut) == lines_of(whole)


@given(st.binary(max_size=300))
def test_any_bytes_give_lines_without_control_characters(data: bytes) -> None:
    for line in lines_of(data):
        assert line.strip()
        assert len(line) <= MAX_LINE_CHARACTERS
        assert not {character for character in line if character < " " and character != "\t"}
