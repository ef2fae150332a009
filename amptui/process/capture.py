"""Reserves the terminal for the screen: what Python or C code prints goes to records and a log file."""

import codecs
import os
import re
import select
import stat
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Literal

from amptui.base.runfiles import open_to_append
from amptui.records.run import Note, Printed, Record

MAX_LINES_A_SECOND = 20
"""Limit of lines that become records; all lines go to the file."""

LIVE_INTERVAL_SECONDS = 10.0
"""A line that is being overwritten becomes a record at most so often: each one is a line of the journal."""

MAX_LINE_CHARACTERS = 500
"""The rest of a longer line is dropped."""

_LIVE_CHECK_SECONDS = 1.0

_UP = re.compile(r"\x1b\[\d*[AF]")
"""The cursor moves up: what it left is a progress bar below another one."""

_NOT_SHOWN = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\r\n\x07\x1b]*(?:\x07|\x1b\\)|\x1b[ -/]*[0-~]"
    r"|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]"
)
"""Escape sequences (ECMA-48) and control characters."""

_MAX_READ_BYTES = 65536

_TAIL_INTERVAL_SECONDS = 0.2

StreamName = Literal["stdout", "stderr"]


class OutputCapture:
    """While entered, file descriptors 1 and 2 are pipes, and ``sys.__stdout__`` is the terminal.

    Pipes rather than a file: printing to a full disk would raise in the user's code. A thread reads them
    constantly, so that no print ever waits. A standard error that was redirected to a file or pipe stays.
    """

    def __init__(self, emit: Callable[[Record], object], log_path: Path) -> None:
        self._log = _OutputLog(log_path, emit)
        self._readers: list[_PipeReader] = []
        self._saved: dict[int, int] = {}

    def __enter__(self) -> "OutputCapture":
        sys.stdout.flush()
        sys.stderr.flush()
        terminal = os.fdopen(os.dup(1), "w", encoding=sys.stdout.encoding, errors="replace")
        self._streams = sys.__stdout__, sys.__stderr__
        self._own_streams = sys.stdout, sys.stderr
        self._redirect(1, "stdout")
        error, null = os.fstat(2), os.stat(os.devnull)  # noqa: PTH116 - a device, not a path
        if os.isatty(2) or (stat.S_ISCHR(error.st_mode) and error.st_rdev == null.st_rdev):
            self._redirect(2, "stderr")
        # Textual draws on sys.__stderr__ and asks sys.__stdout__ for the terminal's size.
        sys.__stdout__ = sys.__stderr__ = terminal  # type: ignore[misc]
        return self

    def __exit__(self, *_: object) -> None:
        terminal = sys.__stdout__
        sys.__stdout__, sys.__stderr__ = self._streams  # type: ignore[misc]
        for stream in (sys.stdout, sys.stderr):
            with suppress(ValueError):  # the model has closed it
                stream.flush()
        for descriptor, saved in self._saved.items():
            os.dup2(saved, descriptor)  # closes the pipe's writing end, which ends its reader
            os.close(saved)
        for reader in self._readers:
            reader.join(timeout=1)
        self._log.close()
        if terminal is not None:
            with suppress(OSError):  # it may be gone
                terminal.close()

    def reclaim(self) -> None:
        """Restore ``sys.stdout`` and ``sys.stderr`` after a screen library has replaced them."""
        sys.stdout, sys.stderr = self._own_streams

    def _redirect(self, descriptor: int, name: StreamName) -> None:
        reading, writing = os.pipe()
        self._saved[descriptor] = os.dup(descriptor)
        os.dup2(writing, descriptor)
        os.close(writing)
        reader = _PipeReader(reading, name, self._log)
        self._readers.append(reader)
        reader.start()


class _OutputLog:
    """Where captured output goes: every byte to a file, a bounded number of lines to the records."""

    def __init__(self, path: Path, emit: Callable[[Record], object]) -> None:
        self._emit = emit
        self._path = path
        self._lock = threading.Lock()
        self._file: IO[bytes] | None = None
        self._broken = False
        self._second = 0
        self._lines = 0

    def write(self, data: bytes) -> None:
        """Append to the file, created at the first byte; an error of the disk is reported once."""
        with self._lock:
            if self._broken or not data:
                return
            try:
                self._file = self._file or open_to_append(self._path)
                rest = memoryview(data)
                while rest:  # a nearly full disk accepts a part
                    rest = rest[self._file.write(rest) :]
            except OSError as error:
                self._broken = True
                text = f"output is no longer saved in {self._path}: {error.strerror}"
                self._emit(Note(time=time.time(), severity="warning", text=text))

    def close(self) -> None:
        """Close the file; output of a surviving child opens it again."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def live_line(self, stream: StreamName, text: str) -> None:
        """Emit what stands in the line that is being overwritten now; nothing if ``text`` is empty."""
        self._emit(Printed(time=time.time(), stream=stream, text=text, live=True))

    def line(self, stream: StreamName, text: str) -> bool:
        """Emit one line, unless this second's limit is reached; return whether it was emitted."""
        now = time.time()
        with self._lock:
            if int(now) != self._second:
                self._second, self._lines = int(now), 0
            self._lines += 1
            if self._lines > MAX_LINES_A_SECOND:
                return False
            if self._lines == MAX_LINES_A_SECOND:
                text = f"{text[:200]} … (more lines in {self._path.name})"
        self._emit(Printed(time=now, stream=stream, text=text))
        return True


