"""Turns what a terminal sends into keys: no bytes raise an error, and only a key counts as a key."""

import codecs
import math
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from textual import constants, events, messages
from textual._keyboard_protocol import FUNCTIONAL_KEYS
from textual._xterm_parser import XTermParser
from textual.message import Message

from amptui.tui.background import Background, background_in

_ESC = "\x1b"

_STRING = r"\x1b[\]PX^_][^\x07\x1b]*"
"""A colour, a title and the like (ECMA-48, 5.6), without its end."""

_SEQUENCE = re.compile(
    r"\x1b\[\[[A-Z]"  # the Linux console's function keys
    r"|\x1b\[M[\s\S]{3}"  # the oldest report of the mouse
    r"|\x1b\[(?![\[M])[^\x00-\x1f@-\x7f]*[@-~]"
    r"|\x1bO[ -~]"
    rf"|{_STRING}(?:\x07|\x1b\\)"
    r"|\x1b[^\x00-\x1f\x7f\[\]OPX^_]"  # a key with Alt
)

_BEGINNING = re.compile(rf"{_STRING}|\x1b(?:\[M[\s\S]{{0,2}}|\[\[|\[[^\x00-\x1f@-\x7f]*|O)?")
"""What a sequence may begin with."""

_PASTE_BEGINS, _PASTE_ENDS = f"{_ESC}[200~", f"{_ESC}[201~"

_MAX_CHARACTERS = 128
"""Of a longer sequence the middle is dropped; keys take less than half of that."""

_INCOMPLETE_SECONDS = 2.0
"""A sequence or a paste without an end is dropped after so much silence."""

_ANSWER_SECONDS = 5.0
"""How long after a question an answer is expected."""

_LAST_ANSWER = re.compile(r"\x1b\[\?[\d;]*c")
"""What the terminal is (DA1): the answer to the last question."""

_MODE_REPORT = re.compile(r"\x1b\[\?2026;[1-4]\$y")
"""The terminal supports synchronized output."""

_KEY_EVENT = re.compile(r"\x1b\[(\d*)(?:;\d*(?:;[\d:]*)?)?([u~A-S])")
"""Kitty's keyboard protocol, as far as Textual asks for it: key, modifiers, text."""


@dataclass
class BackgroundReported(Message):
    """The terminal has named the colour of its background, dark or light."""

    background: Background


class Keyboard:
    """Turns bytes into Textual's messages; ``clock`` returns seconds.

    Textual's own parser raises on some valid sequences and reads unknown ones, such as a terminal's answers,
    as letters. Here it only says which key a complete sequence means.
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
        self.answered = threading.Event()
        """Set unless an answer of the terminal is expected."""
        self.answered.set()

    def expect_answer(self) -> None:
        """The terminal is asked now: what arrives may be pieces of an answer, with pauses between them."""
        self._asked_at = self._clock()
        self.answered.clear()

    def take(self, data: bytes) -> list[Message]:
        """The messages in ``data``, which continues the bytes before it."""
        self._last_input = self._clock()
        text, at = self._partial + self._decoder.decode(data), 0
        heard: list[Message] = []
        while at < len(text):
            if self._in_paste:
                end = text.find(_PASTE_ENDS, at)
                if end < 0:
                    at = max(at, len(text) - len(_PASTE_ENDS) + 1)
                    break
                self._in_paste, at = False, end + len(_PASTE_ENDS)
            elif text[at] != _ESC:
                heard += self._keys(text[at])
                at += 1
            elif sequence := _SEQUENCE.match(text, at):
                heard += self._meaning(sequence[0])
                at = sequence.end()
            else:
                beginning = _BEGINNING.match(text, at)
                assert beginning is not None, "an escape is one"
                rest = text[beginning.end() :]
                if not rest or (rest == _ESC and beginning[0][1:2] in "]PX^_"):
                    break  # more of it may come
                # Interrupted: the rest begins something new.
                heard += [events.Key("escape", _ESC)] if beginning[0] == _ESC else []
                at = beginning.end()
        rest = text[at:]
        self._partial = rest if len(rest) <= _MAX_CHARACTERS else rest[:2] + rest[2 - _MAX_CHARACTERS :]
        return heard

    def expire(self) -> list[Message]:
        """Call this regularly: a lone escape becomes the key, other incomplete sequences are dropped."""
        now = self._clock()
        if not self.answered.is_set() and now - self._asked_at >= _ANSWER_SECONDS:
            self.answered.set()
        is_key = self._partial == _ESC and not self._in_paste
        # While an answer is expected, an escape may be its beginning.
        is_short = is_key and self.answered.is_set()
        patience_seconds = constants.ESCAPE_DELAY if is_short else _INCOMPLETE_SECONDS
        if now - self._last_input < patience_seconds:
            return []
        self._partial, self._in_paste = "", False
        self._decoder.reset()
        return [events.Key("escape", _ESC)] if is_key else []

    def _meaning(self, sequence: str) -> list[Message]:
        if sequence == _PASTE_BEGINS:
            self._in_paste = True
        elif background := background_in(sequence):
            return [BackgroundReported(background)]
        elif _LAST_ANSWER.fullmatch(sequence):
            self.answered.set()
        elif _MODE_REPORT.fullmatch(sequence):
            return [messages.TerminalSupportsSynchronizedOutput()]
        elif sequence[1] not in "]PX^_":
            return [*self._keys(sequence)]
        return []

    def _keys(self, sequence: str) -> list[events.Key]:
        """The key presses of a character or a complete sequence, if it has any."""
        if event := _KEY_EVENT.fullmatch(sequence):
            code, end = event.groups(default="")
            # The parser reads other function keys as characters: F18 as a space.
            if end != "u" and f"{code or 1}{end}" not in FUNCTIONAL_KEYS:
                return []
        elif ":" in sequence[1:]:
            return []  # releases and the like, for which nobody has asked
        keys: list[events.Key] = []
        with suppress(Exception):  # the parser fails on some sequences: they are no keys
            keys += self._parser._sequence_to_key_events(sequence)
        return [key for key in keys if key.key.isprintable()]
