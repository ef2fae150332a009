"""The same optimizer watched twice, and several monitors that end in any order: nothing of theirs stays."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import amptui
from amptui.records.run import Note, Record, RunFinished
from tests.builders import StepRow, of, read
from tests.loops.loop_watchers import torch_state
from tests.observed import Loop, same_bits


def runs_in_order(runs: Path) -> list[list[Record]]:
    """What each run has recorded, the first one opened first."""
    journals = [list(read(folder / "journal.jsonl")) for folder in runs.iterdir()]
    return sorted(journals, key=lambda records: records[0].time)


def train(loop: Loop, steps: range) -> list[float]:
    return [loop.train_step(step).item() for step in steps]


@pytest.mark.parametrize(("first", "second"), [("observe", "watch"), ("watch", "observe")])
@pytest.mark.torch
def test_a_second_monitor_of_an_optimizer_takes_it_over(first: str, second: str, runs: Path) -> None:
    bare, loop, before = Loop("fp16"), Loop("fp16"), torch_state()
    truth = train(bare, range(1, 9))
    one = getattr(amptui, first)(loop.model, loop.optimizer)
    losses = train(loop, range(1, 4))
    other = getattr(amptui, second)(loop.model, loop.optimizer)
    losses += train(loop, range(4, 9))
    other.close()
    one.close()
    assert torch_state() == before
    assert losses == truth
    assert same_bits(loop, bare)
    of_one, of_other = runs_in_order(runs)
    (finished,) = of(RunFinished, of_one)
    assert (finished.reason, finished.steps) == ("done", 3)
    assert [note.severity for note in of(Note, of_one) if "another monitor watches" in note.text] == ["info"]
    assert [step.loss for step in of(StepRow, of_one)] == pytest.approx(truth[:3])
    steps = of(StepRow, of_other)
    assert [step.step for step in steps] == [1, 2, 3, 4, 5]
    assert [step.loss for step in steps] == pytest.approx(truth[3:])
    assert {step.loss_scale for step in steps} == {2.0**16}
    assert not [note for note in of(Note, of_other) if "another monitor" in note.text]


@pytest.mark.ci
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)], ids=str)
def test_monitors_that_close_in_any_order_leave_torch_as_it_was(
    order: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what somebody else has put around it meanwhile."""
    before, loops, calls = torch_state(), [Loop("fp16") for _ in range(3)], list[int]()
    backward = torch.autograd.backward

    def theirs(*args: Any, **kwargs: Any) -> None:
        calls.append(1)
        passed_on(*args, **kwargs)

    monitors = [amptui.observe(loops[0].model, loops[0].optimizer)]
    passed_on = torch.autograd.backward
    monkeypatch.setattr(torch.autograd, "backward", theirs)
    monitors += [amptui.observe(loop.model, loop.optimizer) for loop in loops[1:]]
    for index in order:
        for loop in loops:
            loop.run(2)
        monitors[index].close()
    assert torch_state() == before | {"torch.autograd.backward": theirs}
    assert before["torch.autograd.backward"] is backward
    loops[0].run(1)  # theirs passes on to what torch had
    assert len(calls) == 3 * 3 * 2 + 1


def test_a_hook_of_somebody_else_stays_in_front_and_ours_passes_errors_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(sys, "excepthook", lambda *_: calls.append("before"))
    before, loop = sys.excepthook, Loop("fp32")
    monitor = amptui.observe(loop.model, loop.optimizer)
    behind = sys.excepthook

    def theirs(*args: Any) -> None:
        calls.append("theirs")
        behind(*args)

    sys.excepthook = theirs
    monitor.close()
    assert sys.excepthook is theirs
    theirs(ValueError, ValueError(), None)
    assert calls == ["theirs", "before"]
    sys.excepthook = before
