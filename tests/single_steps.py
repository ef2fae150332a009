"""Records with each step as a record of its own, as tests look at them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from amptui.records.run import Record
from amptui.records.steps import COLUMNS, StepRecord, Steps
from amptui.runs import journal


def one_by_one(records: Iterable[Record]) -> Iterator[Record]:
    """``records`` in order, each block of steps as its steps."""
    for record in records:
        if isinstance(record, Steps):
            yield from record.one_by_one()
        else:
            yield record


def in_blocks(records: Iterable[Record]) -> list[Record]:
    """``records`` in order, each step as a block of its own."""
    return [Steps.of(record) if isinstance(record, StepRecord) else record for record in records]


def joined(steps: Sequence[StepRecord]) -> Steps:
    """One block of consecutive steps, which have in common what those of a block do."""
    first, parts = steps[0], dict.fromkeys(name for step in steps for name in step.losses)
    columns: dict[str, Any] = {name: [getattr(step, name) for step in steps] for name in COLUMNS}
    return replace(
        Steps.of(first),
        time=steps[-1].time,
        count=len(steps),
        losses={name: [step.losses.get(name) for step in steps] for name in parts},
        group_lrs=tuple(zip(*(step.group_lrs for step in steps), strict=True)),
        **columns,
    )


class SingleSteps(Iterator[Record]):
    """The records of a journal; other attributes are its reader's."""

    def __init__(self, path: Path) -> None:
        self._reader = journal.read(path)
        self._records = one_by_one(self._reader)

    def __next__(self) -> Record:
        return next(self._records)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)


read = SingleSteps
