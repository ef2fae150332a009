"""What each kind of accelerator can do, and what torch says of the one that is here."""

from typing import Any

import pytest
import torch

from amptui.command.parser import device as device_option
from amptui.device import accelerator
from amptui.device.accelerator import TRAINABLE, capabilities
from amptui.recipe.float8 import NO_TORCHAO, why_no_float8
from amptui.recipe.precision import amp_of, unsupported_precisions

CPU, CUDA, XPU, MPS = (torch.device(name) for name in TRAINABLE)


def test_the_command_line_takes_what_the_engine_trains_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("auto", *TRAINABLE, "cuda:1", "xpu:3", "mps:0"):
        assert device_option(name) == name
    monkeypatch.setattr(torch.version, "hip", None)
    assert capabilities(CUDA).title == "CUDA"


def test_a_build_for_rocm_has_the_same_device_type_without_tf32(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.version, "hip", "7.1")
    assert capabilities(CUDA).title == "ROCm"
    assert unsupported_precisions(CUDA).keys() == {"tf32", *why_no_float8(CUDA)}
    assert amp_of(CUDA) == "fp16"
    assert accelerator.runtime_versions()["rocm"] == "7.1"


@pytest.mark.parametrize("torchao", [True, False])
def test_float8_is_refused_where_it_was_never_run(torchao: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing asks a driver: none of these devices is here."""
    monkeypatch.setattr(torch.version, "hip", "7.1")
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: object() if torchao else None)
    why = {kind.type: why_no_float8(kind) for kind in (CPU, CUDA, XPU, MPS)}
    assert [amp_of(kind) for kind in (CPU, CUDA, XPU, MPS)] == ["bf16", "fp16", "bf16", "fp16"]
    if not torchao:
        assert list(why.values()) == [{"fp8": NO_TORCHAO}] * 4
        return
    refused = {"fp8": "amptui's FP8 needs an NVIDIA GPU or a CPU"}
    assert why == {"cpu": {}, "cuda": refused, "xpu": refused, "mps": refused}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
def test_a_gpu_says_the_same_as_torch_s_own_module() -> None:
    device = accelerator.default_device()
    assert device == torch.device("cuda", 0)
    assert accelerator.device_count("cuda") == torch.cuda.device_count()
    gpu, facts = accelerator.properties(device), torch.cuda.get_device_properties(device)
    assert (gpu.name, gpu.memory_bytes) == (facts.name, facts.total_memory)
    assert gpu.compute_capability == torch.cuda.get_device_capability(device)
    before: Any = accelerator.memory_use(device)
    kept = torch.ones(2**20, device=device)
    after: Any = accelerator.memory_use(device)
    assert after.allocated - before.allocated == kept.nbytes
    assert (accelerator.free_bytes(device) or 0) > 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
def test_the_random_states_of_a_gpu_are_set_back() -> None:
    device = accelerator.default_device()
    states = accelerator.random_states(device)
    drawn = torch.rand(4, device=device).tolist()
    accelerator.set_random_states(device, states)
    assert torch.rand(4, device=device).tolist() == drawn
