"""Textual's Linux driver, for a terminal that may stall or vanish under us."""

import os
import selectors
import signal
import sys
import termios
import threading
from typing import Any

from textual.drivers.linux_driver import LinuxDriver
from textual.events import Key
from textual.message import Message

from amptui.terminal import HeldTerminal, terminal_size
from amptui.tui.keyboard import Keyboard
from amptui.tui.outlet import Outlet

_ALTERNATE_SCREEN = "\x1b[?1049h"

_READ_BYTES = 4096

_DEAF_SECONDS = 1.0

_LOOK_INTERVAL_SECONDS = 0.1
"""How soon a screen that leaves has its input thread back, and how finely silence is measured."""


class PatientDriver(LinuxDriver):
    """Never waits for a terminal that takes nothing, and takes its loss for what it is.

    The mouse stays the terminal's own: text can be selected, and moving it costs no cycles.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{**options, "mouse": False})
        self._size = self._size or self._get_terminal_size()
        self._outlet: Outlet | None = None
        self._terminal: HeldTerminal | None = getattr(self._app, "terminal", None)
        self._hurried = False
        self._interrupt_heard: threading.Event | None = None

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
        if self._terminal is not None:
            self._terminal.take()
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
        if self._terminal is not None:
            self._terminal.give()

    def resume_application_mode(self) -> None:
        """Draw all anew after the process stood still, also if SIGSTOP said nothing before."""
        if self._outlet is not None:
            self.suspend_application_mode()
        super().resume_application_mode()
        self.send_message(self.SignalResume())

    def run_input_thread(self) -> None:
        """Read keys until told to stop, or until there is no terminal to read from."""
        keyboard = Keyboard()
        with selectors.SelectSelector() as selector:
            selector.register(self.fileno, selectors.EVENT_READ)
            while not self.exit_event.is_set():
                heard = keyboard.settle()
                if selector.select(_LOOK_INTERVAL_SECONDS):
                    try:
                        data = os.read(self.fileno, _READ_BYTES)
                    except OSError:
                        if os.isatty(self.fileno):
                            raise
                        return
                    if not data:
                        return
                    heard += keyboard.take(data)
                for message in heard:
                    self.process_message(message)

    def process_message(self, message: Message) -> None:
        """Hand on what was heard. A screen that no longer hears keys gets the next Ctrl+C as a signal."""
        if isinstance(message, Key) and message.key == "ctrl+c":
            if self._interrupt_heard is not None and not self._interrupt_heard.wait(_DEAF_SECONDS):
                os.kill(os.getpid(), signal.SIGINT)
                return
            self._interrupt_heard = threading.Event()
            self._loop.call_soon_threadsafe(self._interrupt_heard.set)
        super().process_message(message)

    def _get_terminal_size(self) -> tuple[int, int]:
        return terminal_size()

    def _query_in_band_window_resize(self) -> None:
        """Not asked for: the system tells the size, and what arrives as input may say anything."""


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
