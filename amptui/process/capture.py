"""What a training or a script prints: its output goes to a file of the run's, whose lines become records."""

import codecs
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from amptui.base.runfiles import open_file
from amptui.records.run import Printed, Record

MAX_LINES_A_SECOND = 20
"""Limit of lines that become records; all lines are in the file."""

MAX_LINE_CHARACTERS = 500
"""The rest of a longer line is dropped."""

_UP = re.compile(r"\x1b\[\d*[AF]")
"""The cursor moves up: what it left is a progress bar below another one."""

_NOT_SHOWN = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\r\n\x07\x1b]*(?:\x07|\x1b\\)|\x1b[ -/]*[0-~]"
    r"|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]"
)
"""Escape sequences (ECMA-48) and control characters."""

_MAX_READ_BYTES = 65536

_TAIL_INTERVAL_SECONDS = 0.2


def redirect_output(path: Path, descriptors: Sequence[int]) -> None:
    """Write further output to a file: on a closed terminal every print would fail. Raises OSError."""
    file = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for descriptor in descriptors:
        os.dup2(file, descriptor)
    os.close(file)


class OutputLines:
    """The lines of an output; of a progress bar, what it showed last."""

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


def _shown(line: str) -> str:
    """What a terminal shows of a line: the last text after a carriage return."""
    texts = [text for text in _NOT_SHOWN.sub("", line).split("\r") if text]
    return texts[-1][:MAX_LINE_CHARACTERS].rstrip() if texts else ""


class LogTail(threading.Thread):
    """Emits the lines that standard output and error append to one file, as records."""

    def __init__(self, path: Path, emit: Callable[[Record], object], *, skip: bool) -> None:
        """``skip`` what was written before."""
        super().__init__(name="amptui-output", daemon=True)
        self._path = path
        self._emit = emit
        self._lines = OutputLines()
        self._second = self._lines_this_second = 0
        self._file = path.open("rb")
        if skip:
            self._file.seek(0, os.SEEK_END)
        self._stopping = threading.Event()

    def run(self) -> None:
        is_over = False
        while not is_over:
            is_over = self._stopping.wait(_TAIL_INTERVAL_SECONDS)
            while data := self._file.read(_MAX_READ_BYTES):
                self._record(self._lines.feed(data))
        self._record(self._lines.finish())
        self._file.close()

    def stop(self) -> None:
        """Take what was written last, and end."""
        self._stopping.set()
        self.join(timeout=1)

    def _record(self, lines: Sequence[str]) -> None:
        for text in lines:
            now = time.time()
            if int(now) != self._second:
                self._second, self._lines_this_second = int(now), 0
            self._lines_this_second += 1
            if self._lines_this_second < MAX_LINES_A_SECOND:
                self._emit(Printed(time=now, text=text))
            elif self._lines_this_second == MAX_LINES_A_SECOND:
                more = f"{text[:200]} … (more lines in {self._path.name})"
                self._emit(Printed(time=now, text=more))
