"""A run that goes on from a checkpoint does what it would have done, to the last bit."""

import math
import shutil
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from amptui import Experiment
from amptui.checkpoint.file import checkpoint_name, checkpoints
from amptui.loops.resume import newest_checkpoint
from amptui.records.control import ComparisonRequest, Control, StopRequest
from amptui.records.keeping import CheckpointWritten
from amptui.records.run import EpochFinished, Note, PhaseChanged, Record, StepSkipped
from tests.builders import StepRow
from tests.tiny import Drawing, Exploding, Log, Tiny, log_of, prepare, resume, stopping, switching, train

STEPS_PER_EPOCH = 8
EPOCHS = 3

SAME = (
    *("step", "epoch", "precision", "loss", "losses", "samples", "lr", "loss_scale", "growth_tracker"),
    "skipped",
)

STOP = StopRequest("the test")

Make = Callable[[], Experiment]


def steps(*logs: Log) -> list[tuple[Any, ...]]:
    """All of each step that depends on nothing but the numbers."""
    same = attrgetter(*SAME)
    return [same(record) for log in logs for record in log.of(StepRow)]


def epochs(*logs: Log) -> list[tuple[Any, ...]]:
    return [(r.step, r.epoch, r.mean_loss, r.validation) for log in logs for r in log.of(EpochFinished)]


def notes(log: Log) -> list[str]:
    return [record.text for record in log.of(Note)]


def interrupted(make: Make, cut: int, folder: Path, **options: Any) -> tuple[Log, Log]:
    """A run that was stopped after a step, and went on."""
    control = Control()
    first, second = Log(stopping(control, cut)), Log()
    assert train(prepare(make(), **options), first, control, checkpoints=folder) == "stopped"
    assert resume(prepare(make(), **options), folder, second) == "done"
    assert [r.step for r in first.of(StepRow)] == list(range(1, cut + 1))
    return first, second


@pytest.mark.ci
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@settings(max_examples=6)
@given(
    cut=st.integers(1, STEPS_PER_EPOCH * EPOCHS - 1),
    source=st.sampled_from(["arrays", "dataset", "loader", "own generator"]),
    optimizer=st.sampled_from(["adam", "momentum"]),
    clip_norm=st.sampled_from([None, 0.5]),
)
def test_a_run_that_was_stopped_anywhere_and_goes_on_is_one_that_was_never_stopped(
    cut: int, tmp_path_factory: pytest.TempPathFactory, precision: str, clip_norm: float | None, **knobs: Any
) -> None:
    def make() -> Experiment:
        return Drawing(epochs=EPOCHS, **knobs)

    options: dict[str, Any] = {"precision": precision, "clip_norm": clip_norm, "seed": 3}
    whole = log_of(prepare(make(), **options))
    first, second = interrupted(make, cut, tmp_path_factory.mktemp("checkpoints"), **options)
    assert steps(first, second) == steps(whole)
    assert epochs(first, second) == epochs(whole)
    assert len(epochs(whole)) == EPOCHS


def test_a_run_that_was_killed_goes_on_from_any_checkpoint_it_left(tmp_path: Path) -> None:
    whole, folder = Log(), tmp_path / "whole"
    copied_steps = list[int]()

    def keep_all(step: int) -> None:
        """As many as there are, each in a folder of its own."""
        copied_steps.append(step)
        (tmp_path / str(step)).mkdir()
        shutil.copy(folder / f"{checkpoint_name(step)}.writing", tmp_path / str(step) / checkpoint_name(step))

    train(
        prepare(Drawing(epochs=2, source="loader"), precision="fp16"),
        whole,
        checkpoints=folder,
        every=3,
        journaled=keep_all,
    )
    assert len(copied_steps) >= 2
    assert notes(whole) == []
    for step in copied_steps[:-1]:
        log = Log()
        resume(prepare(Drawing(epochs=2, source="loader"), precision="fp16"), tmp_path / str(step), log)
        assert steps(log) == steps(whole)[step:]
        assert epochs(log) == [epoch for epoch in epochs(whole) if epoch[0] > step]


@pytest.mark.parametrize(
    ("asks", "last", "kept"),
    [
        ({3: "bf16"}, "bf16", "bf16"),
        ({2: ComparisonRequest(("bf16", "fp32"))}, "bf16", "fp32"),
        ({5: "bf16"}, "fp32", "fp32"),
    ],
    ids=["switched", "compared", "never ran"],
)
def test_the_run_goes_on_in_the_precision_that_was_chosen_and_ran(
    asks: Any, last: str, kept: str, tmp_path: Path
) -> None:
    control = Control()

    def watch(record: Record) -> None:
        switching(control, asks)(record)
        stopping(control, 5)(record)

    log = Log(watch)
    train(prepare(Tiny()), log, control, checkpoints=tmp_path)
    assert log.of(StepRow)[-1].precision == last
    assert newest_checkpoint(tmp_path, print).precision == kept


