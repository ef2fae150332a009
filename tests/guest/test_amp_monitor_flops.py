"""Operations of train_step() are counted: torch's own number, and not a bit of the training changes."""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import amptui
from amptui import AmpMonitor
from amptui.engine.probes.flop_counter import FlopSchedule
from amptui.records.control import PrecisionRequest
from amptui.records.findings import FlopsCounted
from amptui.records.run import Note
from tests.builders import StepRow, of
from tests.builders import recorded as records
from tests.own_loops import ask

Batch = tuple[Tensor, Tensor]


@pytest.fixture(autouse=True)
def _nothing_compiled() -> None:
    torch.compiler.reset()


class Convolutional(nn.Module):
    """Has buffers and draws random numbers; ``before`` is called in the middle of each forward pass."""

    def __init__(self, before: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        layers = nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.Dropout(0.2), nn.Flatten(), nn.Linear(288, 4)
        self.layers, self.before = nn.ModuleList(layers), before

    def forward(self, inputs: Tensor) -> Tensor:
        for number, layer in enumerate(self.layers):
            inputs = layer(inputs)
            if number == 2:
                self.before()
        return inputs


class Training:
    """What :class:`Convolutional` learns, and a loop of functions."""

    def __init__(self, before: Callable[[], object] = lambda: None) -> None:
        torch.manual_seed(0)
        self.model = Convolutional(before)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)

    @staticmethod
    def batches(steps: int, samples: int = 8) -> list[Batch]:
        generator = torch.Generator().manual_seed(1)
        return [
            (torch.randn(samples, 1, 8, 8, generator=generator), torch.arange(samples) % 4)
            for _ in range(steps)
        ]

    def loss(self, batch: Batch) -> Tensor:
        return nn.functional.cross_entropy(self.model(batch[0]), batch[1])

    def train(self, steps: int = 15, before: Callable[[AmpMonitor, int], object] = lambda *_: None) -> None:
        with amptui.watch(self.model, self.optimizer) as monitor:
            for step, batch in enumerate(monitor.steps(self.batches(steps)), 1):
                before(monitor, step)
                monitor.train_step(partial(self.loss, batch))

    def state(self) -> list[list[float]]:
        moments = [state["momentum_buffer"] for state in self.optimizer.state.values()]
        return [
            tensor.tolist() for tensor in [*self.model.state_dict().values(), *moments, torch.get_rng_state()]
        ]


def uncounted(monkeypatch: pytest.MonkeyPatch) -> list[list[float]]:
    """What a training leaves behind of which nothing is counted."""
    bare = Training(lambda: not is_counting() or pytest.fail("counted"))
    with monkeypatch.context() as patch:
        patch.setattr(FlopSchedule, "is_due", lambda *_: False)
        bare.train()
    return bare.state()


def is_counting() -> bool:
    return torch._C._len_torch_dispatch_stack() > 0


def counted_by_torch(steps_batches: Iterable[Batch]) -> int:
    training = Training()
    with FlopCounterMode(display=False) as counter:
        for batch in steps_batches:
            training.loss(batch).backward()
    return int(counter.get_total_flops())


@pytest.mark.torch
def test_one_step_of_each_precision_has_the_number_that_torch_counts(runs: Path) -> None:
    training = Training()
    training.train(30, lambda monitor, step: ask(monitor, PrecisionRequest("bf16")) if step == 20 else None)
    fp32, bf16 = of(FlopsCounted, records(runs))
    assert fp32.flops == bf16.flops == counted_by_torch(training.batches(1))
    assert (fp32.precision, fp32.samples, fp32.flops_by_type) == ("fp32", 8, {"float32": fp32.flops})
    assert (bf16.precision, bf16.samples, bf16.flops_by_type) == ("bf16", 8, {"bfloat16": bf16.flops})
    assert not fp32.uncounted
    settling = {record.step: record.settling for record in of(StepRow, records(runs))}
    assert settling[fp32.step]
    assert settling[bf16.step]


def test_counting_changes_no_bit(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counting: list[bool] = []
    counted = Training(lambda: counting.append(is_counting()))
    counted.train()
    assert counting.count(True) == len(of(FlopsCounted, records(runs))) == 1
    assert counted.state() == uncounted(monkeypatch)


def test_a_model_that_cannot_be_counted_costs_one_note_and_no_bit(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        if is_counting():
            raise ValueError("no modes, please")

    odd = Training(refuse)
    odd.train()
    (note,) = [note for note in of(Note, records(runs)) if note.severity != "info"]
    assert note.severity == "warning"
    assert not of(FlopsCounted, records(runs))
    steps = of(StepRow, records(runs))
    assert [record.step for record in steps] == list(range(1, 16))
    assert odd.state() == uncounted(monkeypatch)


def test_an_error_of_the_scripts_own_passes_through_a_counted_step(runs: Path) -> None:
    raised: list[Exception] = []

    def fail() -> None:
        if is_counting() or raised:
            raised.append(RuntimeError("my own"))
            raise raised[-1]

    training = Training(fail)
    with pytest.raises(RuntimeError, match="my own") as caught:
        training.train()
    assert caught.value is raised[-1]
    assert not [note for note in of(Note, records(runs)) if "FLOP" in note.text]


def test_where_anything_is_compiled_no_step_runs_eagerly_to_be_counted(runs: Path) -> None:
    training = Training(lambda: None)
    compiled = torch.compile(training.loss, backend="eager")
    with amptui.watch(training.model, training.optimizer) as monitor:
        for batch in monitor.steps(training.batches(5)):
            monitor.train_step(partial(compiled, batch))
    assert len(of(StepRow, records(runs))) == 5
    assert not of(FlopsCounted, records(runs))
