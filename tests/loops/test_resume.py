"""What a resumed run goes on from: every kind of state, on other ranks and devices; and what it refuses."""

import math
from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from amptui import Experiment
from amptui.base.errors import RunFolderError, UsageError
from amptui.checkpoint.file import Checkpoint, checkpoints, read
from amptui.loops.resume import newest_checkpoint, restore, share_batch
from amptui.recipe.request import TrainRequest
from amptui.records.answers import RequestMade
from amptui.records.control import Control
from amptui.records.keeping import CheckpointWritten, KeepingChanged
from amptui.records.run import EpochFinished, Note, PhaseChanged, Record, StepSkipped
from tests.builders import StepRow
from tests.tiny import (
    Drawing,
    Exploding,
    Log,
    Tiny,
    log_of,
    losses,
    prepare,
    resume,
    stopping,
    switching,
    train,
)

STEPS_PER_EPOCH = 8
EPOCHS = 3

SAME = (
    *("step", "epoch", "precision", "loss", "losses", "samples", "lr", "loss_scale", "growth_tracker"),
    "skipped",
)

STOP = RequestMade("stop", reason="the test")

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


@pytest.mark.parametrize(
    ("asks", "last", "kept"),
    [
        ({3: "bf16"}, "bf16", "bf16"),
        ({2: RequestMade("comparison", precisions=("bf16", "fp32"))}, "bf16", "fp32"),
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
            control.ask(RequestMade("stop", reason="the test"))
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
            control.ask(RequestMade("stop", reason="the test"))

    log = Log(watch)
    assert resume(prepare(Drawing(source="loader")), tmp_path, log, control) == "stopped"
    assert steps(log) == []
    assert [r.phase for r in log.of(PhaseChanged)] == ["first step", "data"]


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


NEW_RUN = "start a new run without --resume"


def trained(folder: Path, **options: Any) -> None:
    log_of(prepare(Tiny(), **options), at={13: STOP}, checkpoints=folder)
    assert [path.name for path in checkpoints(folder)] == ["step-000000013.pt", "step-000000008.pt"]


def test_a_damaged_checkpoint_is_told_of_and_the_one_before_is_taken(tmp_path: Path) -> None:
    trained(tmp_path)
    (tmp_path / "step-000000013.pt").write_bytes(b"garbage")
    whole, log = Log(), Log()
    train(prepare(Tiny()), whole)
    resume(prepare(Tiny()), tmp_path, log)
    assert losses(log) == losses(whole)[8:]
    assert [record.text for record in log.of(Note)] == [
        "cannot use checkpoint step-000000013.pt: File is not a zip file; trying the previous one"
    ]
    assert (tmp_path / "step-000000013.pt.old").read_bytes() == b"garbage"


def test_without_a_whole_checkpoint_there_is_nothing_to_go_on_from(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=rf"there is no checkpoint in .*; {NEW_RUN}$"):
        newest_checkpoint(tmp_path / "absent", print)
    trained(tmp_path)
    said = list[str]()
    for path in checkpoints(tmp_path):
        path.write_bytes(b"")
    with pytest.raises(RunFolderError, match=rf"no checkpoint in .* can be used; {NEW_RUN}$"):
        newest_checkpoint(tmp_path, said.append)
    assert len(said) == 2
    assert "trying" in said[0]
    assert "trying" not in said[1]


class Other(Tiny):
    """Another class with the same model."""


class Wider(Tiny):
    def build_model(self) -> nn.Module:
        self.width += 1
        model = super().build_model()
        self.width -= 1
        return model


@pytest.mark.parametrize(
    ("experiment", "options", "difference"),
    [
        (Other(), {}, "with experiment Tiny, but now it is Other"),
        (Tiny(batch_size=4), {}, "with batch_size 8, but now it is 4"),
        (Tiny(), {"clip_norm": 1.0}, "with clip_norm None, but now it is 1.0"),
        (Tiny(), {"seed": 5}, "with seed 0, but now it is 5"),
        (Wider(), {}, "1.weight was 16x16, but now is 17x16"),
    ],
    ids=str,
)
def test_another_training_s_checkpoint_is_refused_with_the_difference(
    experiment: Experiment, options: dict[str, Any], difference: str, tmp_path: Path
) -> None:
    trained(tmp_path)
    if type(experiment) is not Other:
        type(experiment).__name__ = "Tiny"
    with pytest.raises(UsageError, match=f"step-000000013.pt .*{difference}.*without --resume"):
        resume(prepare(experiment, **options), tmp_path, Log())


class Unfreezing(Tiny):
    """Its optimizer gets the first layer after five steps."""

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        self.optimizer, self.steps = torch.optim.SGD(model[4].parameters(), lr=0.01), 0  # type: ignore[index]
        return self.optimizer

    def after_step(self, model: nn.Module) -> None:
        self.steps += 1
        if self.steps == 5:
            self.optimizer.add_param_group({"params": list(model[1].parameters())})  # type: ignore[index]


def test_no_checkpoint_is_written_whose_groups_a_new_process_cannot_make(tmp_path: Path) -> None:
    log = log_of(prepare(Unfreezing()), at={11: STOP}, checkpoints=tmp_path, every=2)
    assert max(record.step for record in log.of(CheckpointWritten)) <= 4
    assert "make all in build_optimizer()" in log.of(KeepingChanged)[-1].trouble


@pytest.fixture
def alone(tmp_path: Path) -> Checkpoint:
    """Of one process, with batches of 8."""
    train(prepare(Tiny(), steps=3), Log(), checkpoints=tmp_path)
    return read(checkpoints(tmp_path)[0])


def of_two(checkpoint: Checkpoint) -> Checkpoint:
    """As if two ranks had written it, with other random states on the second."""
    torch.manual_seed(77)
    draws = {**checkpoint.draws, "process": {**checkpoint.draws["process"], "cpu": torch.get_rng_state()}}
    own_states = {"batches": checkpoint.batches, "draws": draws, "epoch_draws": draws}
    return replace(checkpoint, ranks=[own_states])


REQUEST = TrainRequest(model="tiny", batch_size=4, settings={"batch_size": "4", "width": "8"})


@pytest.mark.parametrize(("ranks", "batch_size"), [(1, 16), (2, 8), (4, 4), (16, 1)])
def test_the_global_batch_stays_and_none_is_asked_for(alone: Checkpoint, ranks: int, batch_size: int) -> None:
    shared, request, change = share_batch(of_two(alone), REQUEST, ranks)
    assert shared.identity["batch_size"] == batch_size
    assert bool(change) == (ranks != 2)
    assert (request.batch_size, request.settings) == (None, {"width": "8"})


def test_an_unequal_share_is_refused(alone: Checkpoint) -> None:
    batch = "has a global batch of 16 samples, which 6 ranks cannot share equally"
    with pytest.raises(UsageError, match=f"{batch}; use --nproc 4"):
        share_batch(of_two(alone), REQUEST, 6)


def test_each_rank_has_its_own_states_and_a_new_one_has_others_each_time_the_same(alone: Checkpoint) -> None:
    prepared = prepare(Tiny())
    checkpoint = of_two(alone)

    def states(rank: int, ranks: int) -> bytes:
        _, start = restore(checkpoint, prepared, print, rank=rank, ranks=ranks)
        assert start.batches == checkpoint.batches
        return bytes(start.draws["process"]["cpu"].tolist())

    all_states = [states(rank, 4) for rank in range(4)]
    assert all_states[0] == bytes(checkpoint.draws["process"]["cpu"].tolist())
    assert all_states[1] == bytes(checkpoint.ranks[0]["draws"]["process"]["cpu"].tolist())
    assert len(set(all_states)) == 4
    assert [states(2, 4), states(3, 4)] == all_states[2:]


def test_a_loader_s_order_is_not_shared_out_anew(tmp_path: Path) -> None:
    train(prepare(Drawing(source="loader"), steps=3), Log(), checkpoints=tmp_path)
    checkpoint = read(checkpoints(tmp_path)[0])
    with pytest.raises(UsageError, match="depends on their number; resume with --nproc 1"):
        restore(checkpoint, prepare(Drawing(source="loader")), print, ranks=2)