def test_an_epoch_s_seconds_and_the_skips_in_a_row_go_on_where_they_were(tmp_path: Path) -> None:
    def make() -> Experiment:
        return Exploding(epochs=4)

    whole = log_of(prepare(make(), precision="fp16"))
    cut = whole.of(StepSkipped)[1].step
    first, second = interrupted(make, cut, tmp_path, precision="fp16")
    skips = [(r.step, r.loss_scale, r.consecutive) for log in (first, second) for r in log.of(StepSkipped)]
    assert skips == [(r.step, r.loss_scale, r.consecutive) for r in whole.of(StepSkipped)]
    assert skips[-1][0] > cut
    measured = [r.step_seconds or 0 for log in (first, second) for r in log.of(StepRow)]
    assert second.of(EpochFinished)[0].seconds == pytest.approx(sum(measured[:8]))


def test_a_validation_that_was_broken_off_is_done_again_from_its_beginning(tmp_path: Path) -> None:
    control = Control()

    class Impatient(Drawing):
        def metrics(self, model: nn.Module, batch: Any) -> dict[str, torch.Tensor]:
            control.ask(StopRequest("the test"))
            return super().metrics(model, batch)

    Impatient.__name__ = Drawing.__name__
    whole, first, second = Log(), Log(), Log()
    train(prepare(Drawing(source="loader")), whole)
    assert train(prepare(Impatient(source="loader")), first, control, checkpoints=tmp_path) == "stopped"
    assert (len(steps(first)), epochs(first)) == (STEPS_PER_EPOCH, [])
    resume(prepare(Drawing(source="loader")), tmp_path, second)
    assert steps(first, second) == steps(whole)
    assert epochs(second) == epochs(whole)


@pytest.mark.parametrize("source", ["dataset", "loader"])
def test_a_run_that_is_done_can_be_made_longer_and_otherwise_ends_at_once(
    source: Any, tmp_path: Path
) -> None:
    def make(epochs: int = 1) -> Experiment:
        return Drawing(source=source, epochs=epochs)

    whole, *parts = logs = [Log() for _ in range(5)]
    train(prepare(make(3), epochs=3), whole)
    train(prepare(make(), steps=11), parts[0], checkpoints=tmp_path)
    for epochs_then, log in zip((2, 3, 3), parts[1:], strict=True):
        assert resume(prepare(make(epochs_then), epochs=epochs_then), tmp_path, log) == "done"
    assert [len(log.of(StepRow)) for log in logs] == [24, 11, 5, 8, 0]
    assert steps(*parts) == steps(whole)
    assert epochs(*parts) == epochs(whole)
    assert parts[-1].of(CheckpointWritten) == []


def test_the_way_back_into_an_epoch_is_told_and_can_be_broken_off(tmp_path: Path) -> None:
    interrupted(lambda: Drawing(source="loader"), 5, tmp_path)
    for path in checkpoints(tmp_path)[:-1]:
        path.unlink()
    control = Control()

    def watch(record: Record) -> None:
        if isinstance(record, PhaseChanged) and record.phase == "data":
            assert (record.done, record.total, record.unit) == (1, 5, "batches")
            control.ask(StopRequest("the test"))

    log = Log(watch)
    assert resume(prepare(Drawing(source="loader")), tmp_path, log, control) == "stopped"
    assert steps(log) == []
    assert [r.phase for r in log.of(PhaseChanged)] == ["first step", "data"]


# ------------------------------------------------------------------ states beside the model's


class Holding(Tiny):
    """Holds things with a state of their own, and one that no file can keep."""

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        self.optimizer = super().build_optimizer(model)
        self.model = model
        self.mean = torch.optim.swa_utils.AveragedModel(model)
        self.optimizer.register_step_post_hook(lambda *_: self.mean.update_parameters(model))
        self.odd = Odd()
        return self.optimizer


class Odd:
    def state_dict(self) -> dict[str, Any]:
        return {"self": self}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise AssertionError


def test_what_else_an_experiment_holds_goes_on_too_and_what_cannot_be_kept_is_told_once(
    tmp_path: Path,
) -> None:
    whole, again = Holding(), Holding()
    train(prepare(whole), Log())
    log = log_of(prepare(Holding()), at={11: STOP}, checkpoints=tmp_path, every=2)
    resume(prepare(again), tmp_path, Log())
    for mine, theirs in zip(whole.mean.parameters(), again.mean.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert again.mean.n_averaged == 16
    assert notes(log) == [
        "checkpoints do not include the experiment's odd: odd.self is a Odd, which a checkpoint cannot store"
    ]
    assert list(newest_checkpoint(tmp_path, print).extras) == ["mean"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize(("first", "second"), [("cpu", "cuda"), ("cuda", "cpu"), ("cuda", "cuda")])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_run_goes_on_on_another_device(first: str, second: str, precision: str, tmp_path: Path) -> None:
    log, options = Log(), {"precision": precision}
    stopped = log_of(prepare(Tiny(epochs=4), device=first, **options), at={11: STOP}, checkpoints=tmp_path)
    last = stopped.of(StepRow)[-1].step
    assert resume(prepare(Tiny(epochs=4), device=second, **options), tmp_path, log) == "done"
    assert [r.step for r in log.of(StepRow)] == list(range(last + 1, 33))
    assert all(r.loss is not None and math.isfinite(r.loss) for r in log.of(StepRow))
