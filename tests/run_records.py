"""What the runs of a test have recorded."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from amptui.records.run import Record
from tests.single_steps import read


def records(runs: Path) -> list[Record]:
    """Those of the only run in the folder."""
    (run,) = runs.iterdir()
    return list(read(run / "journal.jsonl"))


def of(kind: type[Any], found: Sequence[Record]) -> list[Any]:
    """Those of one kind, in order."""
    return [record for record in found if type(record) is kind]
