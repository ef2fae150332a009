"""When checkpoints are written, that the training never waits for them, and what trouble with them costs."""

import resource
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from amptui.records.answers import RequestMade
from amptui.records.control import Control
from amptui.records.keeping import CheckpointWritten, KeepingChanged
from amptui.records.run import EpochFinished, PhaseChanged, Record
from amptui.records.steps import Steps
from tests.builders import StepRow
from tests.tiny import Log, Tiny, log_of, prepare, stopping, train

ENOUGH_SECONDS = 60.0


def written(log: Log) -> list[tuple[int, str]]:
    return [(record.step, record.reason) for record in log.of(CheckpointWritten)]


def troubles(log: Log) -> list[str]:
    return [record.trouble for record in log.of(KeepingChanged)]


class Unhurried(Tiny):
    """Ends no epoch before what it wrote is on the disk, so that tests know what is written when."""

    def metrics(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        for thread in threading.enumerate():
            if thread.name == "amptui-checkpoint":
                thread.join(ENOUGH_SECONDS)
        return super().metrics(model, batch)


class Waiting(Log):
    """Holds the trainer after each step until nothing is being written."""

    def emit(self, record: Record) -> None:
        super().emit(record)
        if isinstance(record, Steps):
            Unhurried().metrics(nn.Linear(1, 4), (torch.zeros(1, 1), torch.zeros(1, dtype=torch.long)))


# ------------------------------------------------------------------------------------ when


@pytest.mark.parametrize(
    ("epochs", "options", "asked", "cut", "expected"),
    [
        (2, {}, 0, 99, [(8, "epoch"), (16, "epoch")]),
        (5, {"epoch_budget": 1e-9}, 0, 99, [(8, "epoch"), (40, "end")]),
        (2, {"every": 3}, 0, 7, [(3, "interval"), (6, "interval"), (7, "end")]),
        (2, {"every": 6}, 0, 6, [(6, "interval")]),
        (2, {}, 4, 6, [(4, "asked"), (6, "end")]),
    ],
    ids=["epochs", "short epochs", "intervals and the end", "no second one at the end", "asked for"],
)
def test_checkpoints_are_written_when_they_are_due(
    epochs: int, options: Any, asked: int, cut: int, expected: list[tuple[int, str]], tmp_path: Path
) -> None:
    control = Control()

    def ask(record: Record) -> None:
        if isinstance(record, StepRow) and record.step == asked:
            control.ask(RequestMade("checkpoint"))
        stopping(control, cut)(record)

    log = Waiting(ask)
    train(prepare(Unhurried(epochs=epochs)), log, control, checkpoints=tmp_path, **options)
    assert written(log) == expected
    for record in log.of(CheckpointWritten):
        before = log[: log.index(record)]
        validated = max((r.step for r in before if isinstance(r, EpochFinished)), default=0)
        assert validated == record.step or record.reason != "epoch"
        assert 0 < record.blocked_seconds < record.seconds
        assert record.size_bytes == (tmp_path / record.name).stat().st_size
    if expected[-1][1] == "end":
        last = log.of(PhaseChanged)[-1]
        assert (last.phase, last.detail) == ("stopping", "writing the checkpoint")


def test_steps_go_on_while_a_checkpoint_waits_for_the_journal(tmp_path: Path) -> None:
    opened, asked = threading.Event(), list[int]()

    def journaled(step: int) -> None:
        asked.append(step)
        assert opened.wait(ENOUGH_SECONDS)

    def watch(record: Record) -> None:
        if isinstance(record, StepRow) and record.step == 30:
            opened.set()

    log = Log(watch)
    train(prepare(Tiny(epochs=5)), log, checkpoints=tmp_path, every=3, journaled=journaled)
    first = log.of(CheckpointWritten)[0]
    assert (first.step, first.reason) == (3, "interval")
    assert log.index(first) > next(i for i, r in enumerate(log) if isinstance(r, StepRow) and r.step == 30)
    assert asked[0] == 3
    assert written(log)[-1] == (40, "epoch")
    assert [r.step for r in log.of(StepRow)] == list(range(1, 41))


# ----------------------------------------------------------------------------------- trouble


def test_a_full_disk_and_its_end_are_reported_once(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def watch(record: Record) -> None:
        if isinstance(record, EpochFinished):  # its checkpoint comes next
            limit = 1000 if record.step < 40 else before[0]
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))

    log = Log(watch)
    try:
        assert train(prepare(Unhurried(epochs=6)), log, checkpoints=tmp_path) == "done"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert written(log) == [(40, "epoch"), (48, "epoch")]
    why = "File too large (free some space)"
    assert troubles(log) == [f"no checkpoint in {tmp_path}: {why}; training continues without it", ""]
    assert len(log.of(StepRow)) == 48


def test_what_cannot_be_written_costs_the_checkpoint_but_not_the_run(tmp_path: Path) -> None:
    def journaled(step: int) -> None:
        if step == 8:
            raise RuntimeError("no journal\nat all")

    log, strange = Log(), Log()
    train(prepare(Unhurried()), log, checkpoints=tmp_path, journaled=journaled)
    assert written(log) == [(16, "epoch")]
    said = f"no checkpoint in {tmp_path}: no journal at all; training continues without it"
    assert troubles(log)[0] == said
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000016.pt"]
    assert train(prepare(Strange()), strange, checkpoints=tmp_path / "other", every=3) == "done"
    text = troubles(strange)[0]
    assert "optimizer.param_groups.0.hook is a builtin_function_or_method, which" in text
    assert len(strange.of(StepRow)) == 16


class Strange(Tiny):
    """Its optimizer holds what no file can keep."""

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD([{"params": list(model.parameters()), "hook": print}], lr=0.1)


def test_leftovers_of_a_killed_process_are_removed_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "step-000000004.pt.writing").write_bytes(b"half")
    (tmp_path / "step-000000099.pt").write_bytes(b"of another training")
    log_of(prepare(Unhurried(epochs=1)), checkpoints=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000008.pt", "step-000000099.pt.old"]
