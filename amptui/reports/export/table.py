"""A CSV table of the steps, with a row for each."""

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from amptui.base.text import printable
from amptui.records import steps
from amptui.records.run import Record
from amptui.records.steps import Steps

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


def late_columns(records: Iterable[Record]) -> Iterator[str]:
    """The columns beside ``COLUMNS`` that the steps among ``records`` need, some of them repeatedly."""
    for block in records:
        if isinstance(block, Steps):
            yield from (f"{_PARTS}.{name}" for name in block.losses)
            yield from (f"{_GROUP_LRS}.{number}" for number in range(len(block.group_lrs)))
            yield from (name for name in (_FORM, _OPTIMIZER) if getattr(block, name))


def write_steps(path: Path, records: Iterable[Record], late: Iterable[str], first_label: str) -> None:
    """Write a row for each step, in the order of the journal; a resumed run may have two for the same step.

    A number that was not measured is an empty cell, a non-finite one is ``nan``, ``inf`` or ``-inf``. An
    apostrophe before whatever could start a formula keeps names as text. ``late`` are the columns that not
    every table has; ``first_label`` names the run's first optimizer, whose name in its records is empty.
    """
    names = (*COLUMNS, *late)
    # A name may contain half of a surrogate pair, which cannot be encoded.
    with path.open("w", encoding="utf-8", errors="replace", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(map(_text, names))
        for block in records:
            if isinstance(block, Steps):
                labelled = replace(block, optimizer=block.optimizer or first_label)
                writer.writerows(zip(*(_column(labelled, name) for name in names), strict=True))


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


def _text(text: str) -> str:
    """One line, without anything that a spreadsheet would run."""
    return _FORMULA.sub(r"\1'", printable(text[:_LONGEST_TEXT]))
