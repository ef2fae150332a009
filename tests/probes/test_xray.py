"""One batch in two precisions: what is found, and that the training goes on as if it had not been."""

import hashlib
import math
import pickle
import random
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from amptui.loops import setup
from amptui.loops.setup import Prepared
from amptui.probes.xray import take_xray
from amptui.recipe.precision import Tf32Flags
from amptui.records.findings import LayerAgreement, XRayTaken
from tests.tiny import Log, Tiny, prepare, train


def first_batch(prepared: Prepared) -> Any:
    return next(iter(prepared.training.epoch(1)))


def xray(prepared: Prepared, precision: str = "bf16", loss_scale: float | None = None) -> XRayTaken:
    return take_xray(prepared, [first_batch(prepared)], step=7, precision=precision, loss_scale=loss_scale)


def layer(record: XRayTaken, name: str) -> LayerAgreement:
    return next(layer for layer in record.layers if layer.name == name)


class Plain(Tiny):
    """One linear layer on 16 pixels, followed by nothing random and nothing that keeps statistics."""

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(inplace=True), nn.Linear(8, 4))


class Definitions(Plain):
    """One of its layers has a gradient of zero, and one of which one half underflows at a scale of 1."""

    def build_model(self) -> nn.Module:
        layers = super().build_model()
        assert isinstance(layers, nn.Sequential)
        return layers.append(nn.ModuleDict({"zero": nn.Linear(4, 4), "small": nn.Linear(4, 4)}))

    def loss(self, model: Any, batch: Any) -> Tensor:
        inputs, targets = batch
        logits = model[:4](inputs)
        zero, small = model[4]["zero"](logits), model[4]["small"](logits)
        factors = torch.tensor([1e-3, 1e-4, 1e-5, 3e-8])
        return functional.cross_entropy(logits + 0 * zero.sum() + factors * small, targets)


def defined(full: Tensor, half: Tensor, scale: float, *, in_float16: bool) -> dict[str, Any]:
    """What is said of a layer, from both gradients, the scaled one of the step in AMP as it is."""
    f, h = full.double(), half.double() / scale
    if not f.any():
        return {"norm": 0.0, "cosine": None, "relative_error": None, "lost": None, "underflowing": None}
    small = f[half.abs() < 2.0**-14]
    return {
        "norm": f.norm().item(),
        "cosine": (f @ h / (f.norm() * h.norm())).item(),
        "relative_error": ((h - f).norm() / f.norm()).item(),
        "lost": ((f != 0) & (h == 0)).sum().item() / (f != 0).sum().item(),
        "underflowing": (small.norm() / f.norm()).item() if in_float16 else None,
    }


@pytest.mark.torch
@pytest.mark.parametrize(("precision", "scale"), [("bf16", None), ("fp16", 1.0), ("fp16", 1024.0)])
def test_losses_and_gradients_are_those_of_a_step_in_each_precision(
    precision: str, scale: float | None
) -> None:
    prepared = prepare(Definitions())
    batch, model, factor = first_batch(prepared), prepared.model, scale or 1.0
    record = take_xray(prepared, [batch], step=7, precision=precision, loss_scale=scale)
    gradients: dict[str, list[Tensor]] = {}
    for name in ("ieee", precision):
        with prepared.precisions[name].forward_context:
            loss: Any = prepared.experiment.loss(model, batch)
        (loss if name == "ieee" else loss.float() * factor).backward()
        assert loss.item() == (record.loss_fp32 if name == "ieee" else record.loss_amp)
        gradients[name] = [
            parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None
        ]
        prepared.optimizer.zero_grad()
    dtype = {"bf16": "bfloat16", "fp16": "float16"}[precision]
    assert [(a.name, a.kind, a.elements, a.output_dtype) for a in record.layers] == [
        (name, "Linear", elements, dtype)
        for name, elements in (("1", 136), ("3", 36), ("4.zero", 20), ("4.small", 20))
    ]
    for index, agreement in enumerate(record.layers):
        full, half = (torch.cat(gradients[one][2 * index : 2 * index + 2]) for one in ("ieee", precision))
        for name, value in defined(full, half, factor, in_float16=precision == "fp16").items():
            expected = value if value is None else pytest.approx(value, rel=1e-9, abs=1e-12)
            assert getattr(agreement, name) == expected, (agreement.name, name)
    if precision == "fp16":
        assert 0 < (layer(record, "4.small").underflowing or 0) < 1
        assert ((layer(record, "4.small").lost or 0) > 0) == (scale == 1.0)
    assert (record.step, record.precision, record.loss_scale, record.random) == (7, precision, scale, False)


