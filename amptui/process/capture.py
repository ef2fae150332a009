"""Reserves the terminal for the screen: what Python or C code prints goes to records and a log file."""

import os
import stat
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Literal

from amptui.records import Note, Printed, Record
from amptui.runfiles import open_to_append

MAX_LINES_A_SECOND = 20
"""Limit of lines that become records; all lines go to the file."""

_MAX_LINE_CHARACTERS = 500

_MAX_READ_CHARACTERS = 65536
"""A longer line is taken in pieces."""

_TAIL_INTERVAL_SECONDS = 0.2


class OutputCapture:
    """While entered, file descriptors 1 and 2 are pipes, and ``sys.__stdout__`` is the terminal.

    Pipes rather than a file: printing to a full disk would raise in the user's code. A thread reads them
    constantly, so that no print ever waits. A standard error that was redirected to a file or pipe stays.
    """

    def __init__(self, emit: Callable[[Record], object], log_path: Path) -> None:
        self._log = _OutputLog(log_path, emit)
        self._readers: list[_PipeReader] = []
        self._saved: dict[int, int] = {}
        self._streams = sys.__stdout__, sys.__stderr__
        self._own_streams = sys.stdout, sys.stderr

    def __enter__(self) -> "OutputCapture":
        sys.stdout.flush()
        sys.stderr.flush()
        terminal = os.fdopen(os.dup(1), "w", encoding=sys.stdout.encoding, errors="replace")
        self._streams = sys.__stdout__, sys.__stderr__
        self._own_streams = sys.stdout, sys.stderr
        self._redirect(1, "stdout")
        if os.isatty(2) or _is_null_device(2):
            self._redirect(2, "stderr")
        # Textual draws on sys.__stderr__ and asks sys.__stdout__ for the terminal's size.
        sys.__stdout__ = sys.__stderr__ = terminal  # type: ignore[misc]
        return self

    def __exit__(self, *_: object) -> None:
        terminal = sys.__stdout__
        sys.__stdout__, sys.__stderr__ = self._streams  # type: ignore[misc]
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, saved in self._saved.items():
            os.dup2(saved, descriptor)  # closes the pipe's writing end, which ends its reader
            os.close(saved)
        for reader in self._readers:
            reader.join(timeout=1)
        self._log.close()
        _close_quietly(terminal)

    def reclaim(self) -> None:
        """Restore ``sys.stdout`` and ``sys.stderr`` after a screen library has replaced them."""
        sys.stdout, sys.stderr = self._own_streams

    def _redirect(self, descriptor: int, name: Literal["stdout", "stderr"]) -> None:
        reading, writing = os.pipe()
        self._saved[descriptor] = os.dup(descriptor)
        os.dup2(writing, descriptor)
        os.close(writing)
        reader = _PipeReader(reading, name, self._log)
        self._readers.append(reader)
        reader.start()


def _is_null_device(descriptor: int) -> bool:
    found, null = os.fstat(descriptor), os.stat(os.devnull)  # noqa: PTH116 - a device, not a path
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == null.st_rdev


def _close_quietly(stream: IO[str] | None) -> None:
    """Close a terminal that may be gone: there is nobody left to tell."""
    try:
        if stream is not None:
            stream.close()
    except OSError:
        pass


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
                left = memoryview(data)
                while left:  # a nearly full disk accepts a part
                    left = left[self._file.write(left) :]
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

    def line(self, stream: Literal["stdout", "stderr"], text: str) -> None:
        """Emit one line, unless this second's limit is reached."""
        now = time.time()
        with self._lock:
            if int(now) != self._second:
                self._second, self._lines = int(now), 0
            self._lines += 1
            if self._lines > MAX_LINES_A_SECOND:
                return
            if self._lines == MAX_LINES_A_SECOND:
                text = f"{text[:200]} … (more lines in {self._path.name})"
        self._emit(Printed(time=now, stream=stream, text=text[:_MAX_LINE_CHARACTERS]))


class _PipeReader(threading.Thread):
    """Reads one pipe to its end."""

    def __init__(self, descriptor: int, name: Literal["stdout", "stderr"], log: _OutputLog) -> None:
        super().__init__(name=f"amptui-{name}", daemon=True)
        self._descriptor = descriptor
        self._stream = name
        self._log = log

    def run(self) -> None:
        """Take the output line by line; a progress bar's carriage return ends one too."""
        starts_line = True
        with os.fdopen(self._descriptor, encoding="utf-8", errors="surrogateescape", newline="") as pipe:
            while line := pipe.readline(_MAX_READ_CHARACTERS):
                data = line.encode("utf-8", "surrogateescape")
                self._log.write(data)
                text = data.decode("utf-8", "replace").rstrip()
                if starts_line and text:
                    self._log.line(self._stream, text)
                starts_line = line.endswith(("\r", "\n"))


class LogTail(threading.Thread):
    """Emits the lines that a script's standard output and error append to one file, as records."""

    def __init__(self, path: Path, emit: Callable[[Record], object], *, skip: bool) -> None:
        """``skip`` what was written before."""
        super().__init__(name="amptui-output", daemon=True)
        self._file = path.open("rb")
        if skip:
            self._file.seek(0, os.SEEK_END)
        self._log = _OutputLog(path, emit)
        self._rest = b""
        self._stopping = threading.Event()

    def run(self) -> None:
        """Look for new lines until stopped."""
        while not self._stopping.wait(_TAIL_INTERVAL_SECONDS):
            self._take(self._file.read(_MAX_READ_CHARACTERS))
        self._take(self._file.read(_MAX_READ_CHARACTERS) + b"\n")
        self._file.close()

    def stop(self) -> None:
        """Take what was written last, and end."""
        self._stopping.set()
        self.join(timeout=1)

    def _take(self, data: bytes) -> None:
        """A progress bar's carriage return ends a line too."""
        *lines, self._rest = (self._rest + data).replace(b"\r", b"\n").split(b"\n")
        self._rest = self._rest[-_MAX_LINE_CHARACTERS:]
        for line in lines:
            if text := line.decode("utf-8", "replace").rstrip():
                self._log.line("stdout", text)
