"""Several optimizers that a script names to observe() and watch(): names, order, steps and loss scale."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

import amptui
from amptui import AmpMonitor
from amptui.records.answers import RequestMade
from amptui.records.own_loop import OptimizerFollowed
from amptui.records.run import PrecisionChanged, RunStarted
from tests.builders import StepRow, of
from tests.builders import recorded as records
from tests.own_loops import ask

STEPS = 40

OVERFLOWS = (7, 8, 21)
"""Steps whose real samples overflow float16."""


Autocast = Callable[[], AbstractContextManager[Any]]


class Gan:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.generator = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 6))
        self.critic = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
        self.optimizers: dict[str, torch.optim.Optimizer] = {
            "generator": torch.optim.SGD(self.generator.parameters(), lr=0.01),
            "critic": torch.optim.AdamW(self.critic.parameters(), lr=0.002),
        }
        self.losses: dict[str, list[float]] = {"generator": [], "critic": []}
        self.critic_skips: list[int] = []

    @property
    def pairs(self) -> dict[str, Any]:
        return {name: (getattr(self, name), optimizer) for name, optimizer in self.optimizers.items()}

    def samples(self, step: int) -> tuple[Tensor, Tensor]:
        source = torch.Generator().manual_seed(step)
        real = torch.randn(5, 6, generator=source) + 1
        return real * (1e6 if step in OVERFLOWS else 1.0), torch.randn(5, 4, generator=source)

    def loss(self, name: str, step: int) -> Tensor:
        real, noise = self.samples(step)
        if name == "generator":
            return _loss(self.critic(self.generator(noise)), 1.0)
        return _loss(self.critic(real), 1.0) + _loss(self.critic(self.generator(noise).detach()), 0.0)

    def both_losses(self, step: int, autocast: Autocast) -> dict[str, Tensor]:
        """Of a loop in which both are backpropagated before the first optimizer's step."""
        with autocast():
            critic = self.loss("critic", step)
        with autocast():
            generator = self.generator(self.samples(step)[1]).square().mean()
        return {"critic": critic, "generator": generator}

    def note(self, losses: dict[str, Tensor]) -> None:
        for name, loss in losses.items():
            self.losses[name].append(loss.item())

    def state(self) -> list[Tensor]:
        states = self.optimizers["critic"].state.values()
        moments = [value for state in states for value in state.values() if torch.is_tensor(value)]
        return [*self.generator.parameters(), *self.critic.parameters(), *moments]


def _loss(scores: Tensor, target: float) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(scores, torch.full_like(scores, target))


def scaler() -> GradScaler:
    return GradScaler("cpu", growth_interval=4, init_scale=2.0**14)


def same(ours: Gan, bare: Gan) -> bool:
    return all(torch.equal(one, other) for one, other in zip(ours.state(), bare.state(), strict=True))


def half() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.float16)


class ByHand:
    """The calls of a monitor as people write them; the scaler is updated after so many steps."""

    def __init__(
        self, gan: Gan, own: GradScaler, autocast: Autocast = half, *, steps_per_update: int = 1
    ) -> None:
        self.gan, self.scaler, self.autocast, self.steps_per_update = gan, own, autocast, steps_per_update
        self.steps = 0

    def backward(self, loss: Tensor) -> None:
        self.scaler.scale(loss).backward()

    def step(self, name: str) -> None:
        self.scaler.step(self.gan.optimizers[name])
        self.steps += 1
        if self.steps % self.steps_per_update == 0:
            self.scaler.update()
        self.gan.optimizers[name].zero_grad()


def in_turn(gan: Gan, amp: ByHand | AmpMonitor, steps: int = STEPS) -> None:
    """Each optimizer makes its step before the other's loss is computed."""
    for step in range(1, steps + 1):
        for name in ("critic", "generator"):
            gan.optimizers["critic"].zero_grad()
            with amp.autocast():
                loss = gan.loss(name, step)
            before = amp.scaler.get_scale()
            amp.backward(loss)
            amp.step(name)
            if amp.scaler.get_scale() < before and name == "critic":
                gan.critic_skips.append(step)
            gan.note({name: loss})


