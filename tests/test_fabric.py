"""amptui.fabric.Precision in the real Fabric: the bits are those without it, the numbers the true ones."""

import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from amptui.records.answers import RequestRefused, RequestTaken
from amptui.records.control import CheckpointRequest, PrecisionRequest, Request, StopRequest, XRayRequest
from amptui.records.run import EpochFinished, PrecisionChanged, RunFinished, RunStarted
from amptui.records.steps import StepRecord
from tests.observed import AUTOCAST
from tests.own_loops import ask
from tests.run_records import of, records

pytestmark = pytest.mark.filterwarnings("default")  # Lightning's own

SWITCHES = {1: "fp32", 5: "fp16", 14: "bf16", 18: "fp16", 23: "ieee", 26: "fp16"}
"""From which step on which precision runs."""

OVERFLOWS = (8, 9, 20)
"""Steps (counted from 1) whose loss overflows float16 gradients."""

STEPS = 30


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the runs of a test are."""
    pytest.importorskip("lightning", reason="needs lightning: pip install 'amptui[lightning]'")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "amptui" / "runs"


class Loop:
    """A loop of Fabric's as people write it, and one that switches precisions by itself."""

    def __init__(self, *, fused: bool = False, clip: float | None = None, accumulate: int = 1) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, fused=fused)
        self.scaler = torch.amp.GradScaler("cpu", growth_interval=5)
        self.clip = clip
        self.accumulate = accumulate
        self.losses: list[float] = []
        self.scales: list[float | None] = []
        self.skipped: list[int] = []

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(1)
        for step in range(1, STEPS + 1):
            for _ in range(self.accumulate):
                drawn = torch.randn(8, 16, generator=generator)
                yield drawn * (1e6 if step in OVERFLOWS else 1.0), torch.arange(8) % 4

    def bare(self) -> list[Any]:
        precision, scaler, batches = "", self.scaler, self.batches()
        for step in range(1, STEPS + 1):
            precision = SWITCHES.get(step, precision)
            dtype, scales = AUTOCAST.get(precision), precision == "fp16"
            before, total = scaler.get_scale(), 0.0
            for _ in range(self.accumulate):
                inputs, labels = next(batches)
                with torch.autocast("cpu", dtype=dtype) if dtype else nullcontext():
                    outputs = self.model(inputs.to(dtype) if dtype else inputs)
                loss = nn.functional.cross_entropy(outputs.float(), labels) / self.accumulate
                (scaler.scale(loss) if scales else loss).backward()
                total += loss.item()
            if scales:
                scaler.unscale_(self.optimizer)
            if self.clip is not None:
                nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
            if scales:
                scaler.step(self.optimizer)
                scaler.update()
            else:
                self.optimizer.step()
            self.optimizer.zero_grad()
            self.losses.append(total)
            self.scales.append(before if scales else None)
            if scales and scaler.get_scale() < before:
                self.skipped.append(step)
        return self.state()

    def train(self, plugin: Any, requests: dict[int, list[Request]] | None = None) -> list[Any]:
        """Train in Fabric; ``requests`` are made as the step begins."""
        from lightning.fabric import Fabric

        fabric = Fabric(accelerator="cpu", devices=1, plugins=[plugin])
        model, optimizer = fabric.setup(self.model, self.optimizer)
        monitor = getattr(plugin, "monitor", None)
        count = 0
        batches = list(self.batches())
        for inputs, labels in batches if monitor is None else monitor.steps(batches):
            count += 1
            for request in (requests or {}).pop((count - 1) // self.accumulate + 1, []):
                ask(plugin.monitor, request)
            loss = nn.functional.cross_entropy(model(inputs), labels) / self.accumulate
            fabric.backward(loss)
            if count % self.accumulate:
                continue
            if self.clip is not None:
                fabric.clip_gradients(model, optimizer, max_norm=self.clip, error_if_nonfinite=False)
            optimizer.step()
            optimizer.zero_grad()
        return self.state()

    def state(self) -> list[Any]:
        moments = [value for each in self.optimizer.state.values() for value in each.values()]
        return [tensor.tolist() for tensor in [*self.model.parameters(), *moments, torch.get_rng_state()]]


def plugin(**options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of packages that Lightning imports
        from amptui import fabric

    return fabric.Precision(**options)


@pytest.mark.parametrize("options", [{}, {"fused": True, "clip": 0.5}, {"accumulate": 3}], ids=str)
def test_switches_leave_the_bits_of_a_loop_that_switches_by_itself(
    options: dict[str, Any], runs: Path
) -> None:
    bare = Loop(**options)
    expected = bare.bare()
    loop = Loop(**options)
    precision = plugin(scaler=loop.scaler)
    # A request is handled where the next forward pass begins: in the step that it was made in.
    requests: dict[int, list[Request]] = {
        step: [PrecisionRequest(name)] for step, name in SWITCHES.items() if step > 1
    }
    assert loop.train(precision, requests) == expected
    assert precision.state_dict() == bare.scaler.state_dict()
    precision.monitor.close()
    steps = of(StepRecord, records(runs))
    assert [record.step for record in steps] == list(range(1, STEPS + 1))
    name = ""
    for record in steps:
        name = SWITCHES.get(record.step, name)
        assert record.precision == name
    assert [record.loss for record in steps] == pytest.approx(bare.losses, rel=1e-6, nan_ok=True)
    assert [record.loss_scale for record in steps] == bare.scales
    assert [record.step for record in steps if record.skipped] == bare.skipped
    assert {record.samples for record in steps} == {8 * options.get("accumulate", 1)}
    (started,) = of(RunStarted, records(runs))
    assert started.steps_per_epoch == STEPS
    assert [record.step for record in of(PrecisionChanged, records(runs))] == list(SWITCHES)[1:]


@pytest.mark.parametrize("precision", ["32-true", "16-mixed", "bf16-mixed"])
def test_a_fixed_precision_leaves_fabrics_own_bits(precision: Any, runs: Path) -> None:
    ours = plugin(precision=precision)
    found = Loop().train(ours)
    ours.monitor.close()  # else it goes on with the next loop's optimizer
    from lightning.fabric.plugins import MixedPrecision, Precision

    theirs = Precision() if precision == "32-true" else MixedPrecision(precision, "cpu")
    assert found == Loop().train(theirs)
    assert ours.precision == precision
    assert ours.state_dict()
    if precision == "16-mixed":
        assert ours.state_dict() == theirs.state_dict()
    assert len(of(StepRecord, records(runs))) == STEPS


def test_the_keys_stop_save_and_refuse(runs: Path) -> None:
    saved: list[int] = []
    loop = Loop()
    precision = plugin(save=lambda: saved.append(1))
    loop.train(precision, {5: [CheckpointRequest(), XRayRequest()], 9: [StopRequest("q")]})
    precision.monitor.close()
    assert saved == [1]
    assert "checkpoint" in {record.request.kind for record in of(RequestTaken, records(runs))}
    (refused,) = of(RequestRefused, records(runs))
    (started,) = of(RunStarted, records(runs))
    assert started.refuses == {"x-ray": refused.detail}  # the screen does not offer what is always refused
    (finished,) = of(RunFinished, records(runs))
    assert (finished.steps, finished.reason) == (9, "stopped")


def test_epochs_that_begin_before_the_run_are_counted(runs: Path) -> None:
    precision = plugin()
    loop = Loop()
    for _ in precision.monitor.epochs(2):
        loop.train(precision)
    precision.monitor.close()
    (started,) = of(RunStarted, records(runs))
    assert (started.total_epochs, started.total_steps) == (2, 2 * STEPS)
    assert [record.step for record in of(EpochFinished, records(runs))] == [STEPS, 2 * STEPS]


def test_the_scalers_state_may_be_loaded_before_setup() -> None:
    loop = Loop()
    precision = plugin(precision="16-mixed")
    precision.load_state_dict({**loop.scaler.state_dict(), "scale": 4.0})
    loop.train(precision)
    assert precision.state_dict()["scale"] < 65536.0
    assert precision.state_dict()["growth_interval"] == 5
    precision.monitor.close()


def test_two_optimizers_may_step_in_turn(runs: Path) -> None:
    from lightning.fabric import Fabric

    torch.manual_seed(0)
    models = [nn.Linear(4, 4) for _ in range(2)]
    precision = plugin(precision="16-mixed")
    fabric = Fabric(accelerator="cpu", devices=1, plugins=[precision])
    pairs = [fabric.setup(each, torch.optim.SGD(each.parameters(), lr=0.01)) for each in models]
    for step in range(12):
        if step in (3, 7):
            ask(precision.monitor, PrecisionRequest("fp32" if step == 3 else "fp16"))
        for model, optimizer in pairs:
            fabric.backward(model(torch.ones(2, 4)).square().mean())
            gradients = [parameter.grad.abs().max() for parameter in model.parameters()]
            optimizer.step()
            scale = precision.state_dict()["scale"] if precision.precision == "16-mixed" else 1.0
            assert all(0 < gradient / scale < 10 for gradient in gradients)
            optimizer.zero_grad()
    precision.monitor.close()
    steps = of(StepRecord, records(runs))
    # A switch comes after a step of the first; the second's step of the same iteration runs in it already.
    for name, first in (("", 4), ("Linear 2", 3)):
        expected = ["fp16"] * first + ["fp32"] * 4 + ["fp16"] * (8 - first)
        assert [record.precision for record in steps if record.optimizer == name] == expected


def test_a_run_that_cannot_open_ends_no_training(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    precision = plugin()
    expected = Loop().train(precision)
    precision.monitor.close()
    from amptui import fabric

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr(fabric, "build_own_loop", broken)
    capsys.readouterr()
    assert Loop().train(plugin()) == expected
    assert capsys.readouterr().err.count("broken on purpose") == 1


def test_another_precision_is_refused() -> None:
    with pytest.raises(ValueError, match="64-true"):
        plugin(precision="64-true")
    with pytest.raises(ValueError, match="tf32"):
        plugin(amp="tf32")
