"""The models on a GPU, whose float16 kernels and autocast rules are not a CPU's."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from amptui import DataRequest, Experiment
from amptui.base.errors import ExperimentError
from amptui.engine import setup
from amptui.engine.prepared import Prepared
from amptui.models.char_gpt import CharGpt
from amptui.models.multi_task import MultiTask
from amptui.models.resnet50 import ResNet50
from amptui.models.selective import Selective
from amptui.models.unstable import Unstable
from amptui.recipe.request import TrainRequest
from amptui.records.run import StepSkipped
from tests.models.on_images import learned, losses, on_images
from tests.tiny import Log, train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU"),
]


def run(experiment: Experiment, precision: str = "fp16") -> tuple[Log, Prepared]:
    log = Log()
    prepared = on_images(experiment, steps=100, precision=precision, device="cuda")
    train(prepared, log)
    return log, prepared


def run_to_the_floor(experiment: Experiment) -> Log:
    log = Log()
    with pytest.raises(ExperimentError, match="the loss scale fell to"):
        train(on_images(experiment, steps=400, precision="fp16", device="cuda"), log)
    return log


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("trouble", ["none", "calibration", "collapse", "forward", "buffers", "underflow"])
def test_every_trouble_is_sound_outside_of_float16(trouble: Any, precision: str) -> None:
    log, prepared = run(Unstable(trouble=trouble), precision)
    assert learned(log) > 0.25
    assert all(torch.isfinite(values).all() for values in prepared.model.state_dict().values())


def test_calibration_skips_a_few_steps_and_learns() -> None:
    log, _ = run(Unstable(trouble="calibration"))
    assert 1 <= len(log.of(StepSkipped)) <= 4
    assert learned(log) > 0.25


def test_collapse_skips_every_step_with_a_finite_loss() -> None:
    log = run_to_the_floor(Unstable(trouble="collapse"))
    assert all(math.isfinite(loss) for loss in losses(log))
    assert len(log.of(StepSkipped)) == len(losses(log))


@pytest.mark.parametrize("experiment", [Unstable(trouble="forward"), Selective(island=False)], ids=str)
def test_an_overflow_in_the_forward_pass_is_one_on_a_gpu_too(experiment: Experiment) -> None:
    assert math.isnan(losses(run_to_the_floor(experiment))[-1])


def test_buffers_are_poisoned() -> None:
    _, prepared = run(Unstable(trouble="buffers"))
    # A feature that is next to 0 for all of the batch's images may come through.
    assert prepared.model.get_buffer("norm.running_var").isnan().float().mean() > 0.5


def test_underflow_turns_most_gradients_into_zeros() -> None:
    log, prepared = run(Unstable(trouble="underflow"))
    assert not log.of(StepSkipped)
    gradients = [p.grad.flatten() for p in prepared.model.parameters() if p.grad is not None]
    assert (torch.cat(gradients) == 0).float().mean() > 0.5


def test_the_island_learns_in_float16() -> None:
    log, _ = run(Selective(batch_size=32))
    assert learned(log) > 0.4


@pytest.mark.parametrize("precision", ["fp32", "bf16", pytest.param("fp16", marks=pytest.mark.ci)])
def test_both_heads_of_multi_task_learn_with_one_scale(precision: str) -> None:
    log, _ = run(MultiTask(batch_size=32, learning_rate=2e-3), precision)
    assert learned(log) > 0.2


def on_the_gpu(experiment: Experiment, precision: str, steps: int) -> Log:
    """The experiment on its own data, synthetic where it has such, for ``steps`` steps."""
    log = Log()
    request = TrainRequest(
        model="model", device="cuda", precision=precision, steps=steps, data_dir=Path("unused")
    )
    setup.seed_everything(request.seed)
    asked = DataRequest(data_dir=request.data_dir, kind="synthetic", seed=request.seed)
    prepared = setup.assemble(request, experiment, setup.choose(request), data_request=asked)
    assert train(prepared, log) == "done"
    return log


@pytest.mark.real_gpu("its speed: these are minutes of a processor")
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_char_gpt_learns_from_python_s_reference(precision: str) -> None:
    log = on_the_gpu(CharGpt(batch_size=32), precision, 150)
    assert sum(losses(log)[-10:]) / 10 < 2.8


@pytest.mark.real_gpu("its speed: these are minutes of a processor")
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_resnet50_remembers_a_few_random_images(precision: str) -> None:
    log = on_the_gpu(ResNet50(image_size=64, batch_size=8, classes=10, learning_rate=0.01), precision, 160)
    assert learned(log, steps=16) > 0.5
