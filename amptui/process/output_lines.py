"""Turns a program's output into lines as a terminal would show them: a progress bar is one line that changes.

Carriage returns, backspaces and the escape sequences that move the cursor within a line or up and down a few
lines are followed (tqdm, nested tqdm, rich); colours and all other sequences are dropped. How the output is
cut into pieces changes no line.
"""

import codecs
import re

MAX_LINE_CHARACTERS = 500
"""The rest of a longer line is dropped."""

_MAX_ROWS = 64
"""Rows that the cursor can move back up to."""

_MAX_MOVE = 10_000

_CSI = r"\x1b\[(?P<parameters>[0-?]{0,64})[ -/]{0,8}(?P<final>[@-~])"
_STRING = r"\x1b[\]PX^_][^\x00-\x1f\x7f]{0,2048}(?:\x07|\x1b\\)"
_OTHER_ESCAPE = r"\x1b[ -/]{0,4}[0-~]"
_TOKEN = re.compile(
    rf"(?P<text>[^\x00-\x08\x0a-\x1f\x7f]+)|{_CSI}|{_STRING}|{_OTHER_ESCAPE}|(?P<control>[\s\S])"
)
"""Text with tabs, an escape sequence (ECMA-48), or one control character."""

_UNFINISHED = re.compile(
    r"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}|[\]PX^_][^\x00-\x1f\x7f]{0,2048}\x1b?|[ -/]{0,4})\Z"
)
"""What may become an escape sequence with the next piece."""


class _Row:
    """A line of the terminal."""

    __slots__ = ("completed", "is_new", "is_rewritten", "text")

    def __init__(self) -> None:
        self.text = ""
        self.completed = ""
        """What was given out of it."""
        self.is_new = False
        """Whether it has changed since it was given out."""
        self.is_rewritten = False
        """Whether something in it was overwritten or erased, as a progress bar does."""


