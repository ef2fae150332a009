"""The host never waits for the device in a step, in whoever's loop, and few operators are added to it."""

from collections import Counter
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import amptui
from amptui import Data, DataRequest
from amptui.data.sources import Arrays
from amptui.records.answers import RequestMade
from amptui.records.findings import (
    Float16Window,
    ModulesTraced,
    PrecisionsCompared,
    UpdatesMeasured,
    XRayTaken,
)
from amptui.records.run import EpochFinished, Note, PrecisionChanged
from tests.builders import StepRow, of, recorded
from tests.observed import Loop
from tests.own_loops import FORMS, Form, Own
from tests.simcuda.training import FIRST_STEPS, Pairs, Small, run, run_plain

NOWHERE: Counter[str] = Counter()

PRECISIONS = pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])

CHECKED = range(FIRST_STEPS, 25)
"""Steps in which waits are errors."""


@pytest.mark.parametrize("probes", [True, False], ids=["probes", "no probes"])
@pytest.mark.parametrize("clip_norm", [None, 1.0], ids=["unclipped", "clipped"])
@PRECISIONS
def test_no_step_waits(precision: str, clip_norm: float | None, probes: bool) -> None:
    trained = run(precision=precision, clip_norm=clip_norm, probes=probes, steps=40)
    assert trained.marks.places() == NOWHERE
    assert len(trained.log.of(StepRow)) == 40
    # In fp16 the first steps are skipped; those that are measured later depend on the time.
    assert bool(trained.log.of(UpdatesMeasured)) == probes or precision == "fp16"


ORDER = ("fp16", "bf16", "fp32", "tf32", "ieee", "fp16", "fp32", "bf16", "ieee", "tf32", "fp16")


def test_no_toggle_waits() -> None:
    asks = {5 * (i + 1): RequestMade("precision", precision=name) for i, name in enumerate(ORDER)}
    trained = run(asks=asks, steps=60)
    changes = [(record.step, record.current) for record in trained.log.of(PrecisionChanged)]
    assert changes == [(5 * (i + 1) + 1, name) for i, name in enumerate(ORDER)]
    assert trained.marks.places() == NOWHERE


def test_no_comparison_waits() -> None:
    trained = run(asks={5: RequestMade("comparison", precisions=("fp32", "fp16", "bf16"))}, steps=120)
    assert len(trained.log.of(PrecisionsCompared)[-1].rows) == 3
    assert trained.marks.places() == NOWHERE


@pytest.mark.parametrize(
    ("request_", "answer"),
    [(RequestMade("trace"), ModulesTraced), (RequestMade("histogram"), Float16Window)],
)
@PRECISIONS
def test_no_trace_and_no_histogram_waits(precision: str, request_: RequestMade, answer: Any) -> None:
    trained = run(asks={20: request_}, steps=30, precision=precision)
    (found,) = [each for each in trained.log.of(answer) if each.step >= 21]
    assert answer is ModulesTraced or (found.squares or 0) > 0
    assert trained.marks.places() == NOWHERE


@PRECISIONS
def test_an_x_ray_waits_by_events_and_is_taken_where_waits_are_errors(precision: str) -> None:
    trained = run(asks={20: RequestMade("x-ray")}, waits_are_errors=CHECKED, steps=25, precision=precision)
    assert len(trained.log.of(XRayTaken)) == 1
    places = trained.marks.places()
    assert {place.partition(" ")[0] for place in places} == {"cudaEventSynchronize"}
    # What is under way is delivered first; then all that was found is read at once.
    assert sum(n for place, n in places.items() if "readback" not in place and "timeline" not in place) == 1


class Unfused(Small):
    """Its optimizer has a fused form, or has none."""

    kind: Literal["Adam", "SGD", "Adamax"] = "Adam"

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        kind: type[torch.optim.Optimizer] = getattr(torch.optim, self.kind)
        return kind(model.parameters(), lr=1e-3)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("kind", "hint"), [("Adam", "build Adam with fused=True"), ("Adamax", "Adamax has no fused form")]
)
def test_an_optimizer_for_which_torch_waits_is_told_of_once(kind: Any, hint: str) -> None:
    asks = {
        step: RequestMade("precision", precision="fp32" if step == 15 else "fp16") for step in (10, 15, 20)
    }
    trained = run(Unfused(kind=kind), asks=asks, steps=25)
    (note,) = [each for each in trained.log.of(Note) if "waits for the GPU" in each.text]
    assert note.text.endswith(f"; {hint}")
    waited = [step for step, waits in trained.marks.waits.items() if waits and step in CHECKED]
    assert waited == [*range(11, 16), *range(21, 25)]
    assert run(precision="fp16", steps=5).log.of(Note) == []


