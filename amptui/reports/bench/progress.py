"""The progress of a measurement: a line that is rewritten on a terminal, and warnings anywhere."""

import shutil
from contextlib import suppress
from typing import TextIO

from rich.cells import cell_len, set_cell_size

from amptui.base.text import printable, write_line
from amptui.diagnosis.finding_fields import ratio_words
from amptui.diagnosis.labels import compared_label
from amptui.diagnosis.speed import round_words
from amptui.process.plain_lines import event_line
from amptui.records.findings import PrecisionsCompared
from amptui.telemetry.view import SessionView


class Progress:
    """One line that is rewritten on a terminal; elsewhere only warnings are written."""

    def __init__(self, out: TextIO) -> None:
        self._out, self._on_terminal = out, out.isatty()
        self._last_text = ""
        self._warned = 0

    def warn(self, view: SessionView) -> None:
        """Write the new events that are warnings or errors as lines that stay."""
        fresh = [event for event in reversed(view.events) if event.number > self._warned]
        self._warned = max((event.number for event in fresh), default=self._warned)
        for event in fresh:
            if event.severity != "info" and event.kind != "failed":  # that one is reported as an error
                self.clear()
                write_line(self._out, event_line(event))

    def show(self, text: str) -> None:
        """Show ``text`` in place of the last one."""
        if not self._on_terminal or text == self._last_text:
            return
        room, encoding = shutil.get_terminal_size().columns - 1, self._out.encoding or "ascii"
        shown = printable(text).encode(encoding, "replace").decode(encoding)
        if cell_len(shown) > room:  # a line that wraps cannot be rewritten
            shown = set_cell_size(shown, room)
        self._rewrite(f"\r{shown}\x1b[K")
        self._last_text = text

    def clear(self) -> None:
        """Clear the rewritten line."""
        if self._last_text:
            self._rewrite("\r\x1b[K")
        self._last_text = ""

    def _rewrite(self, text: str) -> None:
        with suppress(OSError):  # nobody reads it; the measurement continues
            self._out.write(text)
            self._out.flush()


def comparison_parts(result: PrecisionsCompared) -> list[str]:
    """``round  3 of at most 24``, then ``AMP bf16 1.61× (1.55 to 1.68)`` for each precision with a ratio."""
    ratios = [
        f"{compared_label(row.precision, result)} "
        f"{ratio_words(row.speedup, row.speedup_low, row.speedup_high)}"
        for row in result.rows
        if row.speedup
    ]
    return [round_words(result), *ratios]