class OutputLines:
    """The lines of one stream of output, and the one that a progress bar keeps changing.

    A line is complete when the cursor leaves it downwards for a new line. Once the cursor has moved up, the
    rows that it moved over belong to one block (nested bars): each is complete when so many new lines stand
    below that the cursor no longer comes back to it.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        self._rows = [_Row()]
        self._row = self._written = self._rows[0]
        self._column = 0
        self._block = 0
        """How many rows above the last one the cursor still comes back to."""
        self._rows_since_up = 0
        self._first_open = 0
        """No row above this one can have changed since it was given out."""
        self._complete: list[str] = []

    def feed(self, data: bytes) -> list[str]:
        """The lines that ``data`` completes, without trailing spaces; blank ones are left out."""
        return self._follow(self._rest + self._decoder.decode(data))

    def finish(self) -> list[str]:
        """The lines that are left at the end of the output."""
        self._follow(self._rest + self._decoder.decode(b"", final=True))
        self._give_out(0)
        return self._taken()

    def settle(self) -> list[str]:
        """The lines that wait for the cursor to come back, of a program that has been silent for a while.

        None while the cursor rests in a progress bar.
        """
        if self.is_pending:
            self._block = 0
            self._give_out(1)
        return self._taken()

    @property
    def is_pending(self) -> bool:
        """Whether :meth:`settle` may complete a line."""
        return self._block > 0 and not (self._row.is_new and self._row.text.strip())

    @property
    def live(self) -> str:
        """The line that is being overwritten, as it stands now; empty if there is none."""
        for row in (self._written, self._row):
            is_bar = row.is_new and (row.is_rewritten or self._block > 0)
            if is_bar and (text := row.text.rstrip()):
                return text
        return ""

    @property
    def unfinished(self) -> list[str]:
        """The lines that are not complete, as they stand now: progress bars, a prompt."""
        texts = (row.text.rstrip() for row in self._rows[self._first_open :] if row.is_new)
        return [text for text in texts if text]

    def _follow(self, text: str) -> list[str]:
        # A string's end is itself an escape sequence.
        unfinished = _UNFINISHED.search(text, max(0, text.rfind("\x1b", 0, max(0, text.rfind("\x1b")))))
        end = len(text) if unfinished is None else unfinished.start()
        self._rest = text[end:]
        for token in _TOKEN.finditer(text, 0, end):
            if (text := token["text"]) is not None:
                self._write(text)
            elif token["final"] is not None:
                self._obey(token["final"], token["parameters"])
            elif token["control"] is not None:
                self._control(token["control"])
        return self._taken()

    def _taken(self) -> list[str]:
        complete, self._complete = self._complete, []
        return complete

    def _write(self, text: str) -> None:
        row, start = self._row, self._column
        self._written = row
        self._column = start + len(text)
        if start >= MAX_LINE_CHARACTERS:
            return
        before = row.text
        if start < len(before) and before[start:].strip():
            row.is_rewritten = True
        row.text = (before[:start].ljust(start) + text + before[self._column :])[:MAX_LINE_CHARACTERS]
        row.is_new = True

    def _control(self, character: str) -> None:
        if character == "\n":
            self._next_line()
        elif character == "\r":
            self._column = 0
        elif character == "\b":
            self._column = max(0, self._column - 1)

    def _next_line(self) -> None:
        self._column = 0
        index = self._index()
        if index + 1 < len(self._rows):
            self._row = self._rows[index + 1]
            return
        self._rows.append(_Row())
        self._row = self._rows[-1]
        self._rows_since_up += 1
        if self._rows_since_up > self._block:
            self._block = 0
        self._give_out(1 + self._block)

    def _give_out(self, count: int) -> None:
        """Complete all rows but the last ``kept``; forget those out of the cursor's reach."""
        end = len(self._rows) - count
        for row in self._rows[self._first_open : end]:
            if row.is_new and (text := row.text.rstrip()) and text != row.completed:
                self._complete.append(text)
                row.completed = text
            row.is_new = row.is_rewritten = False
        forgotten = max(0, len(self._rows) - _MAX_ROWS)
        del self._rows[:forgotten]
        self._first_open = max(0, end - forgotten)

    def _index(self) -> int:
        last = len(self._rows) - 1
        return last if self._row is self._rows[last] else self._rows.index(self._row)

    def _obey(self, final: str, parameters: str) -> None:
        """Follow a control sequence that moves the cursor or erases."""
        first = parameters.partition(";")[0]
        number = min(int(first), _MAX_MOVE) if first.isdecimal() and first.isascii() else 0
        count = max(1, number)
        if final in "AF":
            self._move_up(count)
        elif final in "BE":
            self._row = self._rows[min(self._index() + count, len(self._rows) - 1)]
        elif final == "C":
            self._column += count
        elif final == "D":
            self._column = max(0, self._column - count)
        elif final == "G":
            self._column = count - 1
        elif final == "K":
            self._erase_in_line(number)
        elif final == "J" and number == 0:
            self._erase_in_line(0)
            del self._rows[self._index() + 1 :]
            self._written = self._row
        if final in "EF":
            self._column = 0

    def _move_up(self, count: int) -> None:
        index = max(0, self._index() - count)
        self._row = self._rows[index]
        self._first_open = min(self._first_open, index)
        self._block = max(self._block, min(len(self._rows) - 1 - index, _MAX_ROWS - 1))
        self._rows_since_up = 0

    def _erase_in_line(self, what: int) -> None:
        """Erase the cursor's line: 0 from the cursor on, 1 up to it, 2 all of it."""
        row, before = self._row, self._row.text
        if what == 0:
            row.text = before[: self._column]
        elif what == 1:
            row.text = " " * min(self._column + 1, len(before)) + before[self._column + 1 :]
        else:
            row.text = ""
        if row.text.rstrip() != before.rstrip():
            row.is_new = row.is_rewritten = True
