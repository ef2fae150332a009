"""In whatever order a loop calls its scaler, each step is seen with its loss, scale and fate."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from tests.builders import StepRow, of
from tests.loops.script.seen_steps import watching

Action = Literal["unscale", "clip", "scaler.step", "step", "update"]
ACTIONS: tuple[Action, ...] = ("unscale", "clip", "scaler.step", "step", "update")

HUGE = 1e37
"""Times the loss scale it is beyond float32."""


@dataclass(frozen=True)
class Turn:
    """One turn of a loop with two optimizers."""

    clears: bool
    trained: tuple[bool, bool]
    """Whether the loss has gradients for each."""
    overflows: bool
    actions: tuple[tuple[Action, int], ...]
    """What is called, and of which optimizer; what torch refuses is left out."""


turns = st.builds(
    Turn,
    clears=st.sampled_from([True, True, True, False]),
    trained=st.sampled_from([(True, True), (True, False), (False, True)]),
    overflows=st.sampled_from([False, False, False, True]),
    actions=st.lists(st.tuples(st.sampled_from(ACTIONS), st.sampled_from([0, 1])), max_size=8).map(
        lambda actions: (*actions, ("update", 0))
    ),
)


@dataclass
class Made:
    """A step as the loop itself knows it."""

    loss: float | None
    """The sum of the losses whose gradients it uses and no step before it has used; None without any."""
    scale: float
    skipped: bool


class Loop:
    """Calls what the turns say, and writes down each step."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.models = nn.Linear(3, 1), nn.Linear(3, 1)
        self.optimizers = [torch.optim.SGD(model.parameters(), lr=1e-3) for model in self.models]
        self.scaler = GradScaler("cpu", init_scale=64.0, growth_interval=3)
        self.made: tuple[list[Made], list[Made]] = ([], [])
        self._losses: list[list[float]] = [[], []]

    def run(self, turn: Turn) -> None:
        if turn.clears:
            for number, optimizer in enumerate(self.optimizers):
                optimizer.zero_grad()
                self._losses[number].clear()
        outputs = [
            m(torch.ones(2, 3)).square().mean() for m, on in zip(self.models, turn.trained, strict=True) if on
        ]
        loss: Tensor = sum(outputs, torch.tensor(1.0)) * (HUGE if turn.overflows else 1.0)
        self.scaler.scale(loss).backward()
        for number, is_trained in enumerate(turn.trained):
            if is_trained:
                self._losses[number].append(loss.item())
        for action, number in turn.actions:
            self._do(action, number)

    def _do(self, action: Action, number: int) -> None:
        optimizer, scaler = self.optimizers[number], self.scaler
        gradients = [p.grad for p in self.models[number].parameters() if p.grad is not None]
        scale = scaler.get_scale()
        try:
            if action == "unscale":
                scaler.unscale_(optimizer)
            elif action == "clip":
                nn.utils.clip_grad_norm_(self.models[number].parameters(), 1.0)
            elif action == "scaler.step":
                is_finite = all(bool(g.isfinite().all()) for g in gradients)
                scaler.step(optimizer)
                self._note(number, scale, skipped=not is_finite)
            elif action == "step":
                if gradients and all(bool(g.isfinite().all()) for g in gradients):
                    optimizer.step()
                    self._note(number, scale, skipped=False)
            else:
                scaler.update()
        except (RuntimeError, AssertionError):
            pass  # out of torch's order

    def _note(self, number: int, scale: float, *, skipped: bool) -> None:
        losses = self._losses[number]
        self.made[number].append(Made(sum(losses) if losses else None, scale, skipped))
        losses.clear()


def differs(row: StepRow, made: Made) -> str:
    """What a row says that is not so; nothing if all is true, or left out."""
    if row.skipped != made.skipped:
        return f"skipped {row.skipped}"
    if row.loss_scale is not None and row.loss_scale != made.scale:
        return f"scale {row.loss_scale}"
    if row.loss is not None and not (made.loss and math.isclose(row.loss, made.loss, rel_tol=1e-5)):
        return f"loss {row.loss}"
    return ""


@given(st.lists(turns, min_size=1, max_size=8))
def test_each_step_is_seen_and_true(plan: list[Turn]) -> None:
    loop = Loop()
    with watching(loop.models[0], loop.optimizers[0]) as records:
        for turn in plan:
            loop.run(turn)
    rows = of(StepRow, records)
    seen = [row for row in rows if not row.optimizer], [row for row in rows if row.optimizer]
    for number in (0, 1):
        assert len(seen[number]) == len(loop.made[number])
        wrong = [differs(row, made) for row, made in zip(seen[number], loop.made[number], strict=True)]
        assert not any(wrong), (number, wrong, loop.made[number])
