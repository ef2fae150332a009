"""A run that is trained on the CPU with switches and recorded, and journals of records made by hand."""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from amptui.engine.description import describe_run
from amptui.recipe.request import TrainRequest
from amptui.records.control import Control
from amptui.records.run import Record, RunFinished
from amptui.runs.journal import Journal
from amptui.runs.rundir import RunDir
from tests import tiny


class TwoParts(tiny.Tiny):
    """Names the parts of its loss."""

    def loss(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        inputs, targets = batch
        found = nn.functional.cross_entropy(model(inputs), targets)
        return {"loss": 1.5 * found, "classify": found, "regress": 0.5 * found}


def write(folder: Path, records: Iterable[Record]) -> Path:
    """A journal of ``records`` in ``folder``; the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    journal = Journal(RunDir(folder).journal_path)
    journal.append(records)
    journal.close()
    return folder


def train(*, steps: int, at: dict[int, str], experiment: tiny.Tiny) -> list[Record]:
    """All records of a run that switches when the record of a step arrives."""
    control, request = Control(), TrainRequest(model="tiny", device="cpu")
    prepared = tiny.prepare(experiment, precision="fp32", amp_precision="fp16", steps=steps)
    log = tiny.Log(tiny.switching(control, at))
    started = describe_run("tiny", prepared, request)
    log.emit(started)
    tiny.train(prepared, log, control)
    now = time.time()
    log.emit(RunFinished(time=now, steps=steps, seconds=now - started.time, reason="done"))
    return list(log)
