"""Textual's Linux driver for a terminal that may stall or disappear: a thread of its own writes to it."""

import codecs
import math
import os
import re
import select
import selectors
import signal
import sys
import termios
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from textual._xterm_parser import XTermParser
from textual.drivers.linux_driver import LinuxDriver
from textual.events import Key
from textual.message import Message
from textual.messages import TerminalSupportsSynchronizedOutput

from amptui.base.terminal import terminal_size
from amptui.tui.style import QUESTION, Background, background_in, can_ask

if TYPE_CHECKING:
    from amptui.tui.opening import Opening

_ALTERNATE_SCREEN = "\x1b[?1049h"

_READ_BYTES = 4096

_UNRESPONSIVE_SECONDS = 1.0
"""If the screen has not handled a Ctrl+C for so long, the next one is sent as a signal."""

_POLL_SECONDS = 0.1
"""How often the input thread checks for silence and for the end of the screen."""

_ANSWER_SECONDS = 5.0
"""How long after a question an answer is expected."""

_PASTE_SECONDS = 2.0
"""A paste without an end is over after so much silence: it takes in every key, Ctrl+C too."""

_LATE_ANSWER_SECONDS = 1.0
"""How long the screen waits at its end for the terminal's answer to a question of its start."""

_CHUNK_BYTES = 4096
"""About the size of a terminal's buffer: progress is known in steps of this."""

_LEAVING_SECONDS = 10.0
"""At the end, a terminal that accepts nothing for so long is given up; a link may come back until then."""

_HURRIED_SECONDS = 0.5
"""The same for a terminal that is being closed."""

_REPORT = re.compile(r"\x1b[\]P_^][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b\[\?[\d;]*c")
"""A colour, a title (OSC) or another string, or what the terminal is (DA1): to Textual these are letters."""

_BEGUN_REPORT = re.compile(r"\x1b(?:\][^\x07\x1b]*\x1b?|\[\??[\d;$]*)?\Z")


@dataclass
class BackgroundReported(Message):
    """The terminal has named the colour of its background, dark or light."""

    background: Background


