"""Eager steps between compiled ones, which measure what compiling gains."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from amptui.engine.prepared import Prepared
from amptui.records.control import ComparisonRequest, Control, StopRequest
from amptui.records.findings import FlopsCounted, ModelCompiled, PrecisionsCompared
from amptui.records.run import PrecisionChanged
from amptui.records.steps import StepRecord
from tests.engine.compiled_runs import compiled, failing_in_autocast, nothing_compiled
from tests.tiny import Log, Tiny, losses, prepare, train


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    with nothing_compiled():
        yield


def counting_backend(calls: list[str]) -> Callable[..., Any]:
    """Counts the forward passes in training that compiled code makes, by the dtype of autocast."""

    def backend(graph: torch.fx.GraphModule, _inputs: list[Tensor]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            calls.append("bf16" if torch.is_autocast_enabled("cpu") else "fp32")
            return graph.forward(*args)

        return run

    return backend


def compared(prepared: Prepared, *precisions: str) -> Log:
    """A run that compares precisions eagerly and compiled, and goes on a little."""
    control = Control()
    control.ask(ComparisonRequest(precisions, eager=True))
    log = Log()

    def stop_after(record: object) -> None:
        if isinstance(record, PrecisionsCompared) and record.over:
            control.ask(StopRequest("compared"))

    log.watch = stop_after
    train(prepared, log, control)
    return log


@pytest.mark.ci
def test_steps_alternate_between_eager_and_compiled_and_only_those_meant_to_be_are_compiled() -> None:
    calls: list[str] = []
    prepared = prepare(Tiny(epochs=200), validation=False, max_rounds=3)
    log = compared(compiled(prepared, counting_backend(calls)), "fp32", "bf16")
    steps = log.of(StepRecord)
    ran = Counter(record.precision for record in steps)
    assert set(ran) == {"fp32 eager", "fp32", "bf16 eager", "bf16"}
    assert Counter(calls) == {name: ran[name] for name in ("fp32", "bf16")}
    assert {(record.precision, record.what) for record in log.of(ModelCompiled)} == {
        ("fp32", "first"),
        ("bf16", "first"),
    }
    order = [record.current for record in log.of(PrecisionChanged)]
    sides = ["fp32 eager", "fp32", "bf16 eager", "bf16"]
    there_and_back = [*sides, *sides[-2::-1], *sides[1:]]
    assert order[: len(there_and_back)] == there_and_back
    result = log.of(PrecisionsCompared)[-1]
    assert (result.baseline, result.rounds) == ("fp32 eager", 3)
    assert [row.precision for row in result.rows] == sides
    assert [(pair.precision, pair.than) for pair in result.pairs] == [
        ("fp32", "fp32 eager"),
        ("bf16", "bf16 eager"),
        ("bf16", "fp32"),
    ]
    assert all(pair.speedup_low and pair.speedup_low < pair.speedup for pair in result.pairs)
    counted = {record.precision: record for record in log.of(FlopsCounted)}
    assert set(counted) == {"fp32 eager", "bf16 eager"}, "compiled code hides its operations"


@pytest.mark.ci
def test_eager_steps_compute_what_a_run_that_does_not_compile_does() -> None:
    prepared = prepare(Tiny(epochs=200), validation=False, max_rounds=2)
    log = compared(compiled(prepared), "fp32")
    plain = Log()
    train(prepare(Tiny(epochs=200), validation=False, steps=len(log.of(StepRecord))), plain)
    assert losses(log) == pytest.approx(losses(plain), rel=1e-3)
    first = [record.loss for record in log.of(StepRecord) if record.precision == "fp32 eager"][:10]
    assert first == losses(plain)[:10], "bit for bit until compiled steps follow"


@pytest.mark.ci
def test_a_compiled_precision_that_fails_leaves_the_eager_one() -> None:
    prepared = prepare(Tiny(epochs=200), validation=False, max_rounds=2)
    result = compared(compiled(prepared, failing_in_autocast), "fp32", "bf16").of(PrecisionsCompared)[-1]
    assert [row.precision for row in result.rows] == ["fp32 eager", "fp32", "bf16 eager"]
    assert list(result.failed) == ["bf16"]
    assert [(pair.precision, pair.than) for pair in result.pairs] == [("fp32", "fp32 eager")]
