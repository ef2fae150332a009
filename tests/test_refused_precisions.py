"""watch() refuses precisions that would break a script, and says when a switch changed nothing."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import amptui
from amptui import AmpMonitor
from amptui.records.answers import RequestMade, RequestRefused
from amptui.records.findings import PrecisionsCompared
from amptui.records.run import Note, PrecisionChanged, RunStarted
from tests.builders import StepRow, of
from tests.builders import recorded as records
from tests.own_loops import Own, ask

pytestmark = pytest.mark.torch

REASONS = {
    "float16 weights": "GradScaler cannot unscale gradients of float16 weights",
    "LBFGS": "LBFGS calls its closure again, which no GradScaler allows",
}


def net(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).to(dtype)


def script(kind: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    if kind == "LBFGS":
        model = net()
        return model, torch.optim.LBFGS(model.parameters(), max_iter=2)
    model = net(torch.float16)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def batch(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    return torch.randn(6, 4, generator=torch.Generator().manual_seed(2)).to(dtype), torch.arange(6) % 2


def train(
    monitor: AmpMonitor, model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, **asked: Any
) -> None:
    """Train in the optimizer's own way; ``asked``: requests by ``at_`` and the number of the step."""
    inputs, labels = batch(next(model.parameters()).dtype)

    def closure() -> Tensor:
        optimizer.zero_grad()
        with monitor.autocast():
            loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        return loss

    for step in range(1, steps + 1):
        if (request := asked.get(f"at_{step}")) is not None:
            ask(monitor, request)
        closures: tuple[Any, ...] = (closure,) if isinstance(optimizer, torch.optim.LBFGS) else ()
        if not closures:
            closure()
        optimizer.step(*closures)


def warnings_of(runs: Path) -> list[str]:
    return [note.text for note in of(Note, records(runs)) if note.severity == "warning"]


@pytest.mark.parametrize("kind", REASONS)
@pytest.mark.parametrize("option", ["precision", "amp"])
def test_fp16_is_refused_where_no_scaler_can_work(kind: str, option: str, runs: Path) -> None:
    model, optimizer = script(kind)
    options: dict[str, Any] = {option: "fp16"}
    with pytest.raises(ValueError, match=f"precision fp16: {REASONS[kind]}"):
        amptui.watch(model, optimizer, **options)
    other = net()
    pairs = {"first": (other, torch.optim.SGD(other.parameters())), "second": (model, optimizer)}
    with pytest.raises(ValueError, match=f"precision fp16: {REASONS[kind]}"):
        amptui.watch(pairs, **options)
    assert not runs.exists()


@pytest.mark.parametrize("kind", REASONS)
def test_the_request_for_fp16_is_refused_with_the_reason_while_it_runs(kind: str, runs: Path) -> None:
    model, optimizer = script(kind)
    with amptui.watch(model, optimizer) as monitor:
        train(monitor, model, optimizer, 5, at_2=RequestMade("precision", precision="fp16"))
        assert monitor.precision == "fp32"
    (refused,) = of(RequestRefused, records(runs))
    assert (refused.request.precision, refused.reason) == ("fp16", "unavailable")
    assert REASONS[kind] in refused.detail
    assert not of(PrecisionChanged, records(runs))
    (started,) = of(RunStarted, records(runs))
    assert started.unsupported["fp16"] == REASONS[kind]
    assert len(of(StepRow, records(runs))) == 5


def test_a_switch_that_changes_nothing_is_told_once_and_not_compared(runs: Path) -> None:
    model = net(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with amptui.watch(model, optimizer) as monitor:
        train(monitor, model, optimizer, 12, at_4=RequestMade("precision", precision="bf16"))
        before = len(warnings_of(runs))
        train(monitor, model, optimizer, 40, at_2=RequestMade("comparison", precisions=("fp32", "bf16")))
    found = records(runs)
    assert {step.precision for step in of(StepRow, found)} == {"bf16 weights"}
    (changed, *_) = of(PrecisionChanged, found)
    assert (changed.step, changed.current) == (5, "bf16")
    told = [text.partition(":")[0] for text in warnings_of(runs)]
    assert told[:2] == [f"steps in {name} were computed in bf16 weights" for name in ("fp32", "bf16")]
    assert before <= 2
    compared = of(PrecisionsCompared, found)[-1]
    assert (compared.over, compared.reason, compared.rounds) == (True, "stopped", 0)
    assert compared.failed == {"fp32": "steps in fp32 compute in bf16 weights"}
    assert {row.speedup for row in compared.rows} == {None}


@pytest.mark.parametrize("kind", ["forgotten", "entered once", "the script's own"])
def test_an_autocast_that_cannot_follow_is_told_at_once(runs: Path, kind: str) -> None:
    own, switches = Own(), kind == "entered once"
    asked, computed = ("fp32", "bf16") if kind == "the script's own" else ("bf16", "fp32")
    precision = "fp32" if switches else asked
    with own.watch(precision=precision) as monitor, monitor.autocast() if switches else nullcontext():
        for step, data in enumerate(monitor.steps(list(own.loader(8))), 1):
            if switches and step == 3:
                ask(monitor, RequestMade("precision", precision="bf16"))
            with torch.autocast("cpu", torch.bfloat16) if computed == "bf16" else nullcontext():
                loss = own.loss(data)
            monitor.backward(loss)
            monitor.step()
    found = records(runs)
    (told,) = [note for note in of(Note, found) if note.severity == "warning"]
    assert told.text.startswith(f"steps in {asked} were computed in {computed}")
    assert len(of(StepRow, found[: found.index(told)])) <= (4 if switches else 1)
    assert {step.precision for step in of(StepRow, found)} == {computed}
