"""The command: finds the runs, and shows, prints or writes their comparison."""

import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from amptui.base import strictjson, units
from amptui.base.errors import UsageError
from amptui.base.prompt import complain, put, say
from amptui.base.terminal import can_show_a_screen
from amptui.process.stop_signals import show
from amptui.runs.find import find_run

if TYPE_CHECKING:
    from amptui.reports.compare.compare_screen import CompareScreen
    from amptui.tui.opening import Opening

_LARGE_BYTES = 16 * 2**20
"""Journals of more, together, take a second or longer to read: that is said on a terminal."""

MAX_RUNS = 26
"""As many as there are letters to name groups with."""


def compare(
    runs: Sequence[str],
    *,
    plain: bool = False,
    json: bool = False,
    html: Path | None = None,
    target_loss: float | None = None,
    trust: bool = False,
) -> int:
    """Compare ``runs``, each a folder, a journal or a name; return the exit status.

    On a screen that follows running ones. Without a terminal or with ``plain`` as lines, with ``json`` as one
    JSON object, with ``html`` as a page; those take the runs as they are now. Raises ``UsageError`` for fewer
    than two runs, for one that does not exist and for one named twice, and for a page in place of a file of a
    run, and ``RunFolderError`` for a run that cannot be read.
    """
    journals = _journals(runs, trust=trust)
    if html is not None:
        from amptui.reports.export.exporting import refuse_own_files

        refuse_own_files([("--html", html)], journals)
    if not (plain or json or html is not None) and can_show_a_screen():
        return _show(journals, target_loss)
    from amptui.reports.compare.following import read_all

    with suppress(OSError):  # reading them says what is wrong
        size = sum(journal.stat().st_size for journal in journals)
        if size > _LARGE_BYTES and sys.stderr.isatty():
            complain(f"reading {len(journals)} journals, {units.number_of_bytes(size)}")
    comparison = read_all(journals, target=target_loss)
    if html is not None:
        from amptui.reports.compare.compare_page import page
        from amptui.reports.export.exporting import write_file

        write_file(html, page(comparison))
    if json:
        from amptui.reports.compare.tables import as_json

        put(strictjson.line(as_json(comparison)))
    elif html is not None and not plain:
        say(f"compared {len(journals)} runs: {html}")
    else:
        from amptui.reports.compare.tables import plain_lines

        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        say(*plain_lines(comparison, width))
    return 0


def _journals(runs: Sequence[str], *, trust: bool) -> list[Path]:
    if len(runs) < 2:
        raise UsageError("a comparison needs two runs", hint="`amptui runs` lists those that there are")
    if len(runs) > MAX_RUNS:
        raise UsageError(f"at most {MAX_RUNS} runs can be compared, not {len(runs)}", hint="name fewer")
    texts: dict[str, str] = {}
    journals = []
    for text in runs:
        journal = find_run(text, trust=trust)
        place = os.path.realpath(journal)
        if place in texts:
            raise UsageError(f"{texts[place]!r} and {text!r} are the same run: {place}", hint="name it once")
        texts[place] = text
        journals.append(journal)
    return journals


def _show(journals: Sequence[Path], target_loss: float | None) -> int:
    from amptui.reports.compare.compare_frame import Choice, CompareFrame
    from amptui.tui.panels.screen_state import ScreenState

    def build(opening: "Opening") -> "CompareScreen":
        from amptui.reports.compare.compare_screen import CompareScreen
        from amptui.reports.compare.following import Following

        return CompareScreen(Following(journals, target=target_loss), opening)

    _, status = show(build, lambda canvas: CompareFrame().draw(canvas, None, Choice(), ScreenState()))
    return status
