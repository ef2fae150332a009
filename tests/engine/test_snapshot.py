"""Everything that a forward pass changes comes back bit for bit."""

import pytest
import torch
from torch import Tensor, nn

from amptui.engine.snapshot import Snapshot

CPU = torch.device("cpu")
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")


def test_weights_that_a_forward_pass_changes_are_restored() -> None:
    class Moving(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(4, 2, max_norm=0.1)
            self.student = nn.Linear(2, 2)
            self.teacher = nn.Linear(2, 2).requires_grad_(False)

        def forward(self, words: Tensor) -> Tensor:
            with torch.no_grad():
                self.teacher.weight.lerp_(self.student.weight, 0.1)
                self.teacher.bias.data = self.student.bias.data * 0.5
            return self.student(self.words(words))  # type: ignore[no-any-return]

    model = Moving()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    snapshot = Snapshot(model, CPU)
    model(torch.tensor([0, 1]))
    assert not torch.equal(model.words.weight, before["words.weight"])
    assert not torch.equal(model.teacher.weight, before["teacher.weight"])
    snapshot.restore()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.gpu
@gpu
def test_a_gpu_s_dropout_masks_and_statistics_are_restored() -> None:
    device = torch.device("cuda", 0)
    model = nn.Sequential(nn.BatchNorm1d(64), nn.Dropout()).to(device)
    inputs = torch.rand(32, 64, device=device)
    snapshot = Snapshot(model, device)
    first = model(inputs)
    assert snapshot.has_drawn
    snapshot.restore()
    assert not snapshot.has_drawn
    assert torch.equal(model(inputs), first)
    snapshot.restore()
    assert model[0].num_batches_tracked.item() == 0