class Keyboard:
    """Turns bytes into keys by Textual's parser, and an answer of the terminal into its background.

    ``clock`` returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._parser = XTermParser()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        """What may be the beginning of an answer."""
        self._asked_at = -math.inf
        self._heard_at = math.inf
        self.answered = threading.Event()
        """Set unless an answer of the terminal is expected."""
        self.answered.set()

    def expect_answer(self) -> None:
        """The terminal is asked now: what arrives may be pieces of an answer, with pauses between them."""
        self._asked_at = self._clock()
        self.answered.clear()

    def take(self, data: bytes) -> list[Message]:
        """The messages in ``data``, which continues the bytes before it."""
        self._heard_at = self._clock()
        text, at, heard = self._held + self._decoder.decode(data), 0, list[Message]()
        for report in _REPORT.finditer(text):
            heard += self._keys(text[at : report.start()])
            at = report.end()
            if background := background_in(report[0]):
                heard.append(BackgroundReported(background))
            elif report[0].endswith("c"):  # the last question's
                self.answered.set()
        begun = None if self.answered.is_set() else _BEGUN_REPORT.search(text, at)
        self._held = "" if begun is None else begun[0]
        return heard + self._keys(text[at : len(text) - len(self._held)])

    def expire(self) -> list[Message]:
        """Call this regularly: after a silence a lone escape becomes the key, and a paste is over."""
        heard = self._keys("")
        if self._clock() - self._heard_at >= _PASTE_SECONDS:
            self._parser, self._heard_at = XTermParser(), math.inf
        if not self.answered.is_set() and self._clock() - self._asked_at >= _ANSWER_SECONDS:
            self.answered.set()
            held, self._held = self._held, ""
            heard += self._keys(held) if held == "\x1b" else []
        return heard

    def _keys(self, text: str) -> list[Message]:
        """The keys in ``text``; without any, those that silence has ended."""
        keys = list[Message]()
        with suppress(Exception):  # the parser fails on some sequences
            messages = self._parser.feed(text) if text else self._parser.tick()
            keys.extend(it for it in messages if isinstance(it, Key | TerminalSupportsSynchronizedOutput))
            return keys
        self._parser = XTermParser()
        return keys


class Outlet:
    """Writes to ``descriptor`` from a thread of its own; ``write`` never waits and never raises.

    A signal handler may write too, also in the middle of another ``write``: Textual draws again at SIGCONT.
    """

    def __init__(self, descriptor: int, encoding: str) -> None:
        self._descriptor = descriptor
        self._encoding = encoding
        self._texts: SimpleQueue[str] = SimpleQueue()  # put() may interrupt itself, unlike Event.set()
        self._writes = count(1)
        self._queued = 0
        self._accepted = 0
        self._sent_bytes = 0
        self._closing = False
        self._abandoned = False
        self._patience_seconds = _LEAVING_SECONDS
        self.broken = False
        """Whether the terminal is gone."""
        self._thread = threading.Thread(target=self._run, name="amptui-outlet", daemon=True)
        self._thread.start()

    def write(self, text: str) -> None:
        """Queue ``text``."""
        if not self.broken:
            self._queued = next(self._writes)
            self._texts.put(text)

    @property
    def waiting(self) -> int:
        """Texts that the terminal has not accepted completely."""
        return 0 if self.broken else self._queued - self._accepted

    def hurry(self) -> None:
        """Give up soon at the end: the terminal is being closed. Safe in a signal handler."""
        self._patience_seconds = _HURRIED_SECONDS

    def close(self) -> None:
        """Return once everything is written, or the terminal has accepted nothing for too long."""
        self._closing = True
        self.write("")  # wakes the thread
        sent_bytes, since = self._sent_bytes, time.monotonic()
        while self._thread.is_alive():
            if self._sent_bytes != sent_bytes:
                sent_bytes, since = self._sent_bytes, time.monotonic()
            elif time.monotonic() - since > self._patience_seconds:
                self._abandoned = True
                return  # the thread may hang in a write until the process ends
            self._thread.join(0.05)

    def _run(self) -> None:
        try:
            while not (self._closing and self._texts.empty()):
                texts = [self._texts.get()]
                texts += [self._texts.get() for _ in range(self._texts.qsize())]
                self._send("".join(texts).encode(self._encoding, "replace"))
                self._accepted += len(texts)
        except OSError:
            self.broken = True  # the terminal was closed

    def _send(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest and not self._abandoned:
            try:
                size = os.write(self._descriptor, rest[:_CHUNK_BYTES])
            except BlockingIOError:
                # Another program left the terminal non-blocking.
                select.select([], [self._descriptor], [], 1.0)
                continue
            rest = rest[size:]
            self._sent_bytes += size


class PatientDriver(LinuxDriver):
    """Never waits for a terminal that accepts no output, and notices when it is closed.

    The mouse is left to the terminal, so that text can be selected. An app that has an ``opening`` continues
    on its alternate screen: to enter it again would clear it, and lose the position of the cursor.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{**options, "mouse": False})
        self._size = self._size or self._get_terminal_size()
        self._outlet: Outlet | None = None
        self._opening: Opening | None = getattr(self._app, "opening", None)
        self._continues = self._opening is not None
        self._keyboard = Keyboard()
        self._hurried = False
        self._interrupt_handled: threading.Event | None = None

    @property
    def waiting_writes(self) -> int:
        """Writes that the terminal has not accepted yet."""
        return self._outlet.waiting if self._outlet is not None else 0

    @property
    def terminal_is_gone(self) -> bool:
        """Whether the terminal was closed."""
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
        """Start the writer before the first sequence is written."""
        terminal = sys.__stderr__
        assert terminal is not None, "there is a terminal"
        self._outlet = Outlet(terminal.fileno(), terminal.encoding)
        if self._opening is not None:
            self._opening.in_use = True
        self._keyboard = Keyboard()
        asks = can_ask(os.environ)
        if asks:
            self._keyboard.expect_answer()  # before the thread that reads is started
        super().start_application_mode()  # type: ignore[no-untyped-call]
        if self._opening is not None:
            self.attrs_before = self._opening.modes  # not those of the first frame, which echoes nothing
        if asks:
            self.write(QUESTION)

    def stop_application_mode(self) -> None:
        """Wait for an answer that is still to come: after the end it would be typed into the shell."""
        if not (self._hurried or self.terminal_is_gone):
            self._keyboard.answered.wait(_LATE_ANSWER_SECONDS)
        super().stop_application_mode()

    def write(self, data: str) -> None:
        """Bypass Textual's queue, which holds 30 writes and then blocks the screen's thread."""
        if data == _ALTERNATE_SCREEN and self._continues:
            self._continues = False
        elif self._outlet is not None:
            self._outlet.write(data)

    def close(self) -> None:
        """Wait for the last writes, but not for a terminal that accepts nothing."""
        super().close()
        if self._outlet is not None:
            if self._hurried:
                self._outlet.hurry()
            self._outlet.close()
            self._outlet = None
        if self._opening is not None:
            self._opening.in_use = False

    def resume_application_mode(self) -> None:
        """Redraw everything after the process was stopped, also by SIGSTOP, which gives no notice."""
        if self._outlet is not None:
            self.suspend_application_mode()
        super().resume_application_mode()
        self.send_message(self.SignalResume())

    def run_input_thread(self) -> None:
        """Read keys until told to stop, or until there is no terminal to read from."""
        keyboard = self._keyboard
        with selectors.SelectSelector() as selector:
            selector.register(self.fileno, selectors.EVENT_READ)
            while not self.exit_event.is_set():
                messages = keyboard.expire()
                if selector.select(_POLL_SECONDS):
                    try:
                        data = os.read(self.fileno, _READ_BYTES)
                    except OSError:
                        if os.isatty(self.fileno):
                            raise
                        return
                    if not data:
                        return
                    messages += keyboard.take(data)
                for message in messages:
                    self.process_message(message)

    def process_message(self, message: Message) -> None:
        """Pass a message on. If the screen handles no keys any more, Ctrl+C becomes a signal."""
        if isinstance(message, Key) and message.key == "ctrl+c":
            if self._interrupt_handled is not None and not self._interrupt_handled.wait(
                _UNRESPONSIVE_SECONDS
            ):
                os.kill(os.getpid(), signal.SIGINT)
                return
            self._interrupt_handled = threading.Event()
            self._loop.call_soon_threadsafe(self._interrupt_handled.set)
        super().process_message(message)

    def _get_terminal_size(self) -> tuple[int, int]:
        return terminal_size()

    def _query_in_band_window_resize(self) -> None:
        """Not asked for: the operating system reports the size; what arrives as input is not trusted."""
