"""A step's loss is that of the backward passes whose gradients it used, in loops that are not generated."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.functional import softplus

from amptui.records.own_loop import GradientsDropped, OptimizerFollowed
from amptui.records.run import Record
from tests.guest.loop.seen_steps import BATCHES, batches, loss_of, net, sgd, steps_of, update, watching

Batch = tuple[Tensor, Tensor]


def deep_net() -> nn.Module:
    """Of so many parameters that not all of them are looked at."""
    return nn.Sequential(
        *[layer for _ in range(6) for layer in (nn.Linear(4, 4), nn.Tanh())], nn.Linear(4, 2)
    )


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def losses(records: list[Record], optimizer: str = "") -> list[float | None]:
    return [step.loss for step in steps_of(records, optimizer)]


def forms(records: list[Record], optimizer: str = "") -> set[str]:
    return {step.loss_form for step in steps_of(records, optimizer)}


def dropped(records: list[Record]) -> list[GradientsDropped]:
    return [record for record in records if isinstance(record, GradientsDropped)]


def trained(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    each: Callable[[Batch], Tensor | None],
    count: int = BATCHES,
) -> list[Record]:
    """What is recorded as ``each`` trains with a batch and returns its step's loss, unless it makes none."""
    with watching(model, optimizer) as records:
        truth = [loss.item() for batch in batches(count) if (loss := each(batch)) is not None]
    assert losses(records) == pytest.approx(truth)
    return records


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("build", [net, deep_net])
def test_an_adversarial_pass_does_not_count(build: Callable[[], nn.Module], to_none: bool) -> None:
    model = build()
    optimizer = sgd(model)

    def each(batch: Batch) -> Tensor:
        attacked = batch[0].clone().requires_grad_()
        loss_of(model, (attacked, batch[1])).backward()
        assert attacked.grad is not None
        attacked = (attacked + 0.1 * attacked.grad.sign()).detach()
        return update(optimizer, loss_of(model, (attacked, batch[1])), set_to_none=to_none)

    assert not dropped(trained(model, optimizer, each, 80 if build is deep_net else BATCHES))


def test_the_second_of_two_passes_of_sam_counts() -> None:
    model = net()
    optimizer = sgd(model)

    def each(batch: Batch) -> Tensor:
        loss_of(model, batch).backward()
        with torch.no_grad():
            moves = [0.05 * p.grad / p.grad.norm() for p in model.parameters() if p.grad is not None]
            for p, move in zip(model.parameters(), moves, strict=True):
                p.add_(move)
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        with torch.no_grad():
            for p, move in zip(model.parameters(), moves, strict=True):
                p.sub_(move)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    assert not dropped(trained(model, optimizer, each))


@pytest.mark.parametrize("times", [1, 4])
def test_the_loss_of_a_closure_is_that_of_its_first_call(times: int) -> None:
    model = net()
    optimizer: Any = torch.optim.LBFGS(model.parameters(), max_iter=times, lr=0.1)

    def each(batch: Batch) -> Tensor:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            return loss

        first: Tensor = optimizer.step(closure)
        return first

    assert forms(trained(model, optimizer, each)) == {"" if times == 1 else "first closure"}


def test_a_second_optimizer_may_clip_before_its_first_step() -> None:
    first, second = nn.Linear(4, 4), nn.Linear(4, 2)
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.01) for part in (first, second)]
    truth = []
    with watching(first, optimizers[0]) as records:
        for inputs, _ in batches():
            loss = second(first(inputs)).square().mean() * 50  # a product, which the clipping shortens
            loss.backward()
            truth.append(loss.item())
            for part, optimizer in zip((first, second), optimizers, strict=True):
                nn.utils.clip_grad_norm_(part.parameters(), 0.1)
                optimizer.step()
                optimizer.zero_grad()
    (name,) = {record.optimizer for record in records if isinstance(record, OptimizerFollowed)} - {""}
    assert losses(records) == losses(records, name) == pytest.approx(truth)


@pytest.mark.parametrize("bad", [(3,), (3, 4), (2, 5)])
def test_a_guarded_skip_leaves_the_next_loss_alone_and_is_told(bad: tuple[int, ...]) -> None:
    model = net()
    optimizer, factors = sgd(model), iter([torch.nan if number in bad else 1.0 for number in range(8)])

    def each(batch: Batch) -> Tensor | None:
        loss = loss_of(model, (batch[0] * next(factors), batch[1]))
        loss.backward()
        is_good = nn.utils.clip_grad_norm_(model.parameters(), 1.0).isfinite()
        if is_good:
            optimizer.step()
        optimizer.zero_grad()
        return loss if is_good else None

    told = dropped(trained(model, optimizer, each, 8))
    assert len(told) == len(bad)
    assert all(record.loss != record.loss for record in told)


