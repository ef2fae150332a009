"""The progress of a benchmark: a line that is rewritten on a terminal, occasional lines elsewhere."""

import shutil
import time
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TextIO
from unicodedata import east_asian_width

from amptui.base.text import printable, write_line
from amptui.diagnosis.activity import phase_words
from amptui.diagnosis.finding_fields import ratio_words
from amptui.diagnosis.labels import compared_label
from amptui.diagnosis.speed import round_words
from amptui.process.plain_lines import event_line
from amptui.records.findings import PrecisionsCompared
from amptui.telemetry.view import SessionView

_LINE_INTERVAL_SECONDS = 5.0
"""How often a line is written if it is not a terminal."""


@dataclass(slots=True)
class Progress:
    """One line that is rewritten on a terminal, and an occasional new line elsewhere."""

    out: TextIO
    _last_text: str = ""
    _due: float = 0.0
    _warned: int = 0
    _reader_gone: bool = False
    on_terminal: bool = field(init=False)
    """Whether the line is rewritten."""

    def __post_init__(self) -> None:
        self.on_terminal = self.out.isatty()

    def update(self, view: SessionView) -> None:
        """Show the progress; to be called a few times a second."""
        self.tell_warnings(view)
        # Before the first step the text changes rarely: print each change.
        self.show(progress_text(view), at_once=view.step == 0)

    def tell_warnings(self, view: SessionView) -> None:
        """Write the new events that are warnings or errors as lines that stay."""
        fresh = [event for event in reversed(view.events) if event.number > self._warned]
        self._warned = max((event.number for event in fresh), default=self._warned)
        for event in fresh:
            if event.severity != "info" and event.kind != "failed":  # that one is reported as an error
                self.line(event_line(event))

    def show(self, text: str, *, at_once: bool = False) -> None:
        """Show ``text`` in place of the last one; not on a terminal only now and then, or ``at_once``."""
        if not text or text == self._last_text:
            return
        if self.on_terminal:
            columns = shutil.get_terminal_size().columns
            self._rewrite(f"\r{_cut(printable(text), columns - 1)}\x1b[K")
        elif time.monotonic() >= self._due:
            self._due = 0.0 if at_once else time.monotonic() + _LINE_INTERVAL_SECONDS
            self._reader_gone = self._reader_gone or not write_line(self.out, text)
        self._last_text = text

    def line(self, text: str) -> None:
        """Write a line that stays."""
        self.clear()
        self._reader_gone = self._reader_gone or not write_line(self.out, text)

    def clear(self) -> None:
        """Clear the rewritten line."""
        if self.on_terminal and self._last_text:
            self._rewrite("\r\x1b[K")
        self._last_text = ""

    def _rewrite(self, text: str) -> None:
        if self._reader_gone:
            return
        encoding = self.out.encoding or "ascii"
        try:
            self.out.write(text.encode(encoding, "replace").decode(encoding))
            self.out.flush()
        except OSError:
            self._reader_gone = True  # nobody reads it; the benchmark continues


def _cut(text: str, cells: int) -> str:
    """As much of ``text`` as fits in so many cells: a line that wraps cannot be rewritten."""
    ends = accumulate(2 if east_asian_width(character) in "WF" else 1 for character in text)
    return text[: sum(end <= cells for end in ends)]


def progress_text(view: SessionView) -> str:
    """``batch 256  round  3 of at most 24  AMP bf16 1.61× (1.55 to 1.68)``; before that the phase."""
    compared = view.compared
    if compared is None or view.step == 0:
        return phase_words(view.phase)
    if compared.over:
        return ""
    batch = f"batch {view.run.batch_size}" if view.run is not None and view.run.batch_size else ""
    rounds, *ratios = comparison_parts(compared)
    parts = [batch, rounds, compared_label(view.precision or "", compared), *ratios]
    return "  ".join(filter(None, parts))


def comparison_parts(result: PrecisionsCompared) -> list[str]:
    """``round  3 of at most 24``, then ``AMP bf16 1.61× (1.55 to 1.68)`` for each precision with a ratio."""
    ratios = [
        f"{compared_label(row.precision, result)} "
        f"{ratio_words(row.speedup, row.speedup_low, row.speedup_high)}"
        for row in result.rows
        if row.speedup
    ]
    return [round_words(result), *ratios]
