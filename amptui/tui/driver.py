"""Textual's Linux driver, for a terminal that may stall or vanish under us."""

import os
import termios

from textual.drivers.linux_driver import LinuxDriver


class PatientDriver(LinuxDriver):
    """Tells how much waits to be written, and takes the loss of the terminal for what it is."""

    @property
    def waiting_writes(self) -> int:
        """Writes queued for a terminal that has not taken them yet; frames are skipped meanwhile.

        Textual's queue holds 30 and then blocks the screen's thread.
        """
        return self._writer_thread._queue.qsize() if self._writer_thread else 0

    @property
    def terminal_is_gone(self) -> bool:
        """Whether the terminal was closed: it then reads as an endless end of file."""
        try:
            termios.tcgetattr(self.fileno)
        except termios.error:
            return True
        return False

    def run_input_thread(self) -> None:
        """Read keys until told to stop, or until there is no terminal to read from."""
        try:
            super().run_input_thread()
        except OSError:
            if os.isatty(self.fileno):
                raise
