"""amptui.fabric.Precision in the real Fabric: what is Fabric's own, beside tests/conformance."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.conformance.frameworks import Fabric
from tests.conformance.recorded import Asking, only_run
from tests.conformance.situations import SITUATIONS, Situation, Training

pytestmark = [
    pytest.mark.ci,  # importing Lightning takes seconds
    pytest.mark.filterwarnings("default"),  # Lightning's own
]


@pytest.fixture(autouse=True)
def _installed() -> None:
    Fabric().need()


def test_the_script_s_own_function_saves(runs: Path) -> None:
    saved: list[int] = []
    asking = Asking(runs, {5: [{"request": "checkpoint"}]})
    plugin = Fabric.plugin(save=lambda: saved.append(1))
    with plugin.monitor:
        Fabric.loop(Training(Situation(), asking), plugin)
    asking.close()
    assert saved == [1]
    assert [line["request"]["kind"] for line in only_run(runs).of("RequestTaken")] == ["checkpoint"]


def test_the_scalers_state_may_be_loaded_before_setup() -> None:
    plugin = Fabric.plugin("16-mixed")
    state = torch.amp.GradScaler("cpu", growth_interval=5).state_dict()
    plugin.load_state_dict({**state, "scale": 4.0})
    Fabric.loop(Training(SITUATIONS["fp16"]), plugin)
    plugin.monitor.close()
    assert plugin.state_dict()["scale"] < 65536.0
    assert plugin.state_dict()["growth_interval"] == 5


def test_two_optimizers_may_step_in_turn(runs: Path) -> None:
    from lightning.fabric import Fabric as RealFabric

    torch.manual_seed(0)
    models = [nn.Linear(4, 4) for _ in range(2)]
    plugin = Fabric.plugin("16-mixed")
    fabric = RealFabric(accelerator="cpu", devices=1, plugins=[plugin])
    pairs = [fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.01)) for model in models]
    requests: Any = {3: "fp32", 7: "fp16"}
    asking = Asking(runs, {at: [{"request": "precision", "precision": to}] for at, to in requests.items()})
    for step in range(12):
        asking(step)
        for model, optimizer in pairs:
            fabric.backward(model(torch.ones(2, 4)).square().mean())
            gradients = [parameter.grad.abs().max() for parameter in model.parameters()]
            optimizer.step()
            scale = plugin.state_dict()["scale"] if plugin.precision == "16-mixed" else 1.0
            assert all(0 < gradient / scale < 10 for gradient in gradients)
            optimizer.zero_grad()
    asking.close()
    plugin.monitor.close()
    rows = only_run(runs).table()
    # A switch comes after a step of the first; the second's step of the same iteration runs in it already.
    for name, first in (("Linear", 4), ("Linear 2", 3)):
        expected = ["fp16"] * first + ["fp32"] * 4 + ["fp16"] * (8 - first)
        assert [row["precision"] for row in rows if row["optimizer"] == name] == expected


def test_another_precision_is_refused() -> None:
    with pytest.raises(ValueError, match="64-true"):
        Fabric.plugin("64-true")
    with pytest.raises(ValueError, match="tf32"):
        Fabric.plugin(amp="tf32")
