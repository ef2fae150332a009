"""Textual's Linux driver, for a terminal that may stall or vanish under us."""

import os
import sys
import termios
from typing import Any

from textual.drivers.linux_driver import LinuxDriver

from amptui.tui.outlet import Outlet

_ALTERNATE_SCREEN = "\x1b[?1049h"

RESTORE = b"\x1b[?2004l\x1b[?7h\x1b[?2048l\x1b[<u\x1b[0m\x1b[?1049l\x1b[?25h\x1b[?1004l"
"""What :class:`PatientDriver` writes when it stops, for a process that has no time to stop it."""


class PatientDriver(LinuxDriver):
    """Never waits for a terminal that takes nothing, and takes its loss for what it is.

    The mouse stays the terminal's own: text can be selected, and moving it costs no cycles.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{**options, "mouse": False})
        self._outlet: Outlet | None = None
        self._hurried = False

    @property
    def waiting_writes(self) -> int:
        """Writes that the terminal has not taken yet; frames are skipped meanwhile."""
        return self._outlet.waiting if self._outlet is not None else 0

    @property
    def terminal_is_gone(self) -> bool:
        """Whether the terminal was closed: it then reads as an endless end of file, and takes nothing."""
        if self._outlet is not None and self._outlet.broken:
            return True
        try:
            termios.tcgetattr(self.fileno)
        except termios.error:
            return True
        return False

    def hurry(self) -> None:
        """Do not wait for the terminal at the end: it is being closed. Safe in a signal handler."""
        self._hurried = True
        if self._outlet is not None:
            self._outlet.hurry()

    def start_application_mode(self) -> None:
        """Have a writer before the first sequence is written."""
        terminal = sys.__stderr__
        assert terminal is not None, "there is a terminal"
        self._outlet = Outlet(terminal.fileno(), terminal.encoding)
        self._outlet.start()
        super().start_application_mode()  # type: ignore[no-untyped-call]

    def write(self, data: str) -> None:
        """Past Textual's queue, which holds 30 writes and then blocks the screen's thread."""
        if self._outlet is not None:
            self._outlet.write(data)

    def close(self) -> None:
        """Wait for what is still to be written, but not for a terminal that takes nothing."""
        super().close()
        if self._outlet is not None:
            if self._hurried:
                self._outlet.hurry()
            self._outlet.close()
            self._outlet = None

    def resume_application_mode(self) -> None:
        """Draw all anew after the process stood still, also if SIGSTOP said nothing before."""
        if self._outlet is not None:
            self.suspend_application_mode()
        super().resume_application_mode()
        self.send_message(self.SignalResume())

    def run_input_thread(self) -> None:
        """Read keys until told to stop, or until there is no terminal to read from."""
        try:
            super().run_input_thread()
        except OSError:
            if os.isatty(self.fileno):
                raise


class ContinuingDriver(PatientDriver):
    """Takes over a terminal that is on its alternate screen already.

    To enter that anew would clear it, and forget where the cursor stood before.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._entered = False

    def write(self, data: str) -> None:
        """All but the first sequence that enters the alternate screen."""
        if data == _ALTERNATE_SCREEN and not self._entered:
            self._entered = True
        else:
            super().write(data)
