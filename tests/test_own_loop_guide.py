"""The code of the guide to one's own loop runs as it stands there."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from amptui.records.run import EpochFinished, Validated
from tests.builders import StepRow, of
from tests.builders import recorded as records
from tests.checkout import ROOT

PAGE = (ROOT / "demo" / "guide" / "own_loop.md").read_text()

BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.fixture
def names() -> dict[str, Any]:
    """What the snippets expect to be there."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2)

    def evaluate(_model: nn.Module) -> Tensor:
        return torch.tensor(0.5)

    inputs, labels = torch.randn(3, 4), torch.tensor([0, 1, 0])
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "criterion": nn.CrossEntropyLoss(),
        "loader": [(inputs, labels)] * 4,
        "inputs": inputs,
        "labels": labels,
        "evaluate": evaluate,
        "scaler": None,
    }


def block(part: str) -> str:
    (found,) = [each for each in BLOCKS if part in each]
    return str(found)


def test_the_loop_of_the_guide_trains(names: dict[str, Any], runs: Path) -> None:
    exec(block("monitor.epochs(10)"), names)  # noqa: S102 - our own page
    exec(block("monitor.train_step("), names)  # noqa: S102
    names["monitor"].close()
    found = records(runs)
    assert len(of(StepRow, found)) == 41
    assert [record.step for record in of(EpochFinished, found)] == list(range(4, 41, 4))
    assert len(of(Validated, found)) == 10


def test_the_amp_loop_and_the_observed_loop_of_the_guide_train(names: dict[str, Any], runs: Path) -> None:
    made, _, steps = block("scaler = monitor.scaler").partition("...\n")
    program = f"import amptui\n{made}for _ in range(3):\n{steps}"
    exec(program, names)  # noqa: S102
    assert names["monitor"].scaler.state_dict()["_growth_tracker"] == 3
    names["monitor"].close()
    names["scaler"] = None
    exec(block("amptui.observe("), names)  # noqa: S102
    names["monitor"].close()
    assert len(list(runs.iterdir())) == 2


def test_the_gan_of_the_guide_trains(runs: Path) -> None:
    torch.manual_seed(0)
    generator, critic = nn.Linear(4, 3), nn.Linear(3, 1)
    names: dict[str, Any] = {
        "generator": generator,
        "critic": critic,
        "g_optimizer": torch.optim.SGD(generator.parameters(), lr=0.1),
        "c_optimizer": torch.optim.SGD(critic.parameters(), lr=0.1),
        "pairs": [(torch.randn(5, 3), torch.randn(5, 4))] * 3,
    }
    exec("import amptui\n" + block('monitor.step("critic")'), names)  # noqa: S102 - our own page
    names["monitor"].close()
    steps = of(StepRow, records(runs))
    assert sorted((step.optimizer, step.step) for step in steps) == [
        (name, step) for name in ("", "critic") for step in (1, 2, 3)
    ]
    assert {step.loss_form for step in steps} == {""}