def together(gan: Gan, amp: ByHand | AmpMonitor) -> list[list[float]]:
    """Both losses are backpropagated before the first step; the scale before, between and after the two."""
    scales = []
    for step in range(1, STEPS + 1):
        for loss in (losses := gan.both_losses(step, amp.autocast)).values():
            amp.backward(loss)
        scales.append([amp.scaler.get_scale()])
        for name in losses:
            amp.step(name)
            scales[-1].append(amp.scaler.get_scale())
        gan.note(losses)
    return scales


def steps_of(runs: Path, name: str) -> list[StepRow]:
    return [step for step in of(StepRow, records(runs)) if step.optimizer == name]


@pytest.mark.parametrize("way", ["observe", "watch"])
def test_named_optimizers_keep_their_names_and_their_order(way: str, runs: Path) -> None:
    gan = Gan()
    with getattr(amptui, way)(gan.pairs):
        in_turn(gan, ByHand(gan, GradScaler("cpu", enabled=False), nullcontext), 5)
    (started,) = of(RunStarted, records(runs))
    assert started.optimizer == "generator"
    followed = of(OptimizerFollowed, records(runs))
    assert [(record.optimizer, record.kind, record.model, record.replaces) for record in followed] == [
        ("", "SGD", "Sequential", ""),
        ("critic", "AdamW", "Sequential", ""),
    ]
    counts = [sum(p.numel() for p in model.parameters()) for model in (gan.generator, gan.critic)]
    assert [record.parameters for record in followed] == counts
    assert [step.loss for step in steps_of(runs, "")] == pytest.approx(gan.losses["generator"])
    assert [step.loss for step in steps_of(runs, "critic")] == pytest.approx(gan.losses["critic"])


CRITIC = Gan().pairs["critic"]


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        (({},), ValueError, "^model is an empty mapping"),
        (({"net": 1},), TypeError, "'net' must have a pair"),
        (({"net": (1, 2)},), TypeError, "'net' must have a pair"),
        (({"net": CRITIC[:1]},), TypeError, "'net' must have a pair"),
        (({1: ()},), TypeError, "must be a text, not 1"),
        (({" ": ()},), TypeError, "must be a text, not ' '"),
        (({"net": CRITIC}, CRITIC[1]), TypeError, "^optimizer must be left out"),
        (({"one": CRITIC, "two": CRITIC},), ValueError, "the same optimizer stands under two names"),
    ],
    ids=["empty", "no pair", "no model", "no optimizer", "number", "blank", "beside", "two names"],
)
@pytest.mark.parametrize("way", ["observe", "watch"])
def test_wrong_mappings_are_refused(
    way: str, arguments: tuple[Any, ...], error: type[Exception], says: str, runs: Path
) -> None:
    with pytest.raises(error, match=says):
        getattr(amptui, way)(*arguments)
    assert not runs.exists()


@pytest.mark.torch
def test_steps_in_turn_in_fp16_leave_the_bits_of_a_handwritten_loop(runs: Path) -> None:
    bare, ours, own = Gan(), Gan(), scaler()
    in_turn(bare, ByHand(bare, own))
    with amptui.watch(ours.pairs, precision="fp16", scaler=scaler()) as monitor:
        in_turn(ours, monitor)
        state = monitor.scaler.state_dict()
    assert same(ours, bare)
    assert state == own.state_dict()
    critic, generator = steps_of(runs, "critic"), steps_of(runs, "")
    assert [step.loss for step in critic] == pytest.approx(bare.losses["critic"], rel=1e-5, nan_ok=True)
    assert [step.loss for step in generator] == pytest.approx(bare.losses["generator"], rel=1e-5, nan_ok=True)
    assert [step.step for step in critic if step.skipped] == bare.critic_skips
    assert {*OVERFLOWS} <= {*bare.critic_skips}
    assert {step.precision for step in (*critic, *generator)} == {"fp16"}


