"""Learning-rate schedules: where a device counts the applied steps, those that cannot be, and validations."""

from functools import partial
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import ExponentialLR, LRScheduler, OneCycleLR, SequentialLR

from amptui.base.errors import ExperimentError
from amptui.recipe.lr_schedule import LrSchedule
from tests.tiny import Tiny, prepare


def followed(optimizer: Optimizer, scheduler: LRScheduler) -> LrSchedule:
    return LrSchedule(scheduler, optimizer, interval="step", on_device=True)


@pytest.mark.parametrize("kind", ["cosine", "chained", "sequence"])
def test_the_device_s_schedule_is_the_host_s(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are skipped, and the table is made anew several times."""
    monkeypatch.setattr("amptui.recipe.lr_schedule.TABLE_STEPS", 40)

    def build() -> tuple[nn.Module, Optimizer, LRScheduler]:
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        groups = [{"params": [model.weight], "lr": 0.1}, {"params": [model.bias], "lr": 0.01}]
        optimizer = torch.optim.SGD(groups, lr=0.1, fused=True)
        if kind == "cosine":
            return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 150)
        if kind == "chained":
            return model, optimizer, ExponentialLR(optimizer, 0.97)
        parts: list[LRScheduler] = [ExponentialLR(optimizer, 1.1), ExponentialLR(optimizer, 0.9)]
        return model, optimizer, SequentialLR(optimizer, parts, milestones=[30])

    model, optimizer, scheduler = build()
    schedule, scaler = followed(optimizer, scheduler), torch.amp.GradScaler("cpu", init_scale=2.0)
    _, expected_optimizer, expected = build()
    generator = torch.Generator().manual_seed(1)
    used, wanted = [], []
    for _ in range(300):
        spoilt = torch.rand((), generator=generator).item() < 0.3
        scaler.scale(model(torch.full((1, 3), torch.inf if spoilt else 1.0)).sum()).backward()
        schedule.before_update(scaled=True)
        used.append([float(group["lr"]) for group in optimizer.param_groups])
        wanted.append([float(group["lr"]) for group in expected_optimizer.param_groups])
        scaler.step(optimizer)
        found_inf = next(iter(scaler._found_inf_per_device(optimizer).values()))
        zero = torch.zeros(())
        schedule.after_update(type("Tensors", (), {"found_inf": found_inf, "scale": zero})())
        scaler.update()
        optimizer.zero_grad()
        if not spoilt:
            expected_optimizer.step()
            expected.step()
    assert isinstance(optimizer.param_groups[0]["lr"], Tensor), "where the device counts"
    assert torch.allclose(torch.tensor(used), torch.tensor(wanted), rtol=1e-6, atol=0.0)
    state = schedule.state_dict()
    assert state["last_epoch"] == expected.state_dict()["last_epoch"]
    held = [group["lr"] for group in optimizer.param_groups]
    assert held == [group["lr"] for group in expected_optimizer.param_groups]


FUSED_SGD = partial(SGD, momentum=0.9, fused=True)


@pytest.mark.parametrize(
    ("kind", "scheduler", "follows", "reason"),
    [
        (FUSED_SGD, lambda o: OneCycleLR(o, 0.1, total_steps=2000), False, "OneCycleLR changes more"),
        (FUSED_SGD, lambda o: OneCycleLR(o, 0.1, total_steps=20, cycle_momentum=False), True, ""),
        (partial(Adam, fused=True), lambda o: ExponentialLR(o, 0.9), True, ""),
        (Adam, lambda o: ExponentialLR(o, 0.9), False, "Adam cannot read its"),
    ],
    ids=["momentum too", "ends before the table", "fused", "not fused"],
)
def test_a_device_follows_what_changes_nothing_but_the_rate_of_a_fused_optimizer(
    kind: Any, scheduler: Any, follows: bool, reason: str
) -> None:
    optimizer = kind(nn.Linear(3, 2).parameters(), lr=0.1)
    schedule = followed(optimizer, scheduler(optimizer))
    before = [dict(group) for group in optimizer.param_groups]
    schedule.before_update(scaled=False)
    assert not isinstance(optimizer.param_groups[0]["lr"], Tensor), "no step of these can be skipped"
    schedule.before_update(scaled=True)
    assert isinstance(optimizer.param_groups[0]["lr"], Tensor) == follows, "where the device counts"
    assert schedule.reason_to_wait.startswith(reason)
    assert bool(schedule.reason_to_wait) == (not follows)
    if not follows:
        assert [dict(group) for group in optimizer.param_groups] == before


def test_a_schedule_of_another_interval_is_refused() -> None:
    class Wrong(Tiny):
        scheduler_interval: ClassVar[Any] = "steps"

        def build_scheduler(self, optimizer: Optimizer, total_steps: int | None) -> Any:
            return ExponentialLR(optimizer, 0.9)

    with pytest.raises(ExperimentError, match="scheduler_interval is 'steps'; set it to \"step\" or"):
        prepare(Wrong())
