"""watch() in FP8: the layers of the script's model multiply in float8, and are its own again afterwards."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.fsdp import fully_shard

import amptui
from amptui import AmpMonitor
from amptui.recipe.float8 import NO_LAYER, NO_SHARDS, OWN_FLOAT8
from amptui.records.answers import RequestMade, RequestRefused
from amptui.records.findings import Float8Layers
from amptui.records.run import RunStarted
from tests.builders import StepRow, of
from tests.builders import recorded as records
from tests.own_loops import Own, ask

pytestmark = pytest.mark.usefixtures("usable_torchao")


def kinds(model: nn.Module) -> list[str]:
    return [type(module).__name__ for module in model.modules()]


PLAIN = ["Sequential", "Linear", "ReLU", "Dropout", "Linear"]

IN_FLOAT8 = ["Sequential", "Float8Linear", "ReLU", "Dropout", "Linear"]
"""The second layer has 4 outputs."""


def raises(_own: Own, monitor: AmpMonitor) -> None:
    with pytest.raises(KeyError), monitor:
        raise KeyError


def has_a_fault_of_ours(own: Own, monitor: AmpMonitor) -> None:
    assert monitor._run is not None
    monitor._run.loop.give_up(RuntimeError("a fault"))
    assert kinds(own.model) == IN_FLOAT8  # the script goes on in the precision that it has
    own.watched(monitor, "monitor", 1)
    monitor.close()


@pytest.mark.parametrize(
    "end",
    [
        lambda _own, monitor: monitor.close(),
        raises,
        lambda own, _monitor: own.watch().close(),
        has_a_fault_of_ours,
    ],
    ids=["closed", "raised", "watched again", "a fault of ours"],
)
def test_the_layers_are_plain_again_however_the_watching_ends(end: Callable[[Own, AmpMonitor], None]) -> None:
    own = Own()
    whole = pickle.dumps(own.model)
    state = {name: value.clone() for name, value in own.model.state_dict().items()}
    monitor = own.watch(precision="fp8")
    own.watched(monitor, "monitor", 2)
    assert kinds(own.model) == IN_FLOAT8
    end(own, monitor)
    assert kinds(own.model) == PLAIN
    assert monitor.precision == "bf16"
    own.model.load_state_dict(state)
    own.optimizer.zero_grad(set_to_none=True)
    assert pickle.dumps(own.model) == whole


# ---------------------------------------------------------------------------------- other models


def test_the_models_of_all_named_optimizers_switch_together(runs: Path) -> None:
    torch.manual_seed(0)
    first, second = nn.Linear(16, 16), nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 4))
    models = {"g": first, "c": second}
    pairs = {name: (model, torch.optim.SGD(model.parameters(), 0.01)) for name, model in models.items()}
    with amptui.watch(pairs) as monitor:
        for step in range(1, 7):
            if step in (2, 4):
                ask(monitor, RequestMade("precision", precision="fp8" if step == 2 else "bf16"))
            for name, model in models.items():
                with monitor.autocast():
                    loss = model(torch.randn(8, 16)).float().square().mean()
                monitor.backward(loss)
                monitor.step(name)
        assert type(first) is nn.Linear
    journal = records(runs)
    for name, first_steps in (("", 2), ("c", 1)):  # a request is taken after a step of the first one
        steps = [step.precision for step in of(StepRow, journal) if step.optimizer == name]
        assert steps == (["fp32"] * first_steps + ["fp8"] * 2 + ["bf16"] * (4 - first_steps))
    (layers,) = of(Float8Layers, journal)
    assert layers.names == ("g", "c.0")
    assert [layer.name for layer in layers.left_out] == ["c.1"]


@pytest.fixture
def process_group() -> Any:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


# ------------------------------------------------------------------------------------- refusals


def narrow() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 10), nn.Linear(10, 4))


def converted() -> nn.Module:
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    config = Float8LinearConfig(emulate=True)
    model: nn.Module = convert_to_float8_training(nn.Sequential(nn.Linear(16, 16)), config=config)
    return model


def sharded() -> nn.Module:
    model = nn.Sequential(nn.Linear(16, 16))
    fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cpu", (1,)))
    return model


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize(
    ("build", "why"), [(narrow, NO_LAYER), (converted, OWN_FLOAT8), (sharded, NO_SHARDS)]
)
def test_models_that_cannot_are_refused_with_the_reason(
    build: Callable[[], nn.Module], why: str, runs: Path
) -> None:
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with pytest.raises(ValueError, match=f"precision fp8: {why}"):
        amptui.watch(model, optimizer, precision="fp8")
    with amptui.watch(model, optimizer) as monitor:
        for step in range(3):
            if step == 1:
                ask(monitor, RequestMade("precision", precision="fp8"))
            with monitor.autocast():
                loss = model(torch.randn(8, 16)).float().square().mean()
            monitor.backward(loss)
            monitor.step()
    (refused,) = of(RequestRefused, records(runs))
    assert (refused.reason, refused.detail) == ("unavailable", why)
    assert of(RunStarted, records(runs))[0].unsupported["fp8"] == why
