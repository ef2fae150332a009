"""What stands before the first step: device, seeds, schedule, model and the run's first record."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau
from torch.utils.data import DataLoader, TensorDataset

from amptui import Data, DataRequest
from amptui.base.errors import DeviceError, ExperimentError, UsageError
from amptui.data.sources import Arrays, Source
from amptui.loops import description, setup
from amptui.recipe.request import TrainRequest
from amptui.records import codec
from tests.builders import StepRow
from tests.tiny import NO_TF32, Drawing, Jittered, Log, Tiny, log_of, losses, prepare, train

CPU = torch.device("cpu")


def request(**options: Any) -> TrainRequest:
    return TrainRequest(model="tiny", **options)


limits = st.none() | st.integers(1, 50)


@given(asked_epochs=limits, steps=limits, default_epochs=st.integers(1, 50), length=limits)
def test_a_run_is_as_long_as_its_tightest_limit(
    asked_epochs: int | None, steps: int | None, default_epochs: int, length: int | None
) -> None:
    """``length``: the steps of an epoch, if the data have one."""
    schedule = setup.schedule_for(
        request(epochs=asked_epochs, steps=steps), asked_epochs or default_epochs, length
    )
    assert schedule.steps_per_epoch == length
    if length is None:
        assert schedule.steps == steps
        # Epochs may have one step only: enough of them for all steps, unless epochs limit the run.
        assert schedule.epochs >= (asked_epochs or steps or default_epochs)
        return
    if steps is None:
        expected = (asked_epochs or default_epochs) * length
    else:
        expected = steps if asked_epochs is None else min(steps, asked_epochs * length)
    assert schedule.steps == expected
    # The epochs hold the steps, and unless the person gave their number there is none too many.
    assert schedule.epochs * length >= expected
    if asked_epochs is None:
        assert (schedule.epochs - 1) * length < expected


def test_an_option_of_its_own_outweighs_set_and_a_cpu_s_default_outweighs_nothing() -> None:
    class Heavy(Tiny):
        cpu_batch_size = 4

    train_request = request(epochs=3, learning_rate=0.5, settings={"epochs": "9", "width": "8"})
    settings = setup.experiment_settings(Heavy, train_request, CPU)
    assert settings == {"epochs": "3", "width": "8", "learning_rate": "0.5", "batch_size": "4"}
    assert setup.experiment_settings(Heavy, request(batch_size=2), CPU)["batch_size"] == "2"
    assert setup.experiment_settings(Heavy, request(settings={"batch_size": "3"}), CPU)["batch_size"] == "3"
    assert "batch_size" not in setup.experiment_settings(Heavy, request(), torch.device("cuda"))
    assert "batch_size" not in setup.experiment_settings(Tiny, request(), CPU)


@pytest.mark.parametrize("name", ["cuda", "cuda:1", "xpu", "mps"])
def test_a_device_that_is_not_there_is_refused_by_its_name_with_the_mend(name: str) -> None:
    if torch.accelerator.is_available():
        pytest.skip("there is an accelerator")
    refused = f"device {name}: torch finds no {name.split(':', maxsplit=1)[0].upper()} GPU; use --device cpu"
    with pytest.raises(DeviceError, match=refused):
        setup.choose_device(name)
    assert setup.choose_device("auto") == CPU


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
def test_gpus_are_counted_from_zero() -> None:
    count = torch.cuda.device_count()
    assert setup.choose_device("auto") == torch.device("cuda", 0)
    assert setup.choose_device(f"cuda:{count - 1}") == torch.device("cuda", count - 1)
    with pytest.raises(DeviceError, match=f"there (is|are) only {count} GPUs?; the first one is cuda:0"):
        setup.choose_device(f"cuda:{count}")


DATA: dict[str, Any] = {"name": "noise", "real": True, "train": TensorDataset(torch.zeros(4))}


def outputs_as(value: Callable[[Any], object]) -> Callable[..., object]:
    return lambda _self, model, batch: value(model(batch[0]))


@pytest.mark.parametrize(
    ("method", "returned", "said"),
    [
        ("build_model", None, r"Bad.build_model\(\) returned None; return a torch.nn.Module"),
        ("build_model", [1], r"Bad.build_model\(\) returned a list; return a torch.nn.Module"),
        ("build_optimizer", 3, r"Bad.build_optimizer\(\) returned a int; return a torch.optim.Optimizer"),
        (
            "build_optimizer",
            lambda _, model: torch.optim.LBFGS(model.parameters()),
            r"Bad.build_optimizer\(\) returned LBFGS, whose step\(\) needs a closure",
        ),
        ("load_data", "MNIST", r"load_data\(\) returned .*; return an amptui.Data"),
        ("load_data", SimpleNamespace(train=[]), r"load_data\(\) returned .*; return an amptui.Data"),
        ("load_data", Data(**{**DATA, "name": None}), "returned Data with name="),
        ("load_data", Data(**{**DATA, "real": [1, 2]}), "returned Data with real="),
        ("build_scheduler", lambda _, o, _steps: ReduceLROnPlateau(o), "needs a metric after each epoch"),
        ("build_scheduler", (1, 3), "returned a tuple; return a scheduler"),
        (
            "build_scheduler",
            lambda _, o, _steps: OneCycleLR(o, 0.1, total_steps=5),
            r"Tried to step 6 times.*OneCycleLR.*build_scheduler\(\).*; ",
        ),
        ("loss", outputs_as(lambda out: out), r"Bad.loss\(\) returned a tensor of shape 8x4; reduce it"),
        ("loss", 1.5, r"Bad.loss\(\) returned a float; return a scalar tensor"),
        ("loss", None, r"Bad.loss\(\) returned None; return a scalar tensor"),
        ("loss", torch.ones(()), r"Bad.loss\(\) returned a tensor that does not require a gradient"),
        (
            "loss",
            outputs_as(lambda out: {"loss": out.sum(), "a": out}),
            r"'a' from Bad.loss\(\) has shape 8x4; reduce it",
        ),
        ("loss", {"loss": 0, "a": 1.0}, r"'a' from Bad.loss\(\) is a float; make it a scalar"),
        ("loss", {"a": 1}, r"Bad.loss\(\) returned a dict without 'loss'; name the total"),
        (
            "metrics",
            outputs_as(lambda out: {"accuracy": out}),
            r"'accuracy' from Bad.metrics\(\) has shape 8x4",
        ),
        ("metrics", torch.ones(()), r"Bad.metrics\(\) returned a Tensor; return a dict of scalar"),
    ],
)
def test_what_a_method_should_not_return_is_told_in_one_line(method: str, returned: Any, said: str) -> None:
    own = returned if callable(returned) else lambda *_: returned
    with pytest.raises(ExperimentError, match=said) as refused:
        train(prepare(type("Bad", (Tiny,), {method: own})(epochs=1)), Log())
    assert "\n" not in str(refused.value)


def test_each_method_is_announced_before_it_is_called() -> None:
    places, asked = list[str](), request(device="cpu")
    options: dict[str, Any] = {"data_request": DataRequest(data_dir=Path("unused"))}
    options["announce"] = lambda _phase, _detail, doing: places.append(doing)
    setup.assemble(asked, Tiny(), setup.choose(asked), **options)
    methods = ("load_data", "build_model", "build_optimizer", "build_scheduler")
    assert places == [f"in {method}() of Tiny" for method in methods]


@pytest.mark.parametrize("options", [{"precision": "tf32"}, {"amp_precision": "tf32"}])
def test_what_the_device_cannot_run_is_refused_before_anything_is_loaded(options: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=NO_TF32):
        setup.choose(request(device="cpu", **options))


@pytest.mark.parametrize(
    ("first", "asked", "amp"),
    [("fp32", None, "bf16"), ("fp32", "fp16", "fp16"), ("fp16", None, "fp16")],
)
def test_the_precision_that_a_run_starts_in_is_its_amp(first: str, asked: str | None, amp: str) -> None:
    choices = setup.choose(request(device="cpu", precision=first, amp_precision=asked))
    assert (choices.precision, choices.amp_precision) == (first, amp)


def test_the_first_record_describes_the_run_and_survives_the_wire() -> None:
    class Odd(Tiny):
        place: Path = Path("here")

    prepared = prepare(Odd(), steps=12, clip_norm=2.0, seed=5)
    started = description.describe_run("tiny", prepared)
    assert (started.model, started.device, started.gpu_uuid) == ("tiny", "cpu", None)
    assert (started.steps_per_epoch, started.total_epochs, started.total_steps) == (8, 2, 12)
    assert (started.batch_size, started.data.samples, started.data.real) == (8, 64, False)
    assert started.parameters == 16 * 16 + 16 + 2 * 16 + 16 * 4 + 4
    assert started.config["place"] == "here"
    assert started.config["optimizer"] == "Adam"
    assert {"experiment", "seed", "clip_norm", "width"} <= set(started.config)
    assert {"amptui", "python", "torch"} <= set(started.versions)
    assert started.hardware["cores"] >= 1
    assert codec.loads(codec.dumps(started)) == started


def test_the_environment_holds_what_changes_the_numbers_and_no_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in os.environ:
        monkeypatch.delenv(name)
    variables = {"CUDA_VISIBLE_DEVICES": "1", "OMP_NUM_THREADS": "2", "PYTORCH_ALLOC_CONF": "x" * 500}
    for name, value in (variables | {"WANDB_API_KEY": "secret", "HOME": "/home/me"}).items():
        monkeypatch.setenv(name, value)
    assert description.environment() == variables | {"PYTORCH_ALLOC_CONF": "x" * 200}


def layers(lazy: bool) -> nn.Sequential:
    first = nn.LazyConv2d(3, 2) if lazy else nn.Conv2d(1, 3, 2)
    norm = nn.LazyBatchNorm2d() if lazy else nn.BatchNorm2d(3)
    last = nn.LazyLinear(4) if lazy else nn.Linear(27, 4)
    return nn.Sequential(first, norm, nn.Dropout(0.3), nn.Flatten(), last)


class Wrapped(DataLoader[Any]):
    def __iter__(self) -> Any:
        return iter([(inputs, targets) for inputs, targets in super().__iter__()])


SOURCES: dict[str, Callable[[Jittered], Source]] = {
    "dataset": lambda samples: samples,
    "samples": lambda samples: DataLoader(samples, None, sampler=torch.arange(64).split(8), collate_fn=tuple),
    "wrapped": lambda samples: Wrapped(samples, 8),
}


class Shaped(Drawing):
    epochs: int = 3
    lazy: bool = False
    loader: str = "dataset"

    def build_model(self) -> nn.Module:
        return layers(self.lazy)

    def load_data(self, request: DataRequest) -> Data:
        data = Tiny.load_data(self, request)
        assert isinstance(data.train, Arrays)
        return replace(data, train=SOURCES[self.loader](Jittered(data.train)))


@pytest.mark.parametrize("loader", sorted(SOURCES))
def test_a_lazy_model_trains_like_one_with_explicit_sizes(loader: str) -> None:
    explicit, lazy = (log_of(prepare(Shaped(loader=loader, lazy=lazy))) for lazy in (False, True))
    assert len(losses(explicit)) == 24
    assert losses(lazy) == losses(explicit)


def test_a_lazy_layer_that_no_batch_reaches_is_named() -> None:
    class Forgetful(Tiny):
        def build_model(self) -> nn.Module:
            model = layers(lazy=True)
            model[2].spare = nn.LazyLinear(3)
            return model

    unreached = r"the first batch leaves 2.spare.weight and 1 more uninitialized; "
    with pytest.raises(ExperimentError, match=unreached):
        prepare(Forgetful())


class Rateless(torch.optim.Optimizer):
    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"pull": 0.01})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.sub_(group["pull"] * parameter.grad)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_an_optimizer_without_a_learning_rate_trains(precision: str) -> None:
    build = {"build_optimizer": lambda _, model: Rateless(model.parameters())}
    log = log_of(prepare(type("Rateless", (Tiny,), build)(), precision=precision))
    assert [record.lr for record in log.of(StepRow)] == [None] * 16
