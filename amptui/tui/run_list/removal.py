"""The question whether to remove a run: what would be deleted, and what would stay."""

import textwrap
import time
from collections.abc import Callable, Sequence
from typing import ClassVar

from amptui.base import units
from amptui.base.runfiles import Removal
from amptui.base.text import printable
from amptui.telemetry.view import SessionView
from amptui.tui.overlays.overlay import CLOSE, Answer
from amptui.tui.overlays.questions import Choice, Question
from amptui.tui.panels.phrases import Line, phrase, wrapped

READING_SECONDS = 0.4
"""How long the question stands before it takes a yes. Nobody reads it sooner, but whoever forgets the slash
before a name with these letters types them."""


class RemovalQuestion(Question):
    """Whether ``remove`` is to do what was planned."""

    name: ClassVar[str] = "removal"
    title: ClassVar[str] = "remove this run?"

    def __init__(self, plan: Removal, remove: Callable[[], object]) -> None:
        self._plan = plan
        self._remove = remove
        self._opened_at = time.monotonic()

    def lines(self, _view: SessionView, width: int) -> list[Line]:
        return [[phrase(line)] for line in _lines(self._plan, width)]

    def choices(self, _view: SessionView) -> Sequence[Choice]:
        return Choice(("y",), "remove", CLOSE), Choice(("escape",), "go back", CLOSE)

    def press(self, key: str, _view: SessionView) -> Answer:
        """Only a clear yes removes the run; one that comes at once is no answer."""
        if key == "y" and time.monotonic() - self._opened_at < READING_SECONDS:
            return Answer(action="doubt")
        if key == "y":
            self._remove()
        return CLOSE


def _lines(plan: Removal, width: int) -> list[str]:
    """What would be deleted and what would stay, in lines of ``width`` cells."""
    parts = [
        units.counted(number, noun)
        for number, noun in (
            (plan.journals, "journal"),
            (plan.checkpoints, "checkpoint"),
            (plan.other_files, "other file"),
        )
        if number
    ]
    contents = f"{', '.join(parts) or 'no files'}: {units.number_of_bytes(plan.size_bytes)}"
    lines = [*textwrap.wrap(printable(str(plan.folder)), width), *wrapped(contents, width, lines=2)]
    if plan.left:
        names = ", ".join(map(printable, plan.left[:3])) + (", …" if len(plan.left) > 3 else "")
        lines += wrapped(f"not the run's, and kept with the folder: {names}", width, lines=2)
    return lines
