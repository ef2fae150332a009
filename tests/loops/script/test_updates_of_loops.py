"""Update ratios in other people's loops: of the optimizer that made the step, unless it was skipped."""

from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import amptui
from amptui.probes import update_ratios
from amptui.records.findings import UpdatesMeasured
from tests.builders import StepRow, of
from tests.builders import recorded as records
from tests.loops.script.seen_steps import batches, loss_of, net, sgd, watching
from tests.observed import OVERFLOWS, Loop

STEPS = 60


@pytest.fixture
def each_step_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update_ratios, "UPDATES_BUDGET", 1e9)
    monkeypatch.setattr(update_ratios, "GAP_STEPS", 1)
    monkeypatch.setattr("amptui.monitor.monitor.Monitor.look_interval_seconds", 0.0)


def moved(model: nn.Module, before: list[Tensor]) -> dict[str, float]:
    """The ratios of layers named by their parameters' names, from full copies."""
    parts: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for (name, new), old in zip(model.named_parameters(), before, strict=True):
        parts.setdefault(name.rpartition(".")[0], []).append((new.detach().double(), old.double()))
    return {
        layer: float(
            torch.stack([(new - old).norm() for new, old in pairs]).norm()
            / torch.stack([old.norm() for _, old in pairs]).norm()
        )
        for layer, pairs in parts.items()
    }


@pytest.mark.usefixtures("each_step_is_measured")
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_measured_step_has_the_ratios_of_full_copies_and_a_skipped_one_none(
    precision: str, runs: Path
) -> None:
    loop, expected, skipped = Loop(precision, clip=True, accumulate=2), [], set()
    with amptui.observe(loop.model, loop.optimizer, loop.scaler):
        for step in range(1, STEPS + 1):
            before = [p.detach().clone() for p in loop.model.parameters()]
            scale = loop.scaler.get_scale()
            loop.train_step(step)
            expected.append(moved(loop.model, before))
            if loop.scaler.get_scale() < scale:
                skipped.add(step)
    measured = {record.step: record.ratios for record in of(UpdatesMeasured, records(runs))}
    assert skipped >= {step for step in OVERFLOWS if step <= STEPS and precision == "fp16"}
    assert set(measured) == set(range(1, STEPS + 1)) - skipped
    for step, ratios in measured.items():
        assert ratios == pytest.approx(expected[step - 1], rel=1e-3)


def test_a_step_that_raises_leaves_nothing_for_the_next_one() -> None:
    model = net()
    optimizer, fails = sgd(model), [True]

    def fail(*_: object) -> None:
        if fails:
            fails.pop()
            raise ValueError("not now")

    optimizer.register_step_post_hook(fail)
    with watching(model, optimizer) as seen:
        for batch in batches(2):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            before = [p.detach().clone() for p in model.parameters()]
            with suppress(ValueError):
                optimizer.step()
    (record,) = of(UpdatesMeasured, seen)
    assert record.step == 1, "the first was not complete"
    assert record.ratios == pytest.approx(moved(model, before), rel=1e-3)


@pytest.mark.usefixtures("each_step_is_measured")
def test_what_a_loop_logs_after_several_steps_belongs_to_them(runs: Path) -> None:
    """Nothing that measures the last optimizer's step looks like the beginning of the first one's next."""
    models = {"first": net(), "second": net()}
    pairs = {name: (model, sgd(model)) for name, model in models.items()}
    with amptui.observe(pairs) as monitor:
        for step, batch in enumerate(batches(), 1):
            for model, optimizer in pairs.values():
                optimizer.zero_grad()
                loss_of(model, batch).backward()
            for _, optimizer in pairs.values():
                optimizer.step()
            monitor.log(number=float(step))
    steps = [record for record in of(StepRow, records(runs)) if not record.optimizer]
    assert [record.losses for record in steps] == [{"number": float(record.step)} for record in steps]
