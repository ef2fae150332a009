"""What is seen of a loop's steps: precisions, update ratios, and scalers in whatever order they are called.

The precision of compiled steps, and of those in float8 layers of a script's own, is what was computed. Update
ratios are those of the optimizer that made the step, unless it was skipped.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

import amptui
from amptui.probes import update_ratios
from amptui.records.findings import UpdatesMeasured
from amptui.records.own_loop import FLOAT8_LAYERS
from amptui.records.run import Note, Record
from tests.builders import StepRow, of, recorded
from tests.loops.script.seen_steps import BATCHES, batches, loss_of, net, sgd, steps_of, update, watching
from tests.observed import OVERFLOWS, Loop
from tests.probes.test_update_probe import independent


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def autocast() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def precisions(records: list[Record]) -> list[str]:
    return [step.precision for step in steps_of(records)]


@pytest.mark.ci  # it compiles
@pytest.mark.torch
@pytest.mark.parametrize(("low", "inside"), [(True, True), (True, False), (False, True)])
def test_a_compiled_model_is_read_too(low: bool, inside: bool) -> None:
    model = net()
    optimizer = sgd(model)

    def compute(batch: Any) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=low and inside):
            return loss_of(model, batch)

    torch.compiler.reset()
    compiled = torch.compile(compute, backend="aot_eager")
    with watching(model, optimizer) as records:
        for batch in batches():
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=low and not inside):
                loss = compiled(batch)
            update(optimizer, loss)
    assert precisions(records) == ["bf16" if low else "fp32"] * BATCHES


# Float8 layers of a script's own, torchao's or Transformer Engine's: its steps are called by them.

Context = Callable[[], AbstractContextManager[object]]

needs_torchao = pytest.mark.usefixtures("usable_torchao")


def wide_net() -> nn.Module:
    """The head has too few outputs for float8."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 2))


def convert(model: nn.Module) -> None:
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    config = Float8LinearConfig(emulate=True)
    convert_to_float8_training(model, config=config, module_filter_fn=lambda _module, name: name == "0")


def rows(steps: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        yield torch.randn(8, 16, generator=generator)


def train_rows(
    model: Callable[[Tensor], Tensor],
    optimizer: torch.optim.Optimizer,
    steps: int,
    context: Context,
) -> None:
    for batch in rows(steps):
        with context():
            loss = model(batch).float().square().mean()
        update(optimizer, loss)


@needs_torchao
@pytest.mark.parametrize("context", [nullcontext, autocast])
@pytest.mark.parametrize("compiles", [False, pytest.param(True, marks=pytest.mark.ci)])
def test_they_are_known_from_the_first_step_on(compiles: bool, context: Context) -> None:
    model = wide_net()
    convert(model)
    optimizer = sgd(model)
    torch.compiler.reset()
    with watching(model, optimizer) as journal:
        train_rows(torch.compile(model, backend="aot_eager") if compiles else model, optimizer, 3, context)
    assert precisions(journal) == [FLOAT8_LAYERS] * 3


@needs_torchao
@pytest.mark.parametrize(("context", "before"), [(nullcontext, "fp32"), (autocast, "bf16")])
def test_they_are_known_from_the_step_on_in_which_they_come(context: Context, before: str) -> None:
    model, other = wide_net(), wide_net()
    optimizer = sgd(model)
    with watching(model, optimizer) as journal:
        train_rows(model, optimizer, 2, context)
        convert(other)
        train_rows(model, optimizer, 2, context)
        convert(model)
        train_rows(model, optimizer, 2, context)
    assert precisions(journal) == [before] * 4 + [FLOAT8_LAYERS] * 2


@needs_torchao
def test_watch_tells_them_and_says_whose_they_are(runs: Path) -> None:
    model = wide_net()
    convert(model)
    optimizer = sgd(model)
    with amptui.watch(model, optimizer, precision="bf16") as monitor:
        for batch in rows(3):
            with monitor.autocast():
                loss = model(batch).float().square().mean()
            monitor.backward(loss)
            monitor.step()
    journal = recorded(runs)
    assert [step.precision for step in of(StepRow, journal)] == [FLOAT8_LAYERS] * 3
    warnings = [note.text for note in of(Note, journal) if note.severity == "warning"]
    assert warnings == ["steps in bf16 were computed in float8 layers: the script has made them itself"]


STEPS = 60


@pytest.fixture
def each_step_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update_ratios, "UPDATES_BUDGET", 1e9)
    monkeypatch.setattr(update_ratios, "GAP_STEPS", 1)
    monkeypatch.setattr("amptui.monitor.monitor.Monitor.look_interval_seconds", 0.0)