def test_the_loss_scale_waits_until_the_last_pending_step(runs: Path) -> None:
    bare, ours, own = Gan(), Gan(), scaler()
    expected = together(bare, ByHand(bare, own, steps_per_update=2))
    with amptui.watch(ours.pairs, precision="fp16", scaler=scaler()) as monitor:
        assert together(ours, monitor) == expected
        state = monitor.scaler.state_dict()
    assert any(between != after for _, between, after in expected)
    assert same(ours, bare)
    assert state == own.state_dict()
    critic = steps_of(runs, "critic")
    assert [step.loss for step in critic] == pytest.approx(bare.losses["critic"], rel=1e-5, nan_ok=True)


@pytest.mark.torch
def test_a_switch_waits_until_no_gradients_are_pending(runs: Path) -> None:
    gan = Gan()
    with amptui.watch(gan.pairs, precision="fp16", scaler=scaler()) as monitor:
        for step in range(1, 7):
            for loss in gan.both_losses(step, monitor.autocast).values():
                monitor.backward(loss)
            if step == 3:
                ask(monitor, RequestMade("precision", precision="fp32"))
            if step == 5:
                ask(monitor, RequestMade("precision", precision="fp16"))
            before = monitor.precision
            monitor.step("generator")
            assert monitor.precision == before
            monitor.step("critic")
        assert monitor.precision == "fp16"
    changed = of(PrecisionChanged, records(runs))
    assert [(record.step, record.current) for record in changed if not record.optimizer] == [
        (4, "fp32"),
        (6, "fp16"),
    ]
    for name in ("", "critic"):
        precisions = [step.precision for step in steps_of(runs, name)]
        assert precisions == ["fp16", "fp16", "fp16", "fp32", "fp32", "fp16"]
    assert all(parameter.isfinite().all() for parameter in gan.state())


def test_a_step_has_the_name_of_one_of_the_optimizers() -> None:
    gan = Gan()
    with amptui.watch(gan.pairs) as monitor:
        monitor.backward(gan.loss("critic", 1))
        with pytest.raises(ValueError, match="'generator', 'critic', not ''"):
            monitor.step()
        with pytest.raises(ValueError, match="not 'discriminator'"):
            monitor.step("discriminator")
        with pytest.raises(ValueError, match=r"use backward\(\) and step\(name\)"):
            monitor.train_step(lambda: gan.loss("critic", 1))
        monitor.step("critic")
    with amptui.watch(*gan.pairs["critic"]) as single:
        single.backward(gan.loss("critic", 1))
        with pytest.raises(ValueError, match="not 'critic'"):
            single.step("critic")
        single.step()


def test_a_step_with_passes_from_before_and_after_a_switch_ran_in_neither(runs: Path) -> None:
    gan = Gan()
    with amptui.watch(gan.pairs, amp="bf16") as monitor:

        def add_gradients(name: str, step: int) -> None:
            with monitor.autocast():
                loss = gan.loss(name, step)
            monitor.backward(loss)

        for step in range(3):
            add_gradients("critic", step)  # which waits for its step, and so does a switch
            gan.optimizers["generator"].zero_grad()
            add_gradients("generator", step)
            if step == 1:
                ask(monitor, RequestMade("precision", precision="bf16"))
            monitor.step("generator")
            add_gradients("generator", step)
            assert monitor.precision == ("fp32" if step < 2 else "bf16")
            monitor.step("critic")
            gan.optimizers["critic"].zero_grad()
            add_gradients("generator", step)
            monitor.step("generator")
            gan.optimizers["critic"].zero_grad()
    assert [step.precision for step in steps_of(runs, "")] == ["fp32"] * 3 + ["mixed"] + ["bf16"] * 2
