"""What no run goes on from: damaged checkpoints, none at all, another training's, other shares of ranks."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from amptui import Experiment
from amptui.base.errors import RunFolderError, UsageError
from amptui.checkpoint.file import Checkpoint, checkpoints, read
from amptui.loops.resume import newest_checkpoint, restore, share_batch
from amptui.recipe.request import TrainRequest
from amptui.records.control import StopRequest
from amptui.records.keeping import CheckpointWritten, KeepingChanged
from amptui.records.run import Note
from tests.tiny import Drawing, Log, Tiny, log_of, losses, prepare, resume, train

NEW_RUN = "start a new run without --resume"
STOP = StopRequest("the test")


def trained(folder: Path, **options: Any) -> None:
    """A run of two epochs and its checkpoints."""
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


class Grouped(Tiny):
    """Its optimizer has so many groups, and gets a parameter that is not the model's after five steps."""

    groups: int = 4
    foreign: bool = False

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        parameters, count, self.steps = list(model.parameters()), self.groups, 0
        self.optimizer = torch.optim.SGD([{"params": parameters[n::count]} for n in range(count)], lr=0.01)
        self.groups = 4  # no difference that a checkpoint names
        return self.optimizer

    def after_step(self, model: nn.Module) -> None:
        self.steps += 1
        if self.foreign and self.steps == 5:
            self.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})


def test_no_checkpoint_is_written_or_resumed_whose_groups_cannot_be_made(tmp_path: Path) -> None:
    log = log_of(prepare(Grouped(foreign=True)), at={11: STOP}, checkpoints=tmp_path, every=2)
    assert max(record.step for record in log.of(CheckpointWritten)) <= 4
    assert "a parameter that is not the model's" in log.of(KeepingChanged)[-1].trouble
    with pytest.raises(UsageError, match=r"its optimizer had 4 parameter group\(s\), now it has 2"):
        resume(prepare(Grouped(groups=2, foreign=True)), tmp_path, Log())


# -------------------------------------------------------------------------- another number of ranks


@pytest.fixture
def alone(tmp_path: Path) -> Checkpoint:
    """Of one process, with batches of 8."""
    train(prepare(Tiny(), steps=3), Log(), checkpoints=tmp_path)
    return read(checkpoints(tmp_path)[0])


def of_two(checkpoint: Checkpoint) -> Checkpoint:
    """As if two ranks had written it, with other random states on the second."""
    torch.manual_seed(77)
    draws = {**checkpoint.draws, "process": {**checkpoint.draws["process"], "cpu": torch.get_rng_state()}}
    return replace(
        checkpoint,
        ranks=[{"batches": checkpoint.batches, "draws": draws, "epoch_draws": draws, "gpu": 0}],
    )


REQUEST = TrainRequest(model="tiny", batch_size=4, settings={"batch_size": "4", "width": "8"})


@pytest.mark.parametrize(("ranks", "batch_size"), [(1, 16), (2, 8), (4, 4), (16, 1)])
def test_the_global_batch_stays_and_none_is_asked_for(alone: Checkpoint, ranks: int, batch_size: int) -> None:
    shared, request, change = share_batch(of_two(alone), REQUEST, ranks)
    assert shared.identity["batch_size"] == batch_size
    assert bool(change) == (ranks != 2)
    assert (request.batch_size, request.settings) == (None, {"width": "8"})


def test_a_run_of_one_process_keeps_its_request_and_an_unequal_share_is_refused(alone: Checkpoint) -> None:
    assert share_batch(alone, REQUEST, 1) == (alone, REQUEST, "")
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
