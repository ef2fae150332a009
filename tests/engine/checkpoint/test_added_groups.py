"""An optimizer that got parameter groups while training: its checkpoints resume, or say that they cannot."""

from pathlib import Path

import pytest
import torch
from torch import nn

from amptui.base.errors import UsageError
from amptui.engine.checkpoint.added_groups import CANNOT_BE_RESUMED
from amptui.records.control import Control
from amptui.records.run import Note
from amptui.records.steps import StepRecord
from tests.tiny import Log, Tiny, prepare, resume, stopping, train

UNFREEZES_AT = 5
CUT = 11


class Unfreezing(Tiny):
    """Trains its head first, and all of it from a step on."""

    kind: str = "sgd"

    def build_model(self) -> nn.Module:
        model = super().build_model()
        model.get_submodule("1").requires_grad_(requires_grad=False)
        return model

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        head = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.steps = 0
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(head, lr=self.learning_rate, momentum=0.9)
        if self.kind == "adam":
            self.optimizer = torch.optim.Adam(head, lr=self.learning_rate)
        return self.optimizer

    def after_step(self, model: nn.Module) -> None:
        self.steps += 1
        if self.steps == UNFREEZES_AT and len(self.optimizer.param_groups) == 1:
            self.grow(model)

    def grow(self, model: nn.Module) -> None:
        first = model.get_submodule("1").requires_grad_(requires_grad=True)
        self.optimizer.add_param_group({"params": list(first.parameters()), "lr": 0.003})


class Foreign(Unfreezing):
    """The group that it adds has a parameter that is not the model's."""

    def grow(self, _model: nn.Module) -> None:
        self.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})


def test_a_run_whose_optimizer_grew_goes_on_bit_for_bit(tmp_path: Path) -> None:
    for kind in ("sgd", "adam"):
        whole, second, folder = Log(), Log(), tmp_path / kind
        prepared = prepare(Unfreezing(kind=kind))
        train(prepared, whole)
        control = Control()
        first = Log(stopping(control, CUT))
        train(prepare(Unfreezing(kind=kind)), first, control, checkpoints=folder)
        resumed = prepare(Unfreezing(kind=kind))
        assert resume(resumed, folder, second) == "done"
        losses = [record.loss for log in (first, second) for record in log.of(StepRecord)]
        assert losses == [record.loss for record in whole.of(StepRecord)]
        assert [group["lr"] for group in resumed.optimizer.param_groups] == [0.01, 0.003]
        assert all(map(torch.equal, resumed.model.parameters(), prepared.model.parameters()))


def test_a_checkpoint_that_cannot_be_resumed_says_so_when_it_is_written(tmp_path: Path) -> None:
    control = Control()
    log = Log(stopping(control, CUT))
    train(prepare(Foreign()), log, control, checkpoints=tmp_path)
    assert [note.severity for note in log.of(Note) if note.text == CANNOT_BE_RESUMED] == ["warning"]
    with pytest.raises(
        UsageError, match="cannot be resumed: while training, the optimizer got a parameter group"
    ):
        resume(prepare(Foreign()), tmp_path, Log())


def test_another_number_of_groups_is_told_in_one_line(tmp_path: Path) -> None:
    sizes = [2, 4]

    class Grouped(Tiny):
        def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
            parameters, count = list(model.parameters()), sizes.pop()
            return torch.optim.SGD([{"params": parameters[n::count]} for n in range(count)], lr=0.01)

    control = Control()
    train(prepare(Grouped()), Log(stopping(control, 3)), control, checkpoints=tmp_path)
    with pytest.raises(UsageError, match="its optimizer has 4 parameter groups, but now there are 2"):
        resume(prepare(Grouped()), tmp_path, Log())
