"""Float8 as a GPU multiplies it: against a CPU, in a run that switches, and compiled."""

import pytest
import torch
from torch import Tensor, nn

from amptui.recipe.float8 import Float8Linears
from amptui.records.run import Note
from tests.loops.compiled_runs import compiled
from tests.tiny import Tiny, log_of, losses, prepare

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU"),
    pytest.mark.usefixtures("usable_torchao"),
    pytest.mark.skipif(
        torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 9),
        reason="float8 products need compute capability 8.9",
    ),
]


def test_the_gpus_products_are_those_of_a_cpu() -> None:
    torch.manual_seed(0)
    linear, inputs = nn.Linear(64, 48), torch.randn(37, 64)
    results = list[tuple[Tensor, Tensor]]()
    for device in ("cuda", "cpu"):
        linears = Float8Linears(linear.to(device))
        assert linears.prepare() == ""
        linears.become(on=True)
        with torch.autocast(device, dtype=torch.bfloat16):
            outputs = linear(inputs.to(device))
        (gradient,) = torch.autograd.grad(outputs.float().square().sum(), linear.weight)
        results.append((outputs.detach().float().cpu(), gradient.cpu()))
        linears.become(on=False)
    for real, expected in zip(*results, strict=True):
        # A Tensor Core adds with fewer bits than float32 has, and the output gradient inherits the
        # rounding of the output.
        assert float((real - expected).norm() / expected.norm()) < 2**-5


@pytest.mark.ci
@pytest.mark.real_gpu("it compiles nothing")
def test_compiled_code_follows_the_layers_into_float8_and_back() -> None:
    at = {3: "fp8", 6: "bf16", 9: "fp8"}
    log = log_of(compiled(prepare(Tiny(), device="cuda"), "inductor"), at=at)
    assert [note for note in log.of(Note) if note.severity == "error"] == []
    assert losses(log) == pytest.approx(losses(log_of(prepare(Tiny(), device="cuda"), at=at)), rel=0.05)
