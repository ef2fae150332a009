"""Turns what a terminal sends into keys: no bytes raise an error, and only a key counts as a key."""

import codecs
import math
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Literal

from textual import constants, events, messages
from textual._keyboard_protocol import FUNCTIONAL_KEYS
from textual._xterm_parser import XTermParser
from textual.message import Message

from amptui.tui.background import Background, background_in

_ESC, _BELL = "\x1b", "\x07"

_EIGHT_BIT = {0x8F: "O", 0x90: "P", 0x98: "X", 0x9B: "[", 0x9D: "]", 0x9E: "^", 0x9F: "_"}
_OPENERS = {chr(code): _ESC + letter for code, letter in _EIGHT_BIT.items()}
"""Characters that begin a sequence (ECMA-48, 5.3), and their forms with an escape."""

_STRING_OPENERS = tuple(_ESC + letter for letter in "PX]^_")
"""What begins a string: device control, a colour, a title."""

_PASTE_BEGINS, _PASTE_ENDS = f"{_ESC}[200~", f"{_ESC}[201~"

_MAX_SEQUENCE_CHARACTERS = 128
"""Longer sequences are read to their end and dropped; keys take less than half of that."""

_INCOMPLETE_SECONDS = 0.5
"""A sequence without an end is dropped after so much silence."""

_ANSWER_SECONDS = 5.0
"""How long the rest of a terminal's answer may take, and how long after a question one is expected."""

_ANSWER_BEGINS = f"{_ESC}]11"
"""An answer on the background. The keys of a person begin nothing like it."""

_PASTE_SILENCE_SECONDS = 2.0
"""The same for a paste, whose text would otherwise count as keys."""

_LAST_ANSWER = re.compile(r"\x1b\[\?[\d;]*c")
"""What the terminal is (DA1): the answer to the last question."""

_MODE_REPORT = re.compile(r"\x1b\[\?2026;[1-4]\$y")
"""The terminal supports synchronized output."""

_KEY_EVENT = re.compile(r"\x1b\[(\d*)[\d:]*(?:;(\d*)(?::(\d+))?(;[\d:]*)?)?([u~A-S])")
"""Kitty's keyboard protocol: key and alternates, modifiers and kind of event, text."""

_RELEASED = "3"

_CSI = f"{_ESC}["

_MOUSE_BEGINS = f"{_ESC}[<"

_MOUSE_REPORT = re.compile(r"\x1b\[<([0-9]{1,3});([0-9]{1,4});([0-9]{1,4})M")
"""Button, column and line, from 1 on (SGR, xterm's mode 1006); a release ends in a small m."""

Pointing = Literal["press", "drag", "wheel up", "wheel down"]

_POINTINGS: dict[int, Pointing] = {0: "press", 32: "drag", 64: "wheel up", 65: "wheel down"}
"""By the number of the button: the left one, without Shift and the like, and the wheel."""


class BackgroundReported(Message):
    """The terminal has named the colour of its background, dark or light."""

    def __init__(self, background: Background) -> None:
        self.background = background
        super().__init__()


class MouseReported(Message):
    """The left button was pressed or dragged, or the wheel turned, over a cell counted from 0."""

    def __init__(self, what: Pointing, column: int, line: int) -> None:
        self.what: Pointing = what
        self.column = column
        self.line = line
        super().__init__()


