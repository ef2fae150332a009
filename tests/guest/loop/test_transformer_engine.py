"""Layers that note of themselves, as NVIDIA's Transformer Engine's do, whether they multiplied in float8.

The library itself needs a GPU: a layer of the same module and with the same attribute stands for it.
"""

from typing import Any

import torch
from torch import Tensor, nn

from amptui.guest.loop.parameter_owner import LooseParameters, owner_of
from amptui.records.own_loop import FLOAT8_LAYERS
from tests.guest.loop.seen_steps import sgd, steps_of, watching


class EngineLinear(nn.Linear):
    """Notes in each forward pass whether that was in float8."""

    in_float8 = False

    recipe: object = None

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.fp8 = False
        self.fp8_meta: dict[str, object] = {}

    def forward(self, inputs: Tensor) -> Tensor:
        self.fp8 = self.in_float8
        self.fp8_meta["recipe"] = self.recipe
        return super().forward(inputs)


class NVFP4BlockScaling:
    """Has the name of the library's recipe for FP4."""


EngineLinear.__module__ = "transformer_engine.pytorch.module.linear"


def train(model: Any, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(torch.ones(2, 4)).float().square().mean()
        loss.backward()
        optimizer.step()


def test_its_steps_are_told_apart_from_those_of_the_autocast_around_it() -> None:
    layer = EngineLinear()
    model = nn.Sequential(nn.Linear(4, 4), layer)
    optimizer = sgd(model)
    with watching(model, optimizer) as journal:
        for layer.in_float8 in (False, True, False):
            train(model, optimizer, 2)
    precisions = [step.precision for step in steps_of(journal)]
    assert precisions == ["bf16", "bf16", FLOAT8_LAYERS, FLOAT8_LAYERS, "bf16", "bf16"]


def test_it_is_known_where_no_one_module_has_all_parameters() -> None:
    body, head = nn.Linear(4, 4), EngineLinear()
    head.in_float8 = True
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.05)
    owner = owner_of(optimizer)
    assert isinstance(owner, LooseParameters)
    with watching(owner, optimizer) as journal:
        train(lambda batch: head(body(batch)), optimizer, 2)
    assert [step.precision for step in steps_of(journal)] == [FLOAT8_LAYERS] * 2


def test_float4_is_not_called_float8() -> None:
    layer = EngineLinear()
    layer.in_float8, layer.recipe = True, NVFP4BlockScaling()
    model = nn.Sequential(nn.Linear(4, 4), layer)
    optimizer = sgd(model)
    with watching(model, optimizer) as journal:
        train(model, optimizer, 2)
    assert [step.precision for step in steps_of(journal)] == ["unknown"] * 2