class Island(Tiny):
    """Autocast is off in the model, so both passes compute the same."""

    def build_model(self) -> nn.Module:
        class InFull(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = nn.Linear(16, 4)

            def forward(self, inputs: Tensor) -> dict[str, Any]:
                with torch.autocast("cpu", enabled=False):
                    return {"none": None, "logits": (self.inner(inputs.float()),)}

        return nn.Sequential(nn.Flatten(), InFull())

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        (logits,) = model(batch[0])["logits"]
        return functional.cross_entropy(logits, batch[1])


def test_both_passes_draw_the_same_numbers_and_begin_with_the_same_statistics() -> None:
    class Noisy(Island):
        def build_model(self) -> nn.Module:
            return nn.Sequential(nn.Dropout(0.5), nn.BatchNorm2d(1, momentum=None), super().build_model())

        def loss(self, model: nn.Module, batch: Any) -> Tensor:
            batches = model.get_buffer("1.num_batches_tracked")
            return super().loss(model, batch) * (1 + batches)

    record = xray(prepare(Noisy()))
    assert record.random
    assert [(a.cosine, a.relative_error) for a in record.layers] == [(1.0, 0.0)] * 2
    assert record.loss_amp == record.loss_fp32


def test_what_overflows_is_not_comparable() -> None:
    record = xray(prepare(Plain()), "fp16", 2.0**40)
    assert math.isnan(layer(record, "1").cosine or 0)
    assert math.isnan(layer(record, "1").relative_error or 0)
    assert math.isfinite(record.loss_amp)


class Averaging(nn.Module):
    """Moves frozen weights, of which it replaces some, and scales those of an embedding to length 0.1."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(4, 16, max_norm=0.1)
        self.teacher = nn.Linear(16, 16).requires_grad_(False)

    def forward(self, inputs: Tensor) -> Tensor:
        with torch.no_grad():
            self.teacher.weight.lerp_(torch.ones(16, 16, device=inputs.device), 0.1)
            self.teacher.bias.data = self.teacher.bias.data * 0.5
        words = self.words(torch.arange(4, device=inputs.device))
        return inputs + words.sum(0) + self.teacher(inputs)  # type: ignore[no-any-return]


class Mixed(Tiny):
    """Everything that a forward pass changes or draws, with in-place ReLU and a frozen layer."""

    def build_model(self) -> nn.Module:
        model = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
            nn.Dropout(0.5),
            nn.Flatten(),
            nn.Linear(128, 16),
            nn.ReLU(inplace=True),
            Averaging(),
            nn.Linear(16, 4),
        )
        model[5].requires_grad_(False)
        return model


def digest(value: object) -> str:
    return hashlib.sha256(pickle.dumps(value)).hexdigest()


def bits(tensor: Tensor | None) -> bytes | None:
    return None if tensor is None else tensor.detach().cpu().numpy().tobytes()


def state(prepared: Prepared, batch: Any) -> dict[str, Any]:
    """Hashes of everything that the next step depends on, and the identities that must stay."""
    model, optimizer = prepared.model, prepared.optimizer
    states = [
        (name, bits(value) if isinstance(value, Tensor) else value)
        for parameter in model.parameters()
        for name, value in optimizer.state[parameter].items()
    ]
    return {
        "weights and buffers": digest([(name, bits(value)) for name, value in model.state_dict().items()]),
        "gradients": digest([bits(p.grad) for p in model.parameters()]),
        "which gradients": [id(p.grad) for p in model.parameters()],
        "which buffers": [id(buffer) for buffer in model.buffers()],
        "optimizer": digest(states),
        "batch": digest([bits(tensor) for tensor in batch]),
        "python": digest(random.getstate()),
        "numpy": digest(np.random.get_state()),
        "torch": digest(bits(torch.get_rng_state())),
        "gpus": digest([bits(generator) for generator in torch.cuda.get_rng_state_all()]),
        "scaler": prepared.scaler.state_dict(),
        "trains": [module.training for module in model.modules()],
        "requires grad": [p.requires_grad for p in model.parameters()],
        "flags": Tf32Flags.current(),
        "autocast": torch.is_autocast_enabled(prepared.device.type),
        "grad mode": torch.is_grad_enabled(),
        "hooks": [len(module._forward_hooks) for module in model.modules()],
        "modes": torch._C._len_torch_dispatch_stack(),
        "experiment": dict(vars(prepared.experiment)),
    }


@pytest.fixture(autouse=True)
def _restore_flags() -> Iterator[None]:
    before = Tf32Flags.current()
    yield
    before.apply()


def trained(experiment: Tiny, **options: Any) -> Prepared:
    """Some steps in: the optimizer has state, buffers have moved, gradients are those of the last step."""
    prepared = prepare(experiment, steps=5, **options)
    prepared.scaler.set_growth_interval(2)
    train(prepared, Log())
    return prepared


class DrawsAndCounts(Mixed):
    """Draws from every generator, counts its calls, and writes into its batch."""

    calls: int = 0

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        inputs, targets = batch
        self.calls += 1
        inputs.add_(0.1 * torch.rand(()) + 0.1 * random.random() + 0.1 * np.random.rand())
        loss = functional.cross_entropy(model(inputs), targets)
        return loss * (1 + 1 / self.calls)


@pytest.mark.torch
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_an_x_ray_changes_no_bit(precision: str) -> None:
    """Nor the losses that follow, as the schedule's tests say."""
    prepared = trained(DrawsAndCounts(), precision="fp16")
    assert prepared.scaler.get_scale() > 65536
    batch = first_batch(prepared)
    prepared.precisions["tf32"].enter()
    before = state(prepared, batch)
    xray_record = take_xray(prepared, [batch], step=6, precision=precision, loss_scale=65536.0)
    assert state(prepared, batch) == before
    assert xray_record.random


def failing(where: str, error: Exception, references: list[weakref.ref[Tensor]]) -> Mixed:
    """Breaks everything that can be broken in AMP's pass, and raises; in steps it is well-behaved."""

    def fail(_: object) -> None:
        raise error

    class Failing(Mixed):
        def loss(self, model: nn.Module, batch: Any) -> Tensor:
            if torch.is_autocast_enabled("cpu"):
                model.eval().requires_grad_(True)
                torch.backends.cudnn.allow_tf32 = False
            outputs = model(batch[0])
            if torch.is_autocast_enabled("cpu"):
                references.append(weakref.ref(outputs))
                outputs.register_hook(fail)
                if where == "forward":
                    fail(None)
            return functional.cross_entropy(outputs, batch[1])

    return Failing()


@pytest.mark.parametrize(
    ("where", "error"),
    [
        ("forward", torch.OutOfMemoryError("told")),
        ("backward", ValueError("told")),
        ("backward", KeyboardInterrupt()),
    ],
)
def test_an_error_in_an_x_ray_is_raised_and_changes_no_bit(where: str, error: Exception) -> None:
    references: list[weakref.ref[Tensor]] = []
    prepared = trained(failing(where, error, references))
    batch = first_batch(prepared)
    before = state(prepared, batch)
    with pytest.raises(type(error)) as caught:
        take_xray(prepared, [batch], step=6, precision="bf16", loss_scale=None)
    assert state(prepared, batch) == before
    if isinstance(error, torch.OutOfMemoryError):  # nothing of the pass is kept alive
        assert caught.traceback
        assert [reference() for reference in references] == [None]
    assert len(references) == 1


class WithTeacher(Tiny):
    """A loss with weights and statistics of its own, in the optimizer but not in the model."""

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        self.head = nn.BatchNorm1d(4)
        return torch.optim.Adam([*model.parameters(), *self.head.parameters()], fused=True)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return functional.cross_entropy(self.head(model(batch[0])), batch[1])


def test_the_loss_s_own_weights_and_statistics_are_restored_too() -> None:
    experiment = WithTeacher()
    prepared = trained(experiment)
    values = list(experiment.head.state_dict(keep_vars=True).values())
    before = [(bits(value), id(value.grad), bits(value.grad)) for value in values]
    xray_record = take_xray(prepared, [first_batch(prepared)], step=1, precision="bf16", loss_scale=None)
    assert "head" not in {layer.name for layer in xray_record.layers}
    assert [(bits(value), id(value.grad), bits(value.grad)) for value in values] == before


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_an_x_ray_on_a_gpu_changes_no_bit(precision: str) -> None:
    device = torch.device("cuda", 0)
    scaler, precisions = setup.prepare_precisions(device)
    prepared = replace(prepare(Mixed()), device=device, scaler=scaler, precisions=precisions)
    prepared.model.to(device)
    batch = tuple(tensor.to(device) for tensor in first_batch(prepared))
    before = state(prepared, batch)
    xray_record = take_xray(prepared, [batch], step=6, precision=precision, loss_scale=65536.0)
    assert state(prepared, batch) == before
    assert xray_record.random