class Keyboard:
    """Turns bytes into Textual's messages; ``clock`` returns seconds.

    Textual's own parser raises on some valid sequences and reads unknown ones as letters. Here it only says
    which key a complete sequence means.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._parser = XTermParser()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._partial = ""
        """What has arrived of a sequence."""
        self._in_paste = False
        self._last_input = clock()
        self._asked_at = -math.inf
        self._escape_is_key = False
        """Whether silence followed the escape that is held, as after a key."""
        self._expects_mouse = False
        self._mouse_ended_at = -math.inf
        self._lost_escape = False
        """Whether the last key was an escape that may have begun a report of the mouse."""
        self.answered = threading.Event()
        """Set unless an answer of the terminal is expected."""
        self.answered.set()

    def expect_answer(self) -> None:
        """The terminal is asked now: what arrives may be pieces of an answer, with pauses between them."""
        self._asked_at = self._clock()
        self.answered.clear()

    def expect_mouse(self, expected: bool) -> None:
        """Whether the terminal reports the mouse; reports are dropped otherwise, and never are keys."""
        self._expects_mouse = expected
        self._mouse_ended_at = self._clock()

    def _may_be_reported(self) -> bool:
        """Whether reports may arrive: some are on their way when it has been switched off."""
        return self._expects_mouse or self._clock() - self._mouse_ended_at < _ANSWER_SECONDS

    def take(self, data: bytes) -> list[Message]:
        """The messages in ``data``, which continues the bytes before it."""
        now = self._clock()
        self._escape_is_key = self._partial == _ESC and now - self._last_input >= constants.ESCAPE_DELAY
        self._last_input = now
        return [message for character in self._decoder.decode(data) for message in self._next(character)]

    def expire(self) -> list[Message]:
        """Call this regularly: a lone escape becomes the key, other incomplete sequences are dropped."""
        now = self._clock()
        silence_seconds = now - self._last_input
        if not self.answered.is_set() and now - self._asked_at >= _ANSWER_SECONDS:
            self.answered.set()
        if self._in_paste:
            if silence_seconds >= _PASTE_SILENCE_SECONDS:
                self._in_paste, self._partial = False, ""
        elif silence_seconds < self._patience_seconds():
            pass
        elif self._partial == _ESC:
            self._lost_escape = self._may_be_reported()
            return self._ended_early()
        elif self._lost_escape and self._partial == _CSI:
            return self._bracket()
        else:
            self._partial = ""
            self._decoder.reset()
        return []

    def _patience_seconds(self) -> float:
        """How long to wait for the rest of a sequence."""
        if not self.answered.is_set() or self._partial.startswith(_ANSWER_BEGINS):
            return _ANSWER_SECONDS
        if self._partial.startswith(_MOUSE_BEGINS):
            return _ANSWER_SECONDS
        if self._partial in (_ESC, _CSI) and self._may_be_reported():
            # Its rest would otherwise be typed: a split behind the escape takes longer than a key.
            is_whole = self._partial == _ESC or self._lost_escape
            return _INCOMPLETE_SECONDS if is_whole else _ANSWER_SECONDS
        return constants.ESCAPE_DELAY if self._partial == _ESC else _INCOMPLETE_SECONDS

    def _next(self, character: str) -> list[Message]:
        if self._in_paste:
            self._partial = (self._partial + character)[-len(_PASTE_ENDS) :]
            if self._partial == _PASTE_ENDS:
                self._in_paste, self._partial = False, ""
            return []
        if not self._partial and self._lost_escape and character == "[":
            self._partial = _CSI
            return []
        if self._lost_escape:
            self._lost_escape = False
            if self._partial == _CSI and character != "<":
                return [*self._bracket(), *self._next(character)]
        if not self._partial:
            self._partial = _OPENERS.get(character, _ESC if character == _ESC else "")
            return [] if self._partial else [*self._keys(character)]
        if not _may_follow(self._partial, character) or (self._escape_is_key and character not in "[]"):
            self._escape_is_key = False
            return [*self._ended_early(), *self._next(character)]
        self._escape_is_key = False
        self._partial += character
        if len(self._partial) > _MAX_SEQUENCE_CHARACTERS:
            self._partial = self._partial[:3] + self._partial[3 - _MAX_SEQUENCE_CHARACTERS :]
        return self._complete() if _is_complete(self._partial) else []

    def _bracket(self) -> list[Message]:
        """A bracket behind an escape was a key, and began no report."""
        self._partial, self._lost_escape = "", False
        return [*self._keys("[")]

    def _ended_early(self) -> list[Message]:
        """What an interrupted sequence means."""
        sequence, self._partial = self._partial, ""
        # A string ends with an escape and a backslash; another character begins a new sequence.
        self._partial = _ESC if sequence.startswith(_STRING_OPENERS) and sequence.endswith(_ESC) else ""
        return [events.Key("escape", _ESC)] if sequence == _ESC else []

    def _complete(self) -> list[Message]:
        sequence, self._partial = self._partial, ""
        if sequence == _PASTE_BEGINS:
            self._in_paste = True
        elif background := background_in(sequence):
            return [BackgroundReported(background)]
        elif sequence.startswith(_MOUSE_BEGINS):
            return self._mouse(sequence)
        elif _LAST_ANSWER.fullmatch(sequence):
            self.answered.set()
        elif _MODE_REPORT.fullmatch(sequence):
            return [messages.TerminalSupportsSynchronizedOutput()]
        elif len(sequence) < _MAX_SEQUENCE_CHARACTERS and not sequence.startswith(_STRING_OPENERS):
            return [*self._keys(sequence)] or self._with_alt(sequence[1:])
        return []

    def _mouse(self, sequence: str) -> list[Message]:
        report = _MOUSE_REPORT.fullmatch(sequence) if self._expects_mouse else None
        if report is None:
            return []
        button, column, line = map(int, report.groups())
        return [MouseReported(_POINTINGS[button], column - 1, line - 1)] if button in _POINTINGS else []

    def _with_alt(self, character: str) -> list[Message]:
        return [events.Key(f"alt+{key.key}", None) for key in self._keys(character)]

    def _keys(self, sequence: str) -> list[events.Key]:
        """The key presses of a character or a complete sequence, if it has any."""
        if event := _KEY_EVENT.fullmatch(sequence):
            code, modifiers, kind, text, end = event.groups(default="")
            # The parser reads other function keys as characters: F18 as a space.
            if kind == _RELEASED or (end != "u" and f"{code or 1}{end}" not in FUNCTIONAL_KEYS):
                return []
            if ":" in sequence:
                sequence = f"{_ESC}[{code};{modifiers}{text}{end}"
        keys: list[events.Key] = []
        with suppress(Exception):  # the parser fails on some sequences: they are no keys
            keys += self._parser._sequence_to_key_events(sequence)
        return [key for key in keys if key.key.isprintable()]


def _may_follow(sequence: str, character: str) -> bool:
    """Whether ``character`` continues the sequence; otherwise it interrupts it."""
    if sequence.startswith(_STRING_OPENERS):
        return (
            character == "\\" if sequence.endswith(_ESC) else character >= " " or character in (_BELL, _ESC)
        )
    return character >= " " and character != "\x7f"


def _is_complete(sequence: str) -> bool:
    """Whether a sequence is complete (ECMA-48, 5.4)."""
    kind, end = sequence[:2], sequence[-1]
    if sequence.startswith(_STRING_OPENERS):
        return end in (_BELL, "\x9c") or sequence.endswith(f"{_ESC}\\")
    if sequence.startswith(f"{_ESC}[M"):
        return len(sequence) == 6  # button, column and line of the oldest mouse report
    if kind == f"{_ESC}[":
        # The Linux console's function keys have a second bracket.
        return len(sequence) > 2 and "@" <= end <= "~" and sequence != f"{_ESC}[["
    if kind == f"{_ESC}O":
        return len(sequence) > 2 and not end.isdigit()
    return True
