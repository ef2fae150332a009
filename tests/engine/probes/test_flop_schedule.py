"""One step of each precision and input shape is counted, and none stands for steps of other shapes."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset

from amptui import Data, DataRequest
from amptui.engine.probes import flop_schedule
from amptui.engine.probes.flop_schedule import MAX_SHAPES, MAX_SIZES, FlopSchedule, step_inputs
from amptui.engine.setup import prepare_precisions
from amptui.records.findings import FlopsCounted
from amptui.records.steps import StepRecord
from tests.telemetry.record_samples import flops
from tests.tiny import Tiny, log_of, prepare

CPU = torch.device("cpu")
FP32 = prepare_precisions(CPU)[1]["fp32"]
EAGER = prepare_precisions(CPU)[1]["fp32"]
EAGER.eager = True


class Rows(Dataset[tuple[Tensor, Tensor]]):
    """Row i has ``lengths[i]`` entries of four numbers."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.rand(self.lengths[index], 4), torch.tensor(index % 4)


class Text(Tiny):
    """Sequences of the lengths in ``steps_of``, one a batch; ``labels`` adds a tensor of a new shape."""

    steps_of: str = "5,5,5"
    labels: bool = False

    def build_model(self) -> nn.Module:
        return nn.Linear(4, 4)

    def load_data(self, request: DataRequest) -> Data:
        lengths = [int(count) for count in self.steps_of.split(",") for _ in range(self.batch_size)]
        self.batches = 0
        rows = DataLoader(Rows(lengths), self.batch_size, collate_fn=self.collate_fn)
        return Data(name="rows", real=False, train=rows)

    def collate_fn(self, samples: list[Any]) -> Any:
        inputs, targets = zip(*samples, strict=True)
        self.batches += self.labels
        return torch.stack(inputs), torch.stack(targets), torch.rand(1 + self.batches)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        inputs, targets, _ = batch
        return functional.cross_entropy(model(inputs).mean(1), targets)


def counts_of(experiment: Tiny, *, at: dict[int, str] | None = None, **options: Any) -> list[FlopsCounted]:
    return log_of(prepare(experiment, validation=False, **options), at=at or {}).of(FlopsCounted)


def test_a_smaller_last_batch_is_counted_apart() -> None:
    class Uneven(Tiny):
        def load_data(self, request: DataRequest) -> Data:
            data = super().load_data(request)
            arrays: Any = data.train
            rows = TensorDataset(arrays.inputs.float(), arrays.targets)
            return replace(data, train=DataLoader(rows, self.batch_size), validation=None)

    log = log_of(prepare(Uneven(samples=28, epochs=3), validation=False), at={5: "bf16"})
    full, half, *others = log.of(FlopsCounted)
    first = [(count.precision, count.samples, count.step) for count in (full, half)]
    assert first == [("fp32", 8, 1), ("fp32", 4, 4)]
    assert full.flops == 2 * half.flops
    assert {(count.precision, count.samples) for count in others} == {("bf16", 8), ("bf16", 4)}
    assert not any(count.shapes_vary for count in log.of(FlopsCounted))
    settling = {record.step: record.settling for record in log.of(StepRecord)}
    assert all(settling[count.step] for count in log.of(FlopsCounted))


def test_accumulated_batches_make_one_step_of_all_their_samples() -> None:
    three, two = counts_of(Tiny(samples=40, epochs=1), accumulate=3)
    assert (three.samples, two.samples) == (24, 16)
    assert 2 * three.flops == 3 * two.flops


def test_inputs_of_other_lengths_make_every_count_untrue_and_end_the_counting() -> None:
    first, second = counts_of(Text(steps_of="5,5,7,9,5", epochs=2))
    counted = [(count.step, count.samples, count.shapes_vary) for count in (first, second)]
    assert counted == [(1, 8, False), (3, 8, True)]
    assert second.flops > first.flops


def test_shapes_that_cost_no_operations_are_no_matter() -> None:
    sized_inputs = counts_of(Text(labels=True, epochs=4))
    assert [(count.samples, count.shapes_vary) for count in sized_inputs] == [(8, False)] * MAX_SHAPES


# ------------------------------------------------------------------------------------- parts


def inputs(samples: int, *shapes: tuple[int, ...]) -> flop_schedule.StepInputs:
    return step_inputs([(samples, [torch.empty(shape) for shape in shapes])])


def watched() -> tuple[FlopSchedule, list[FlopsCounted]]:
    counts: list[FlopsCounted] = []
    return FlopSchedule(nn.Linear(4, 4), counts.append), counts


def test_a_length_that_comes_late_is_noticed_and_told_once() -> None:
    schedule, counts = watched()
    schedule.check(1, inputs(8, (8, 5)))
    schedule.add(flops(), inputs(8, (8, 5)))
    schedule.check(200, inputs(4, (4, 9)))
    schedule.check(201, inputs(8, (8, 5)))
    assert [count.shapes_vary for count in counts] == [False]
    schedule.check(202, inputs(8, (8, 9)))
    schedule.check(203, inputs(8, (8, 11)))
    assert [(count.step, count.shapes_vary) for count in counts] == [(1, False), (202, True)]
    assert not schedule.is_due(FP32, inputs(16, (16, 5)))


def test_another_precision_may_come_to_another_number() -> None:
    schedule, counts = watched()
    schedule.add(flops("fp32", flops=100), inputs(8, (8, 5)))
    schedule.add(flops("fp16", flops=90), inputs(8, (8, 5)))
    assert not any(count.shapes_vary for count in counts)


def test_so_many_sizes_are_counted_and_no_more() -> None:
    schedule, counts = watched()
    for size in range(1, 20):
        sized_inputs = inputs(size, (size, 5))
        if schedule.is_due(FP32, sized_inputs):
            schedule.add(flops(flops=100 * size), sized_inputs)
    assert [count.samples for count in counts] == list(range(1, MAX_SIZES + 1))


@pytest.mark.parametrize("part", [True, False])
def test_a_compiled_model_is_counted_only_where_all_of_it_runs_eagerly(
    part: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flop_schedule, "is_compiled", lambda _model, inside=False: part or not inside)
    schedule, _ = watched()
    assert not schedule.is_due(FP32, inputs(8, (8, 5)))
    assert schedule.is_due(EAGER, inputs(8, (8, 5))) is not part