class OutputLines:
    """The lines of one stream of output; of a progress bar, what it showed last."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        """What was written since the last line's end, or of a progress bar since it began anew."""

    def feed(self, data: bytes) -> list[str]:
        """The lines that ``data`` completes, without trailing spaces; blank ones are left out."""
        *lines, rest = (self._rest + self._decoder.decode(data)).split("\n")
        newest = rest.rfind("\r", 0, len(rest.rstrip("\r")))
        self._rest = rest[max(newest, 0) :][: 8 * MAX_LINE_CHARACTERS]
        return [shown for line in lines if (shown := _shown(_UP.split(line)[-1]))]

    def finish(self) -> list[str]:
        """What is left at the end of the output."""
        return self.feed(b"\n")  # it also ends a character that was cut

    @property
    def unfinished(self) -> str:
        """The line that is not complete, as it stands now: a progress bar, a prompt."""
        *bars, text = _UP.split(self._rest)
        return _shown(text) or (_shown(bars[-1]) if bars else "")

    @property
    def live(self) -> str:
        """The progress bar, as it stands now; empty if there is none."""
        is_bar = "\r" in self._rest.rstrip("\r") or _UP.search(self._rest)
        return self.unfinished if is_bar else ""


def _shown(line: str) -> str:
    """What a terminal shows of a line: the last text after a carriage return."""
    texts = [text for text in _NOT_SHOWN.sub("", line).split("\r") if text]
    return texts[-1][:MAX_LINE_CHARACTERS].rstrip() if texts else ""


class _Reader(threading.Thread):
    """Makes records of one stream of output: lines as they are completed, and now and then a live one."""

    def __init__(self, name: StreamName, log: _OutputLog) -> None:
        super().__init__(name=f"amptui-{name}", daemon=True)
        self._stream: StreamName = name
        self._log = log
        self._lines = OutputLines()
        self._shown = ""
        """The live line that the records show."""
        self._live_due = 0.0

    def take(self, data: bytes) -> None:
        """Emit the lines that ``data`` completes, and the live one when that is due."""
        self._emit(self._lines.feed(data))
        now, live = time.monotonic(), self._lines.live
        if live != self._shown and now >= self._live_due:
            self._log.live_line(self._stream, live)
            self._shown, self._live_due = live, now + LIVE_INTERVAL_SECONDS

    def finish(self) -> None:
        self._emit(self._lines.finish())
        if self._shown:
            self._log.live_line(self._stream, "")

    def _emit(self, lines: list[str]) -> None:
        for text in lines:
            if self._log.line(self._stream, text):
                self._shown = ""  # it takes the live line's place


class _PipeReader(_Reader):
    """Reads one pipe to its end, and writes it to the log as it comes."""

    def __init__(self, descriptor: int, name: StreamName, log: _OutputLog) -> None:
        super().__init__(name, log)
        self._descriptor = descriptor

    def run(self) -> None:
        readable = select.poll()
        readable.register(self._descriptor, select.POLLIN)
        try:
            while True:
                if self._lines.live != self._shown and not readable.poll(_LIVE_CHECK_SECONDS * 1000):
                    self.take(b"")
                    continue
                data = os.read(self._descriptor, _MAX_READ_BYTES)
                if not data:
                    break
                self._log.write(data)
                self.take(data)
        finally:
            os.close(self._descriptor)
        self.finish()


class LogTail(_Reader):
    """Emits the lines that a script's standard output and error append to one file, as records."""

    def __init__(self, path: Path, emit: Callable[[Record], object], *, skip: bool) -> None:
        """``skip`` what was written before."""
        super().__init__("stdout", _OutputLog(path, emit))
        self._file = path.open("rb")
        if skip:
            self._file.seek(0, os.SEEK_END)
        self._stopping = threading.Event()

    def run(self) -> None:
        is_over = False
        while not is_over:
            is_over = self._stopping.wait(_TAIL_INTERVAL_SECONDS)
            self.take(b"")  # a live line may be due
            while data := self._file.read(_MAX_READ_BYTES):
                self.take(data)
        self.finish()
        self._file.close()

    def stop(self) -> None:
        """Take what was written last, and end."""
        self._stopping.set()
        self.join(timeout=1)
