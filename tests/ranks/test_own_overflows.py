"""Whose own numbers were not finite: what a rank keeps of its steps, and what rank 0 makes of all rows."""

import math

import pytest
import torch
from torch import Tensor, nn

from amptui.engine.probes.budget import SEARCH_STEPS, STEPS_AFTER_TROUBLE
from amptui.ranks.agreement.rows import RankNumbers, RankRow, RankRows
from amptui.ranks.numbers.meter import RankReport
from amptui.ranks.numbers.own_overflows import OwnOverflows
from amptui.ranks.numbers.trouble_states import (
    FINITE,
    GRADIENTS,
    LOSS,
    REPORTED_STEPS,
    UNKNOWN,
    packed,
    ranks_at_fault,
    unpacked,
)
from amptui.records.ranks import RanksOverflowed, RanksSampled
from tests.tiny import Log

CPU = torch.device("cpu")


class Steps:
    """Makes steps of a small model on ``device`` whose last layer can give Inf."""

    def __init__(self, device: torch.device = CPU) -> None:
        self.model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).to(device)
        self.own = OwnOverflows(list(self.model.parameters()), device)
        self.device, self.number = device, 0

    def step(self, *, scaled: bool = True, loss: float = 1.0, gradient: float = 1.0) -> int:
        """The step's number."""
        self.number += 1
        self.own.begin(1 if self.number == 1 else None, scaled=scaled)
        self.model.zero_grad()
        out: Tensor = self.model(torch.ones(1, 2, device=self.device)).sum()
        out.backward(torch.full_like(out, gradient))
        for parameter in self.model.parameters():  # the averages replace them
            parameter.grad = torch.zeros_like(parameter)
        self.own.keep(torch.full_like(out, loss))
        return self.number

    def state(self, step: int) -> int:
        """What is told of ``step`` after trouble in it."""
        self.own.judge(step)
        return unpacked(*self.own.told()).get(step, UNKNOWN)


@pytest.mark.parametrize(
    ("made", "state"),
    [
        ({}, FINITE),
        ({"gradient": math.inf}, GRADIENTS),
        ({"gradient": math.nan}, GRADIENTS),
        ({"loss": math.inf}, LOSS),
        ({"loss": math.nan, "gradient": math.inf}, LOSS),
        ({"scaled": False}, UNKNOWN),
        ({"scaled": False, "gradient": math.inf}, UNKNOWN),
        ({"scaled": False, "loss": math.inf}, LOSS),
    ],
)
def test_what_is_known_of_a_step(made: dict[str, float], state: int) -> None:
    steps = Steps()
    number = steps.step(**made)  # type: ignore[arg-type]
    steps.step()
    assert steps.own.overflowed is None
    assert steps.state(number) == state
    assert steps.own.overflowed == (None if state == UNKNOWN else int(state in (GRADIENTS, LOSS)))
    assert steps.own.bad_since == (number if state == LOSS else 0)


def test_gradients_are_checked_where_the_scale_is_searched_and_after_trouble_and_growth() -> None:
    steps = Steps()
    searched = [steps.step() for _ in range(SEARCH_STEPS)]
    later = steps.step()
    assert steps.state(later) == UNKNOWN  # and what follows is checked
    after = [steps.step() for _ in range(STEPS_AFTER_TROUBLE + 1)]
    steps.own.expect_growth(steps.number + 1)
    grown = [steps.step() for _ in range(STEPS_AFTER_TROUBLE + 2)]
    states = {number: steps.state(number) for number in [*searched[:2], *after, *grown]}
    known = [number for number, state in states.items() if state == FINITE]
    assert known == [*searched[:2], *after[:-1], *grown[1:-1]]


def test_a_row_of_losses_that_are_not_finite_begins_anew_after_a_while() -> None:
    steps = Steps()
    for _ in range(200):
        steps.step(loss=math.inf)
    for number, since in ((3, 3), (50, 3), (149, 3), (199, 3)):
        steps.own.judge(number)
        assert steps.own.bad_since == since
    for _ in range(110):
        steps.step(loss=math.inf)
    steps.own.judge(steps.number)
    assert steps.own.bad_since == steps.number


def test_a_model_without_own_gradients_tells_of_losses_alone() -> None:
    own = OwnOverflows([], CPU)
    own.begin(1, scaled=True)
    own.keep(torch.tensor(math.nan))
    own.judge(1)
    own.judge(2)  # of another process
    assert unpacked(*own.told()) == {1: LOSS}


def test_states_travel_in_one_float64() -> None:
    states = {
        100 - shift: (UNKNOWN, FINITE, GRADIENTS, LOSS)[shift % 4] for shift in range(REPORTED_STEPS + 9)
    }
    number = packed(100, states)
    assert int(float(number)) == number
    assert unpacked(100, number) == {
        step: state for step, state in states.items() if state and step > 100 - REPORTED_STEPS
    }


@pytest.mark.parametrize(
    ("states", "ranks"),
    [
        ([FINITE, GRADIENTS, FINITE], [1]),
        ([LOSS, GRADIENTS, FINITE], [0, 1]),
        ([UNKNOWN, GRADIENTS, FINITE], []),
        ([UNKNOWN, GRADIENTS, LOSS], [2]),
        ([UNKNOWN, LOSS, UNKNOWN], [1]),
        ([GRADIENTS, LOSS, GRADIENTS], []),
        ([FINITE, FINITE], []),
        ([UNKNOWN, UNKNOWN], []),
    ],
)
def test_ranks_are_named_where_that_is_known_and_tells_something(states: list[int], ranks: list[int]) -> None:
    assert ranks_at_fault(states) == ranks


def numbers(*states: tuple[int, int], overflowed: float = math.nan) -> RankNumbers:
    """A rank's, with so many judged steps and states."""
    newest = max((step for step, _ in states), default=0)
    told = {"trouble_step": newest, "trouble_states": packed(newest, dict(states))}
    return RankNumbers(steps=1, last_step=50, overflowed=overflowed, **told)


def test_rank_0_names_ranks_once_all_have_told() -> None:
    log = Log()
    report = RankReport(log.emit)

    def take(*ranks: RankNumbers) -> list[tuple[int, tuple[int, ...]]]:
        del log[:]
        report.take(RankRows([RankRow(1, each.last_step, numbers=each).values() for each in ranks]))
        return [(each.step, each.ranks) for each in log.of(RanksOverflowed)]

    assert take(numbers(), numbers((40, GRADIENTS), overflowed=1)) == []
    (sample,) = log.of(RanksSampled)
    assert sample.overflowed == (None, 1)
    assert take(numbers((40, FINITE)), numbers((40, GRADIENTS))) == [(40, (1,))]
    both = numbers((40, FINITE), (44, LOSS)), numbers((40, GRADIENTS), (44, FINITE), (45, LOSS))
    assert take(*both) == [(44, (0,))]
    assert take(*both) == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
def test_on_a_gpu_it_is_the_same() -> None:
    steps = Steps(torch.device("cuda", 0))
    torch.cuda.set_sync_debug_mode("error")
    try:
        made = [steps.step(), steps.step(gradient=math.inf), steps.step(loss=math.nan)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    assert [steps.state(number) for number in made] == [FINITE, GRADIENTS, LOSS]
