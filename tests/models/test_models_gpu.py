"""What takes minutes on a processor: the two large models learn on a GPU."""

from pathlib import Path

import pytest
import torch

from amptui import DataRequest, Experiment
from amptui.engine import setup
from amptui.models.char_gpt import CharGpt
from amptui.models.resnet50 import ResNet50
from amptui.recipe.request import TrainRequest
from tests.models.on_images import learned, losses
from tests.tiny import Log, train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU"),
]


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
