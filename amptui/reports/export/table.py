"""CSV tables: one of the steps, a row for each; and one of the ranks, a row for each and each sample."""

import csv
import dataclasses
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from io import StringIO
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import orjson

from amptui.base.text import printable
from amptui.records import ranks, steps
from amptui.records.run import Record
from amptui.records.steps import StepRecord, Steps
from amptui.reports.export.recorded_run import RecordedRun
from amptui.telemetry.stretch import are_finite

_PARTS, _GROUP_LRS, _OPTIMIZER, _FORM = "losses", "group_lrs", "optimizer", "loss_form"

COLUMNS = tuple(
    field.name
    for field in dataclasses.fields(StepRecord)
    if field.name not in (_PARTS, _GROUP_LRS, _OPTIMIZER, _FORM)
)
"""The columns of every table, in the order of the record's fields. In tables that need them follow parts of
the loss as ``losses.NAME``, learning rates that differ as ``group_lrs.NUMBER``, numbered as the optimizer's
``param_groups``, what the loss is, and of which optimizer the step is."""

_LONGEST_TEXT = 1000
"""Characters of a name: programs that read such tables have limits."""

_FORMULA = re.compile(r'(^|[;,|\s])(?="*[=+\-@＝＋－＠])')
"""Where a formula could begin: at the beginning of a cell, or after a separator that some countries use, also
within quotes (owasp.org/www-community/attacks/CSV_Injection)."""

_MIN_PLAIN, _MAX_PLAIN = 1e-4, 1e16
"""From the one to below the other neither Python nor orjson writes an exponent, and both write the shortest
digits that read back as the same float."""


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
        self._file.write(self._rows(blocks))

    def finish(self, recording: RecordedRun) -> None:
        """Complete the file."""
        self._write_head()
        self._file.close()
        if self._named != len(self._late) or _OPTIMIZER in self._late:
            self._write_again(
                next((optimizer.label for optimizer in recording.view.optimizers if not optimizer.name), "")
            )

    def close(self) -> None:
        """Close the file as it is."""
        self._file.close()

    def _write_head(self) -> None:
        if self._named is None:
            self._writer.writerow(self._head())
            self._named = len(self._late)

    def _head(self) -> list[str]:
        return [*COLUMNS, *map(_text, self._late)]

    def _rows(self, blocks: Sequence[Steps]) -> str:
        """The rows of ``blocks`` as ``csv.writer`` would write them, a column at a time."""
        columns = [_texts(blocks, name) for name in (*COLUMNS, *self._late)]
        rows = map(",".join, zip(*columns, strict=True))
        return "\n".join([*rows, ""])

    def _write_again(self, first_label: str) -> None:
        """Rewrite the table: a column that was needed late stands in every row.

        ``first_label`` names the run's first optimizer, whose name in its records is empty.
        """
        head, older = self._head(), self._path.with_suffix(".older")
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


def _texts(blocks: Sequence[Steps], name: str) -> Sequence[str]:
    """The cells of a column."""
    if name == "step":
        return [*chain.from_iterable(map(str, range(b.first_step, b.last_step + 1)) for b in blocks)]
    kind, _, which = name.partition(".")
    if name == "time":
        columns: Iterator[Sequence[Any]] = (block.times() for block in blocks)
    elif name == "samples":  # 0 where they are not known
        columns = ([count or None for count in block.samples] for block in blocks)
    elif name in steps.COLUMNS:
        columns = map(attrgetter(name), blocks)
    elif kind == _PARTS:
        columns = (block.losses.get(which) or [None] * block.count for block in blocks)
    elif kind == _GROUP_LRS:
        columns = (_group_lr(block, int(which)) for block in blocks)
    else:
        return [*chain.from_iterable([_cell(getattr(block, name))] * block.count for block in blocks)]
    return number_texts([*chain.from_iterable(columns)])


def number_texts(values: Sequence[float | int | None]) -> Sequence[str]:
    """What ``repr`` says of each of ``values``, all floats or all integers; empty for None.

    Several times as fast as ``repr``.
    """
    if None in values:
        numbers = [value for value in values if value is not None]
        if not numbers:
            return [""] * len(values)
        texts = iter(number_texts(numbers))
        return ["" if value is None else next(texts) for value in values]
    first = values[0] if values else None
    if first and values.count(first) == len(values):  # a zero has a sign
        return [repr(first)] * len(values)
    if type(first) is not float:
        return [*map(repr, values)]
    quick = orjson.dumps(values).decode()[1:-1].split(",")
    if are_finite(values) and min(values) >= _MIN_PLAIN and max(values) < _MAX_PLAIN:
        return quick
    sizes = np.abs(np.array(values))
    for index in np.flatnonzero(~((sizes >= _MIN_PLAIN) & (sizes < _MAX_PLAIN))).tolist():
        quick[index] = repr(values[index])  # of NaN as well, which orjson lacks
    return quick


def _group_lr(block: Steps, number: int) -> Sequence[float | None]:
    return block.group_lrs[number] if number < len(block.group_lrs) else [None] * block.count


@lru_cache(typed=True)  # True and 1 are the same key otherwise
def _cell(value: int | str | bool) -> str:
    """A value that all steps of a block have in common."""
    if not isinstance(value, str):
        return str(value).lower()
    text = StringIO()
    # A row of one empty cell would be quoted.
    csv.writer(text, lineterminator="").writerow([_text(value), 0])
    return text.getvalue()[:-2]


class RankTable:
    """Rows of the ranks in each sample; numbers as in :class:`StepTable`."""

    def __init__(self, path: Path) -> None:
        self._file = _opened(path)
        self._writer = csv.writer(self._file, lineterminator="\n")
        self._writer.writerow(
            ["time", "step", "steps", "rank", "host", "device", *ranks.COLUMNS, "throttled"]
        )
        self._places: dict[int, ranks.RankPlace] = {}

    def add(self, records: Sequence[Record]) -> None:
        """Write the rows of the samples among ``records``."""
        for record in records:
            if isinstance(record, ranks.RanksStarted):
                self._places = {place.rank: place for place in record.ranks}
            elif isinstance(record, ranks.RanksSampled):
                self._writer.writerows(self._rows(record))

    def finish(self, _recording: RecordedRun) -> None:
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
