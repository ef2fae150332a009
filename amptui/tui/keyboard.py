"""What a terminal sends, as keys: no bytes raise an error, and nothing but a key counts as one."""

import codecs
import re
import time
from collections.abc import Callable
from contextlib import suppress

from textual import constants, events, messages
from textual._keyboard_protocol import FUNCTIONAL_KEYS
from textual._xterm_parser import XTermParser
from textual.message import Message

_ESC, _BELL = "\x1b", "\x07"

_EIGHT_BIT = {0x8F: "O", 0x90: "P", 0x98: "X", 0x9B: "[", 0x9D: "]", 0x9E: "^", 0x9F: "_"}
_OPENERS = {chr(code): _ESC + letter for code, letter in _EIGHT_BIT.items()}
"""What begins a sequence in one character (ECMA-48, 5.3), and how it is written in two."""

_STRING_OPENERS = tuple(_ESC + letter for letter in "PX]^_")
"""What begins an answer of free text: device control, a colour, a title."""

_PASTE_BEGINS, _PASTE_ENDS = f"{_ESC}[200~", f"{_ESC}[201~"

_MAX_SEQUENCE_CHARACTERS = 128
"""Longer ones are read to their end and dropped; a key with its text takes less than half of that."""

_CUT_SECONDS = 0.5
"""After that much silence a sequence whose end did not come is dropped: its packet was lost or forged."""

_PASTE_SILENCE_SECONDS = 2.0
"""The same for a paste, whose text would count as keys."""

_MODE_REPORT = re.compile(r"\x1b\[\?2026;[1-4]\$y")
"""The terminal can show a whole frame at once (synchronized output)."""

_KEY_EVENT = re.compile(r"\x1b\[(\d*)[\d:]*(?:;(\d*)(?::(\d+))?(;[\d:]*)?)?([u~A-S])")
"""Kitty's keyboard protocol: key and its alternates, modifiers and kind of event, text."""

_RELEASED = "3"


class Keyboard:
    """Turns bytes into Textual's messages; ``clock`` gives seconds.

    Textual's own parser raises on some valid sequences and takes letters of unknown ones for keys; it is only
    asked which key a whole sequence means.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._parser = XTermParser()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._in_paste = False
        self._heard_at = clock()

    def take(self, data: bytes) -> list[Message]:
        """What ``data`` means after all that came before."""
        self._heard_at = self._clock()
        return [message for character in self._decoder.decode(data) for message in self._next(character)]

    def settle(self) -> list[Message]:
        """To be called now and then: an escape with nothing after it is the key, other beginnings are not."""
        silence_seconds = self._clock() - self._heard_at
        if self._in_paste:
            if silence_seconds >= _PASTE_SILENCE_SECONDS:
                self._in_paste, self._held = False, ""
        elif self._held == _ESC and silence_seconds >= constants.ESCAPE_DELAY:
            return self._ended_early()
        elif silence_seconds >= _CUT_SECONDS:
            self._held = ""
            self._decoder.reset()
        return []

    def _next(self, character: str) -> list[Message]:
        if self._in_paste:
            self._held = (self._held + character)[-len(_PASTE_ENDS) :]
            if self._held == _PASTE_ENDS:
                self._in_paste, self._held = False, ""
            return []
        if not self._held:
            self._held = _OPENERS.get(character, _ESC if character == _ESC else "")
            return [] if self._held else [*self._keys(character)]
        if not _may_follow(self._held, character):
            return [*self._ended_early(), *self._next(character)]
        self._held += character
        if len(self._held) > _MAX_SEQUENCE_CHARACTERS:
            self._held = self._held[:3] + self._held[3 - _MAX_SEQUENCE_CHARACTERS :]
        return self._whole() if _is_whole(self._held) else []

    def _ended_early(self) -> list[Message]:
        """What a sequence means that something else cut off."""
        held, self._held = self._held, ""
        # Free text ends with an escape and a backslash; any other letter begins a sequence of its own.
        self._held = _ESC if held.startswith(_STRING_OPENERS) and held.endswith(_ESC) else ""
        return [events.Key("escape", _ESC)] if held == _ESC else []

    def _whole(self) -> list[Message]:
        sequence, self._held = self._held, ""
        if sequence == _PASTE_BEGINS:
            self._in_paste = True
        elif _MODE_REPORT.fullmatch(sequence):
            return [messages.TerminalSupportsSynchronizedOutput()]
        elif len(sequence) < _MAX_SEQUENCE_CHARACTERS and not sequence.startswith(_STRING_OPENERS):
            return [*self._keys(sequence)] or self._with_alt(sequence[1:])
        return []

    def _with_alt(self, character: str) -> list[Message]:
        return [events.Key(f"alt+{key.key}", None) for key in self._keys(character)]

    def _keys(self, sequence: str) -> list[events.Key]:
        """The presses of a character or a whole sequence; none for one that means no key."""
        if event := _KEY_EVENT.fullmatch(sequence):
            key, modifiers, kind, text, end = event.groups(default="")
            # The parser takes the number of any other function key for a letter's: F18 for a space.
            if kind == _RELEASED or (end != "u" and f"{key or 1}{end}" not in FUNCTIONAL_KEYS):
                return []
            if ":" in sequence:
                sequence = f"{_ESC}[{key};{modifiers}{text}{end}"
        keys: list[events.Key] = []
        with suppress(Exception):  # a parser that fails on these bytes costs these bytes
            keys += self._parser._sequence_to_key_events(sequence)
        return [each for each in keys if each.key.isprintable()]


def _may_follow(held: str, character: str) -> bool:
    """Whether ``character`` goes on with a sequence; otherwise it cuts it off and counts for itself."""
    if held.startswith(_STRING_OPENERS):
        return character == "\\" if held.endswith(_ESC) else character >= " " or character in (_BELL, _ESC)
    return character >= " " and character != "\x7f"


def _is_whole(held: str) -> bool:
    """Whether a sequence has come to its end (ECMA-48, 5.4)."""
    kind, end = held[:2], held[-1]
    if held.startswith(_STRING_OPENERS):
        return end in (_BELL, "\x9c") or held.endswith(f"{_ESC}\\")
    if held.startswith(f"{_ESC}[M"):
        return len(held) == 6  # button, column and line of the oldest mouse report
    if kind == f"{_ESC}[":
        # The Linux console's function keys have a second bracket.
        return len(held) > 2 and "@" <= end <= "~" and held != f"{_ESC}[["
    if kind == f"{_ESC}O":
        return len(held) > 2 and not end.isdigit()
    return True