@pytest.mark.torch
def test_torch_autograd_backward_is_seen_with_several_tensors() -> None:
    model = net()
    optimizer = sgd(model)

    def each(batch: Batch) -> Tensor:
        optimizer.zero_grad()
        outputs = model(batch[0])
        first, second = outputs.square().mean(), outputs.abs().mean()
        torch.autograd.backward([first, second])
        optimizer.step()
        return torch.add(first, second)

    trained(model, optimizer, each)


def test_a_step_within_the_backward_pass_has_that_passes_loss() -> None:
    model = nn.Linear(4, 2, bias=False)
    optimizer = sgd(model)

    def step(_parameter: Tensor) -> None:
        optimizer.step()
        optimizer.zero_grad()

    def each(batch: Batch) -> Tensor:
        loss = loss_of(model, batch)
        loss.backward()
        return loss

    model.weight.register_post_accumulate_grad_hook(step)
    trained(model, optimizer, each)


def test_a_gan_has_two_losses_that_do_not_mix() -> None:
    generator, critic = nn.Linear(3, 4), net()
    of_generator, of_critic = torch.optim.Adam(generator.parameters()), sgd(critic)
    of_generators: list[float] = []

    def each(batch: Batch) -> Tensor:
        of_critic.zero_grad()
        fake = generator(torch.randn(4, 3))
        real_loss = softplus(-critic(batch[0])).mean()
        real_loss.backward()
        fake_loss = softplus(critic(fake.detach())).mean()
        fake_loss.backward()
        of_critic.step()
        # This gives the critic gradients too.
        of_generators.append(update(of_generator, softplus(-critic(fake)).mean()).item())
        return torch.add(real_loss, fake_loss)

    records = trained(critic, of_critic, each)
    assert losses(records, "Linear") == pytest.approx(of_generators)
    assert (forms(records), forms(records, "Linear")) == ({"sum"}, {""})
    followed = [record for record in records if isinstance(record, OptimizerFollowed)]
    assert [(r.optimizer, r.kind, r.model, r.replaces) for r in followed] == [
        ("", "SGD", "Sequential", ""),
        ("Linear", "Adam", "Linear", ""),
    ]


@pytest.mark.parametrize("same_model", [True, False])
def test_an_optimizer_in_the_place_of_another_continues_its_steps(same_model: bool) -> None:
    model = net()
    optimizer: Any = sgd(model)
    truth = []
    with watching(model, optimizer) as records:
        for phase in range(3):
            if phase:
                if not same_model:
                    model = net()
                optimizer = torch.optim.Adam(model.parameters())
            truth += [update(optimizer, loss_of(model, batch)).item() for batch in batches(3)]
    assert losses(records) == pytest.approx(truth)
    followed = [record for record in records if isinstance(record, OptimizerFollowed)]
    assert [(r.optimizer, r.step, r.kind, r.replaces) for r in followed] == [
        ("", 3, "Adam", "SGD"),
        ("", 6, "Adam", "Adam"),
    ]


# --------------------------------------------------------------------------------------- scalers


@pytest.mark.parametrize("divide", ["loss", "product", "no"])
@pytest.mark.torch
def test_a_new_scaler_in_each_epoch_is_followed(divide: str) -> None:
    model = net()
    optimizer, truth = sgd(model), []
    with watching(model, optimizer) as records:
        for _epoch in range(3):
            scaler = GradScaler("cpu", init_scale=1024.0)
            for batch in batches(3):
                optimizer.zero_grad()
                with torch.autocast("cpu", dtype=torch.float16):
                    loss = loss_of(model, batch)
                scaled = scaler.scale(loss / 3 if divide == "loss" else loss)
                (scaled / 3 if divide == "product" else scaled).backward()
                truth.append(loss.item() / (1 if divide == "no" else 3))
                scaler.step(optimizer)
                scaler.update()
    assert losses(records) == pytest.approx(truth, rel=1e-4)
    assert {step.loss_scale for step in steps_of(records)} == {1024.0}
    assert {step.precision for step in steps_of(records)} == {"fp16"}


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_scaler_that_was_not_named_is_seen_but_not_a_loss_multiplied_by_hand(by_hand: bool) -> None:
    model = net()
    optimizer = sgd(model)
    scaler = GradScaler("cpu", init_scale=4.0)
    with watching(model, optimizer) as records:
        for number, (inputs, labels) in enumerate(batches()):
            optimizer.zero_grad()
            loss = loss_of(model, (inputs * (torch.inf if number == 2 else 1.0), labels))
            if by_hand:
                scaler.scale(torch.zeros(()))  # it has to be called before its first step
            (loss * scaler.get_scale() if by_hand else scaler.scale(loss)).backward()
            scaler.step(optimizer)
            scaler.update()
    assert [step.skipped for step in steps_of(records)] == [number == 2 for number in range(BATCHES)]
    assert [step.loss_scale for step in steps_of(records)] == [4.0, 4.0, 4.0, 2.0, 2.0, 2.0]
    assert {loss is None for loss in losses(records)} == {by_hand}
    assert forms(records) == ({"scaled"} if by_hand else {""})
