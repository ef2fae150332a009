"""The lines to paste: what they are, and that they are code that runs."""

from itertools import product
from typing import Any

import pytest
import torch
from torch import nn

from amptui.recipe.float8 import Float8Linears
from amptui.reports.advise.recommendation import lines_for
from tests.golden import Goldens


def test_the_lines_to_paste_for_each_precision(goldens: Goldens) -> None:
    text = []
    for precision in ("fp32", "bf16", "fp16", "tf32", "fp8"):
        on_a_gpu = lines_for(precision, "cuda", command="amptui train x", clip_norm=2.0, compiles=True)
        for device, lines in {"cuda": on_a_gpu, "cpu": lines_for(precision, "cpu")}.items():
            text += [f"== {precision} on {device}"]
            text += [line for name, own in lines.items() for line in (f"-- {name}", *own)]
    goldens.check("reports/advise lines to paste", "\n".join(text))


def trained(
    model: nn.Module, features: int, precision: str, clip_norm: float | None = None
) -> dict[str, Any]:
    """What the lines of a plain loop leave behind."""
    names = {
        "torch": torch,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "loss_function": nn.CrossEntropyLoss(),
        "batches": [(torch.randn(3, features), torch.tensor([0, 1, 0]))] * 2,
    }
    exec("\n".join(lines_for(precision, "cpu", clip_norm=clip_norm)["pytorch"]), names)  # noqa: S102
    assert torch.isfinite(names["loss"])  # type: ignore[arg-type]
    return names


@pytest.mark.ci
@pytest.mark.usefixtures("usable_torchao")
def test_the_lines_of_fp8_train_the_layers_that_amptui_takes() -> None:
    model = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 3))
    expected = Float8Linears(model)
    assert expected.prepare("hardware") == ""
    try:
        trained(model, 32, "fp8")
    except (NotImplementedError, RuntimeError) as error:
        pytest.skip(f"this torch multiplies no float8 on a CPU: {error}")
    taken = [name for name, layer in model.named_modules() if type(layer).__name__ == "Float8Linear"]
    assert taken == list(expected.linears)


@pytest.mark.parametrize(("precision", "clip_norm"), list(product(("bf16", "fp16"), (None, 0.5))))
def test_the_plain_loop_trains(precision: str, clip_norm: float | None) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    before = model.weight.detach().clone()
    names = trained(model, 4, precision, clip_norm)
    assert not torch.equal(model.weight, before)
    assert ("scaler" in names) == (precision == "fp16")
