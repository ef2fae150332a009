"""CSV tables: one of the steps, a row for each; and one of the ranks, a row for each and each sample."""

import csv
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

from amptui.base.text import printable
from amptui.records import ranks, steps
from amptui.records.run import Record
from amptui.records.steps import Steps
from amptui.telemetry.view import SessionView

_PARTS, _GROUP_LRS, _OPTIMIZER, _FORM = "losses", "group_lrs", "optimizer", "loss_form"

COLUMNS = (
    *("time", "step", "epoch", "precision", "loss", "samples", "step_seconds", "data_seconds", "lr"),
    *("loss_scale", "growth_tracker", "skipped", "grad_norm", "nonfinite_gradients", "settling", "grad_max"),
    "micro_batches",
)
"""The columns of every table. In tables that need them follow parts of
the loss as ``losses.NAME``, learning rates that differ as ``group_lrs.NUMBER``, numbered as the optimizer's
``param_groups``, what the loss is, and of which optimizer the step is."""

_LONGEST_TEXT = 1000
"""Characters of a name: programs that read such tables have limits."""

_FORMULA = re.compile(r'(^|[;,|\s])(?="*[=+\-@＝＋－＠])')
"""Where a formula could begin: at the beginning of a cell, or after a separator that some countries use, also
within quotes (owasp.org/www-community/attacks/CSV_Injection)."""


class StepTable:
    """Rows in the order of the journal; a resumed run may have two for the same step.

    A number that was not measured is an empty cell, a non-finite one is ``nan``, ``inf`` or ``-inf``. An
    apostrophe before whatever could start a formula keeps names as text.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = _opened(path)
        self._writer = csv.writer(self._file, lineterminator="\n")
        self._late: list[str] = []
        """The columns that not every table has, in the order in which they were first needed."""
        self._named: int | None = None
        """How many of them the file's header has; None before it is written."""

    def add(self, records: Sequence[Record]) -> None:
        """Write a row for each step among ``records``."""
        blocks = [record for record in records if isinstance(record, Steps)]
        if not blocks:
            return
        groups = max(len(block.group_lrs) for block in blocks)
        needed = (
            *(f"{_PARTS}.{name}" for block in blocks for name in block.losses),
            *(f"{_GROUP_LRS}.{number}" for number in range(groups)),
            *(name for name in (_FORM, _OPTIMIZER) if any(getattr(block, name) for block in blocks)),
        )
        self._late += [name for name in dict.fromkeys(needed) if name not in self._late]
        self._write_head()
        for block in blocks:
            columns = [_column(block, name) for name in (*COLUMNS, *self._late)]
            self._writer.writerows(zip(*columns, strict=True))

    def finish(self, view: SessionView, _passed_over: str) -> None:
        """Complete the file."""
        self._write_head()
        self._file.close()
        if self._named != len(self._late) or _OPTIMIZER in self._late:
            self._write_again(next((one.label for one in view.optimizers if not one.name), ""))

    def close(self) -> None:
        """Close the file as it is."""
        self._file.close()

    def _write_head(self) -> None:
        if self._named is None:
            self._writer.writerow([*COLUMNS, *map(_text, self._late)])
            self._named = len(self._late)

    def _write_again(self, first_label: str) -> None:
        """Rewrite the table: a column that was needed late stands in every row.

        ``first_label`` names the run's first optimizer, whose name in its records is empty.
        """
        head, older = [*COLUMNS, *map(_text, self._late)], self._path.with_suffix(".older")
        self._path.replace(older)
        try:
            with older.open(encoding="utf-8", newline="") as rows, _opened(self._path) as file:
                reader, writer = csv.reader(rows), csv.writer(file, lineterminator="\n")
                next(reader)
                writer.writerow(head)
                place = head.index(_OPTIMIZER) if _OPTIMIZER in head else None
                for row in reader:
                    cells = [*row, *[""] * (len(head) - len(row))]
                    if place is not None:
                        cells[place] = cells[place] or _text(first_label)
                    writer.writerow(cells)
        finally:
            older.unlink()


def _column(block: Steps, name: str) -> Sequence[object]:
    """The cells of a block's steps."""
    kind, _, which = name.partition(".")
    cells: Sequence[object] = [None] * block.count
    if kind == _PARTS:
        cells = block.losses.get(which, cells)
    elif kind == _GROUP_LRS:
        cells = block.group_lrs[int(which)] if int(which) < len(block.group_lrs) else cells
    elif name == "step":
        cells = range(block.first_step, block.last_step + 1)
    elif name == "time":
        cells = block.times()
    elif name == "samples":  # 0 where they are not known
        cells = [count or None for count in block.samples]
    elif name == "skipped":
        cells = [str(skipped).lower() for skipped in block.skipped]
    elif name in steps.COLUMNS:
        cells = getattr(block, name)
    else:  # all steps of a block have it in common
        value = getattr(block, name)
        cells = [_text(value) if isinstance(value, str) else str(value).lower()] * block.count
    return cells


class RankTable:
    """Rows of the ranks in each sample; numbers as in :class:`StepTable`. Of a single process it is empty."""

    def __init__(self, path: Path) -> None:
        self.is_empty = True
        self._file = _opened(path)
        self._writer = csv.writer(self._file, lineterminator="\n")
        self._places: dict[int, ranks.RankPlace] = {}

    def add(self, records: Sequence[Record]) -> None:
        """Write the rows of the samples among ``records``."""
        for record in records:
            if isinstance(record, ranks.RanksStarted):
                self._places = {place.rank: place for place in record.ranks}
            elif isinstance(record, ranks.RanksSampled):
                if self.is_empty:
                    head = ("time", "step", "steps", "rank", "host", "device", *ranks.COLUMNS, "throttled")
                    self._writer.writerow(head)
                self.is_empty = False
                self._writer.writerows(self._rows(record))

    def finish(self, _view: SessionView, _passed_over: str) -> None:
        """Complete the file."""
        self._file.close()

    def close(self) -> None:
        """Close the file as it is."""
        self._file.close()

    def _rows(self, sample: ranks.RanksSampled) -> Iterator[list[object]]:
        columns = [dict(zip(sample.ranks, getattr(sample, name), strict=False)) for name in ranks.COLUMNS]
        for rank in sample.ranks:
            place = self._places.get(rank)
            where = ("", "") if place is None else (_text(place.host), _text(place.device))
            held = ", ".join(reason for reason, all_held in sample.throttled.items() if rank in all_held)
            numbers = [column.get(rank) for column in columns]
            yield [sample.time, sample.step, sample.steps, rank, *where, *numbers, _text(held)]


def _text(text: str) -> str:
    """One line, without anything that a spreadsheet would run."""
    return _FORMULA.sub(r"\1'", printable(text[:_LONGEST_TEXT]))


def _opened(path: Path) -> TextIO:
    # A name may contain half of a surrogate pair, which cannot be encoded.
    return path.open("w", encoding="utf-8", errors="replace", newline="")
