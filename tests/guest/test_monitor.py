"""observe() sees every step of a hand-written loop, and changes none of its bits.

The same optimizer may be watched twice, and several monitors end in any order: nothing of theirs stays.
"""

import copy
import pickle
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import amptui
from amptui.probes.probe import Cadence
from amptui.records.run import EpochFinished, Note, Record, RunFinished, RunStarted, StepSkipped
from tests.builders import StepRow, of, read, view_of
from tests.builders import recorded as records
from tests.loops.loop_watchers import torch_state
from tests.observed import Loop, same_bits


def test_an_overflow_without_a_measured_norm_is_called_what_it_was(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop("fp16", clip=True)
    monkeypatch.setattr(Cadence, "due", lambda _self: False)
    with amptui.observe(loop.model, loop.optimizer, loop.scaler):
        loop.optimizer.zero_grad()
        weight = loop.model.get_parameter("2.weight")
        weight.register_hook(lambda gradient: gradient + torch.full_like(gradient, torch.inf))
        loop.train_step(1)
    (skip,) = of(StepSkipped, records(runs))
    assert (skip.names, skip.kinds, skip.count) == (("2.weight",), ("inf",), 1)


def test_what_the_loop_logs_belongs_to_the_step_just_made(runs: Path) -> None:
    loop = Loop("fp32")
    with amptui.observe(loop.model, loop.optimizer, samples_per_step=8) as watched:
        for step in range(1, 7):
            loss = loop.train_step(step)
            if step % 2:
                watched.log(loss=loss * 2, number=float(step), tensor=torch.tensor([step / 2]))
            loop.losses.append(loss.item())
    steps = of(StepRow, records(runs))
    doubled = [loss * 2 if step % 2 else loss for step, loss in enumerate(loop.losses, 1)]
    assert [record.loss for record in steps] == pytest.approx(doubled)
    logged = [{"number": step, "tensor": step / 2} if step % 2 else {} for step in range(1, 7)]
    assert [record.losses for record in steps] == logged
    assert {record.samples for record in steps} == {8}


def test_what_is_no_number_is_left_out_with_one_warning(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = Loop("fp32")
    with amptui.observe(loop.model, loop.optimizer) as watched:
        for step in range(1, 4):
            loop.train_step(step)
            watched.log(before=1.0, wide=torch.zeros(2), word="one", after=2.0)  # type: ignore[arg-type]
    warnings = capsys.readouterr().err
    assert (warnings.count("wide"), warnings.count("word")) == (1, 1)
    assert [record.losses for record in of(StepRow, records(runs))] == [{"before": 1.0, "after": 2.0}] * 3


class Bell:
    """A number that is asked for as the alarm comes, and the script's handler of it."""

    def ring(self, *_: object) -> None:
        raise TimeoutError

    __call__ = ring

    def __float__(self) -> float:
        signal.raise_signal(signal.SIGUSR1)
        return 0.0


@pytest.mark.parametrize("handler", [Bell().ring, Bell(), partial(Bell.ring, Bell())], ids=type)
def test_what_a_handler_of_the_script_raises_in_our_work_reaches_the_script(
    handler: Callable[..., Any], runs: Path
) -> None:
    loop, bell = Loop("fp32"), Bell()
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with amptui.observe(loop.model, loop.optimizer) as watched:
            for step in range(1, 4):
                loop.train_step(step)
                with pytest.raises(TimeoutError):
                    watched.log(late=bell)  # type: ignore[arg-type]
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(of(StepRow, records(runs))) == 3


@pytest.mark.parametrize(
    ("epochs_argument", "start_step", "epochs", "total_epochs", "total_steps"),
    [
        (2, 0, [1, 2], 2, 4),
        (range(2), 0, [1, 2], 2, 4),
        (range(1, 3), 0, [1, 2], 2, 4),
        (range(1, 3), 2, [2, 3], 3, 6),
        (range(4, 0, -2), 0, [1, 2], 2, 4),
        (range(10, 10), 0, [], 0, None),
        ((epoch for epoch in (10, 11)), 0, [1, 2], 0, None),
    ],
    ids=["count", "range", "from one", "from one at a step", "downward", "empty", "generator"],
)
def test_epochs_have_the_script_s_numbers_counted_from_1(
    epochs_argument: Any,
    start_step: int,
    epochs: list[int],
    total_epochs: int,
    total_steps: int | None,
    runs: Path,
) -> None:
    loop = Loop("fp32")
    with amptui.observe(loop.model, loop.optimizer, start_step=start_step) as watched:
        for _ in watched.epochs(epochs_argument):
            for step in watched.steps([1, 2]):
                loop.train_step(step)
        if not epochs:
            loop.train_step(1)
    journal = records(runs)
    ends = of(EpochFinished, journal)
    assert [(record.epoch, record.step) for record in ends] == [
        (epoch, start_step + 2 * count) for count, epoch in enumerate(epochs, 1)
    ]
    if epochs:
        assert [record.epoch for record in of(StepRow, journal)] == [epoch for epoch in epochs for _ in "12"]
    (started,) = of(RunStarted, journal)
    assert (started.total_epochs, started.total_steps) == (total_epochs, total_steps)


@pytest.mark.parametrize("way", ["observe", "watch"])
def test_a_resumed_script_s_steps_go_on_counting(way: str, runs: Path) -> None:
    loop = Loop("fp32")
    monitor = getattr(amptui, way)(loop.model, loop.optimizer, start_step=torch.tensor(1000))
    with monitor:
        for step in range(1, 4):
            loop.train_step(step)
    journal = records(runs)
    assert [record.step for record in of(StepRow, journal)] == [1001, 1002, 1003]
    assert of(RunFinished, journal)[0].steps == 1003
    assert view_of(*journal).step == 1003


@pytest.mark.parametrize(
    ("way", "option", "value", "error", "says"),
    [
        ("observe", "start_step", -1, ValueError, "^start_step must "),
        ("watch", "start_step", "1", TypeError, "as an integer"),
        ("observe", "model", 1, TypeError, "^model must "),
        ("observe", "optimizer", "adam", TypeError, "^optimizer must "),
        ("observe", "scaler", 2.0, TypeError, "^scaler must "),
        ("watch", "precision", "fp4", ValueError, "'fp4' is not one of fp32, ieee, tf32, fp16"),
        ("watch", "precision", "tf32", ValueError, "TF32 needs an NVIDIA GPU"),
        ("watch", "amp", "tf32", ValueError, "'tf32' is not one of fp16, bf16"),
        ("watch", "scaler", torch.amp.GradScaler("cpu", enabled=False), ValueError, "scaler is disabled"),
    ],
)
def test_wrong_arguments_are_refused(
    way: str, option: str, value: Any, error: type[Exception], says: str, runs: Path
) -> None:
    loop = Loop("fp32")
    arguments = {"model": loop.model, "optimizer": loop.optimizer} | {option: value}
    with pytest.raises(error, match=says):
        getattr(amptui, way)(**arguments)
    assert not runs.exists()


# ------------------------------------------------------------------------------ a good guest


@pytest.mark.torch
def test_copies_of_what_is_observed_know_nothing_of_it() -> None:
    loop = Loop("fp16")
    with amptui.observe(loop.model, loop.optimizer, loop.scaler):
        loop.run(2)
        optimizer, scaler = copy.deepcopy(loop.optimizer), copy.deepcopy(loop.scaler)
        again = pickle.loads(pickle.dumps(loop.scaler))  # noqa: S301 - our own
        assert again.get_scale() == loop.scaler.get_scale()
    assert type(optimizer) is torch.optim.AdamW
    assert getattr(scaler.step, "__self__", None) is scaler


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
