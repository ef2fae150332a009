"""char-gpt: it looks back only, it learns from text in every precision, and it says what it cannot do."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from amptui.base.errors import ExperimentError
from amptui.data.text_corpus import read_text
from amptui.models.char_gpt import CharGpt
from amptui.records.run import EpochFinished, StepSkipped
from tests.models.on_images import learned
from tests.tiny import Log, prepare, train

TINY: dict[str, Any] = {"layers": 1, "heads": 2, "width": 32, "context": 16, "dropout": 0.0}


@pytest.fixture
def rhyme(tmp_path: Path) -> Path:
    path = tmp_path / "rhyme.txt"
    path.write_text("one for sorrow, two for joy, three for a girl, four for a boy\n" * 40)
    return path


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    model = CharGpt(**TINY).build_model()
    assert isinstance(model, nn.Module)
    return model.eval()


def test_a_character_s_logits_depend_on_none_after_it(model: nn.Module) -> None:
    text = torch.randint(0, 90, (1, 16), generator=torch.Generator().manual_seed(0))
    changed = text.clone()
    changed[0, 10] = (changed[0, 10] + 1) % 90
    with torch.inference_mode():
        difference = (model(text) - model(changed)).abs().amax(dim=2)[0]
    assert difference[:10].max() == 0
    assert difference[10:].min() > 0


@pytest.mark.ci
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_it_learns_a_rhyme_in_every_precision(precision: str, rhyme: Path) -> None:
    log = Log()
    experiment = CharGpt(**TINY, text=rhyme, batch_size=16, learning_rate=1e-2, epochs=1)
    assert train(prepare(experiment, precision=precision), log) == "done"
    assert learned(log) > 0.5
    assert len(log.of(StepSkipped)) <= 4
    (epoch,) = log.of(EpochFinished)
    assert epoch.validation is not None
    assert epoch.validation.loss is not None
    bits = epoch.validation.metrics["bits per character"]
    assert bits == pytest.approx(epoch.validation.loss / math.log(2))
    assert bits < 0.6 * math.log2(len(read_text(rhyme).characters))
    assert epoch.validation.accuracy is not None
    assert epoch.validation.accuracy > 0.4


def test_only_matrices_decay_and_each_parameter_once() -> None:
    model = CharGpt(**TINY).build_model()
    decaying, others = CharGpt(**TINY).build_optimizer(model).param_groups
    assert decaying["weight_decay"] > 0 == others["weight_decay"]
    assert all(p.ndim == 2 for p in decaying["params"])
    assert all(p.ndim == 1 for p in others["params"])
    assert len(decaying["params"]) + len(others["params"]) == len(list(model.parameters()))
    assert model.get_parameter("head.weight") is model.get_parameter("tok_emb.weight")


def test_a_width_that_the_heads_cannot_share_is_refused_with_one_they_can() -> None:
    with pytest.raises(ExperimentError, match="width 100 is not divisible by 3 heads; use --set width=102"):
        CharGpt(width=100, heads=3).build_model()