@pytest.mark.usefixtures("each_step_is_measured")
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_measured_step_has_the_ratios_of_full_copies_and_a_skipped_one_none(
    precision: str, runs: Path
) -> None:
    loop, expected, skipped = Loop(precision, clip=True, accumulate=2), [], set()
    with amptui.observe(loop.model, loop.optimizer, loop.scaler):
        for step in range(1, STEPS + 1):
            before = copy.deepcopy(loop.model)
            scale = loop.scaler.get_scale()
            loop.train_step(step)
            expected.append(independent(loop.model, before))
            if loop.scaler.get_scale() < scale:
                skipped.add(step)
    measured = {record.step: record.ratios for record in of(UpdatesMeasured, recorded(runs))}
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
            before = copy.deepcopy(model)
            with suppress(ValueError):
                optimizer.step()
    (record,) = of(UpdatesMeasured, seen)
    assert record.step == 1, "the first was not complete"
    assert record.ratios == pytest.approx(independent(model, before), rel=1e-3)


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
    steps = [record for record in of(StepRow, recorded(runs)) if not record.optimizer]
    assert [record.losses for record in steps] == [{"number": float(record.step)} for record in steps]


HUGE = 1e37
"""Times the loss scale it is beyond float32."""


@pytest.mark.parametrize(
    "calls",
    [
        "unscale clip scaler.step update",
        "unscale update scaler.step update",
        "unscale clip step update",
        "unscale update step",
        "scaler.step step update",
        "step scaler.step update",
        "scaler.step unscale update",
        "scaler.step",
        "scaler.step other.step update",
    ],
)
def test_each_step_is_seen_and_true_in_whatever_order_a_scaler_is_called(calls: str) -> None:
    model, other = nn.Linear(3, 1), nn.Linear(3, 1)
    optimizer, scaler = sgd(model, lr=1e-3), GradScaler("cpu", init_scale=64.0, growth_interval=3)
    methods: dict[str, tuple[Any, str, tuple[Any, ...]]] = {
        "unscale": (scaler, "unscale_", (optimizer,)),
        "clip": (nn.utils, "clip_grad_norm_", ([*model.parameters()], 1.0)),
        "scaler.step": (scaler, "step", (optimizer,)),
        "other.step": (scaler, "step", (sgd(other),)),
        "step": (optimizer, "step", ()),
        "update": (scaler, "update", ()),
    }
    made: list[tuple[bool, float, float | None]] = []
    with watching(model, optimizer) as records:
        for overflows in (False, True, False, False, True, False):
            optimizer.zero_grad()
            loss = (model(torch.ones(2, 3)).square().mean() + 1.0) * (HUGE if overflows else 1.0)
            scaler.scale(loss).backward()
            scaler.scale(other(torch.full((2, 3), HUGE)).sum()).backward()  # it overflows in each step
            unused: float | None = loss.item()
            for call in calls.split():
                (owner, method, arguments), scale = methods[call], scaler.get_scale()
                is_finite = all(p.grad is None or bool(p.grad.isfinite().all()) for p in model.parameters())
                if call == "step" and not is_finite:
                    continue
                with suppress(RuntimeError, AssertionError):  # out of torch's order
                    getattr(owner, method)(*arguments)
                    if call in ("scaler.step", "step"):
                        made.append((not is_finite, scale, unused))
                        unused = None
    for row, (skipped, scale, used) in zip(steps_of(records), made, strict=True):
        assert row.skipped == skipped
        assert row.loss_scale in (None, scale)
        assert row.loss is None or row.loss == pytest.approx(used, rel=1e-5)
