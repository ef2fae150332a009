"""A real pseudo-terminal with a program in it: types keys, reads the screen, hangs up."""

import fcntl
import os
import pty
import re
import select
import struct
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pyte

from tests.warm import ENVIRONMENT, Process, WarmSource, start_anew

_ANSWERS = {b"\x1b[c": b"\x1b[?62;22c", b"\x1b[6n": b"\x1b[1;1R"}
"""What a terminal says when it is asked what it is and where the cursor stands."""

BACKGROUND_QUESTION = b"\x1b]11;?\x1b\\"


class _Screen(pyte.Screen):
    """Has no alternate screen: what follows it begins a line, as it does where a program was started."""

    def reset_mode(self, *modes: int, private: bool = False, **_: object) -> None:
        super().reset_mode(*modes, private=private)
        if private and 1049 in modes:
            self.carriage_return()
            self.linefeed()


class Terminal:
    """Runs ``command`` as the leader of a session on a terminal of its own."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        size: tuple[int, int] = (120, 40),
        env: Mapping[str, str] | None = None,
        warm: WarmSource | None = None,
        answers: Mapping[bytes, bytes] = _ANSWERS,
    ) -> None:
        """``warm`` starts a Python command two seconds sooner, in no environment but this one."""
        columns, lines = size
        self._answers = answers
        self.screen = _Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self.written = bytearray()
        self.master, self.slave = pty.openpty()
        self._set_size(columns, lines)
        self.modes_before = termios.tcgetattr(self.slave)
        ends = (self.slave, self.slave, self.slave)
        self.process: Process
        if warm is None:
            self.process = start_anew(command, *ends, {**os.environ, **ENVIRONMENT, **(env or {})})
        else:
            assert env is None, "counts when Python starts"
            self.process = warm.start(command, *ends)

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            # What it started shall not outlive it here, as a training would.
            started = psutil.Process(self.process.pid).children(recursive=True)
            for process in (self.process, *started):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        self.process.wait()
        for descriptor in (self.master, self.slave):
            if descriptor >= 0:
                os.close(descriptor)

    @property
    def text(self) -> str:
        # Unlike pyte's own display, this takes the second half of a wide character that was overwritten.
        lines = (self.screen.buffer[row] for row in range(self.screen.lines))
        columns = range(self.screen.columns)
        return "\n".join("".join(line[x].data for x in columns).rstrip() for line in lines)

    @property
    def modes(self) -> list[object]:
        return termios.tcgetattr(self.slave)

    def press(self, keys: str, *, until: str = "", until_gone: str = "") -> None:
        """Type, and read ``until`` a pattern stands on the screen, or ``until_gone`` it no longer does."""
        os.write(self.master, keys.encode())
        if until:
            self.wait_for(until)
        if until_gone:
            self.wait_until_gone(until_gone)

    def leave(self, keys: str) -> int:
        """Type what ends the program; its exit status."""
        self.press(keys)
        return self.wait()

    def answer(self, data: bytes) -> None:
        """Send what only the terminal itself would."""
        os.write(self.master, data)

    def hang_up(self) -> None:
        os.close(self.slave)
        os.close(self.master)
        self.master = self.slave = -1

    def read(self, seconds: float) -> bool:
        """Take in what was written within that time; false at the program's end."""
        ready, _, _ = select.select([self.master], [], [], seconds)
        if not ready:
            return True
        try:
            data = os.read(self.master, 65536)
        except OSError:
            return False
        self.written += data
        for question, answer in self._answers.items():
            if question in data:
                os.write(self.master, answer)
        self._stream.feed(data)
        return bool(data)

    def wait_for(self, pattern: str, *, seconds: float = 60) -> re.Match[str]:
        """Read until ``pattern`` stands on the screen; fail with the screen if it never does."""
        limit = time.monotonic() + seconds
        while not (found := re.search(pattern, self.text)):
            assert time.monotonic() < limit, f"{pattern!r} never stood on the screen:\n{self.text}"
            self.read(0.2)
            if self.process.poll() is not None:
                self._read_the_rest()
                found = re.search(pattern, self.text)
                assert found, f"the program ended before {pattern!r} stood on the screen:\n{self.text}"
                return found
        return found

    def wait_until(self, holds: Callable[[], object]) -> None:
        limit = time.monotonic() + 60
        while not holds():
            assert time.monotonic() < limit, self.text
            assert self.process.poll() is None, f"the program ended:\n{self.text}"
            self.read(0.05)

    def wait_until_gone(self, pattern: str) -> None:
        """Read until ``pattern`` stands on the screen no longer.

        For a key whose effect is to take something away: what it leaves may have stood there all along, and
        waiting for that ends before the key was heard.
        """
        self.wait_until(lambda: not re.search(pattern, self.text))

    def wait(self, *, seconds: float = 60) -> int:
        """Read until the program has ended; its exit status."""
        limit = time.monotonic() + seconds
        while self.process.poll() is None:
            assert time.monotonic() < limit, f"the program did not end:\n{self.text}"
            if self.master >= 0:
                self.read(0.1)
            else:
                self.process.wait(timeout=seconds)
        self._read_the_rest()
        return self.process.wait()

    def _read_the_rest(self) -> None:
        before = -1
        while self.master >= 0 and len(self.written) > before:
            before = len(self.written)
            self.read(0.1)

    def _set_size(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))


def amptui_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "amptui", *arguments]


KNOBS = str(Path(__file__).parent / "recipes" / "knobs.py")