class Loaded(Small):
    """Comes from a person's loader, in batches of 288 KiB: too large to ride along with the commands."""

    samples: int = 160
    pinned: bool = False

    def load_data(self, request: DataRequest) -> Data:
        arrays = super().load_data(request).train
        assert isinstance(arrays, Arrays)
        samples = Pairs(arrays, repeats=8)
        loader = DataLoader(samples, self.batch_size, shuffle=True, pin_memory=self.pinned)
        return Data(name="noise", real=False, train=loader, validation=loader)

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.AvgPool2d(8), super().build_model())


@pytest.mark.parametrize("pinned", [True, False], ids=["pinned", "pageable"])
def test_no_batch_and_no_epoch_s_end_waits(pinned: bool) -> None:
    trained = run(Loaded(pinned=pinned), steps=70)
    assert len(trained.log.of(EpochFinished)) == 3
    assert trained.marks.places() == NOWHERE


STEPS = 40

SWITCHES = {12: "bf16", 24: "fp16", 50: "ieee", 60: "fp16"}


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_observing_adds_no_wait_and_sees_every_step(precision: str, runs: Path) -> None:
    loop = Loop(precision, fused=True, device="cuda")
    loop.train_step(1)  # torch's own first calls may wait
    with amptui.observe(loop.model, loop.optimizer, loop.scaler) as monitor:
        loop.train_step(2)

        def log(loss: Tensor) -> Tensor:
            monitor.log(again=loss)
            return loss

        torch.cuda.set_sync_debug_mode("error")
        try:
            losses = [log(loop.train_step(step)) for step in range(3, STEPS + 2)]
        finally:
            torch.cuda.set_sync_debug_mode("default")
    steps = of(StepRow, recorded(runs))
    assert [record.step for record in steps] == list(range(1, STEPS + 1))
    assert [record.loss for record in steps[1:]] == pytest.approx([loss.item() for loss in losses])
    assert [record.losses["again"] for record in steps[3:]] == [record.loss for record in steps[3:]]
    assert {record.precision for record in steps} == {precision}
    assert all(record.step_seconds is not None for record in steps[1:])
    assert steps[1].grad_norm is not None


@pytest.mark.parametrize("form", FORMS)
def test_watching_adds_no_wait_in_any_precision(form: Form, runs: Path) -> None:
    asks = {step: RequestMade("precision", precision=name) for step, name in SWITCHES.items()}

    def before(step: int) -> None:
        torch.cuda.set_sync_debug_mode("default")
        # The step after a switch may wait: copies are made to return to, kernels are loaded.
        if step > 2 and not {step, step - 1, step - 2} & set(SWITCHES):
            torch.cuda.set_sync_debug_mode("error")

    own = Own(fused=True, clip_norm=0.5, device="cuda")
    with own.watch() as monitor:
        try:
            own.watched(monitor, form, 80, before, asks)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert monitor.precision == "fp16"
    steps = of(StepRow, recorded(runs))
    assert [record.step for record in steps] == list(range(1, 81))
    assert {record.precision for record in steps} == {"fp32", "bf16", "fp16", "ieee"}
    assert all(record.loss is not None for record in steps)


MAX_ADDED = {"fp32": 2, "bf16": 2, "fp16": 5}


@pytest.mark.parametrize("probes", [True, pytest.param(False, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("clip_norm", [None, 1.0], ids=["unclipped", "clipped"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_few_operators_are_added(precision: str, clip_norm: float | None, probes: bool) -> None:
    plain = run_plain(precision=precision, clip_norm=clip_norm).usual()
    ours = run(precision=precision, clip_norm=clip_norm, probes=probes, steps=50).marks.usual()
    assert ours.total() - plain.total() <= MAX_ADDED[precision], (ours - plain, plain - ours)
