"""States and weights as plain tensors: copies, and files that torch reads and that run no code."""

import importlib.util
import io
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from amptui.base.errors import OutputError, UsageError
from amptui.checkpoint.states import host_copy, load_weights, save_weights
from amptui.cli import main
from amptui.records.keeping import WeightsSaved
from amptui.records.run import RunFailed, RunFinished
from tests.checkpoint.test_file import Harmful
from tests.loops.working import Worker
from tests.terminal import KNOBS
from tests.tiny import Log, Tiny, prepare, stopping, train

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


def copied(state: object) -> Any:
    copies, wait = host_copy(state)
    wait()
    return copies


def through_a_file(state: object) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Tensors of any type, shape and order of strides, with gaps between their numbers too."""
    shape = draw(st.lists(st.integers(0, 5), max_size=4))
    whole = torch.randint(0, 100, shape).to(draw(st.sampled_from(DTYPES)))
    whole = whole.permute(draw(st.permutations(range(len(shape)))))
    return whole[..., :: draw(st.integers(1, 2))] if shape else whole


@given(parts=st.lists(tensors(), min_size=1, max_size=5))
def test_a_copy_is_equal_and_separate_and_survives_a_file(parts: list[Tensor]) -> None:
    state = {"list": parts, "tuple": (parts[0], {1: parts[-1]})}
    copies = through_a_file(copied(state))
    assert copies["tuple"][0].data_ptr() == copies["list"][0].data_ptr()  # what was tied stays tied
    again = [*copies["list"], copies["tuple"][0], copies["tuple"][1][1]]
    for there, was in zip(again, [*parts, parts[0], parts[-1]], strict=True):
        assert (there.dtype, there.shape) == (was.dtype, was.shape)
        assert torch.equal(there, was)
    copies = copied(state)
    before = [part.clone() for part in parts]
    for part in parts:
        part.fill_(1)
    assert all(map(torch.equal, copies["list"], before))


needs_safetensors = pytest.mark.skipif(
    importlib.util.find_spec("safetensors") is None, reason="safetensors is not installed"
)
SUFFIXES = [".pt", pytest.param(".safetensors", marks=needs_safetensors)]


def run(folder: Path, *options: str) -> int:
    arguments = ["train", KNOBS, "--headless", "--device", "cpu", "--run-dir", str(folder)]
    return main([*arguments, "--set", "step_ms=0", *options])


def equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def built(**options: Any) -> nn.Module:
    return prepare(Tiny(**options)).model


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_run_starts_with_the_weights_that_another_ended_with(suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"weights{suffix}"
    first = prepare(Tiny(epochs=1))
    train(first, Log())
    assert not save_weights(first.model, first.experiment, file)
    assert list(tmp_path.iterdir()) == [file]
    if suffix == ".pt":
        assert equal(torch.load(file, weights_only=True), first.model.state_dict()), "torch reads it too"
    second = prepare(Tiny(epochs=1), init_weights=str(file))
    assert equal(second.model.state_dict(), first.model.state_dict())
    assert all(parameter.requires_grad for parameter in second.model.parameters())
    assert not equal(prepare(Tiny(epochs=1)).model.state_dict(), first.model.state_dict())


def test_a_stopped_run_saves_its_weights_and_a_failed_one_leaves_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "weights.pt"
    file.write_text("old")
    failed = Worker(steps=9, save_weights=str(file), settings={"trouble": "loss"})
    assert isinstance(failed.end(), RunFailed)
    assert file.read_text() == "old"
    stopped = Worker(save_weights=str(file))
    stopped.log.watch = stopping(stopped.control, 3)
    end = stopped.end()
    assert isinstance(end, RunFinished)
    assert end.reason == "stopped"
    assert "1.weight" in torch.load(file, weights_only=True)
    (saved,) = stopped.log.of(WeightsSaved)
    assert (saved.step, saved.path, saved.averaged) == (end.steps, str(file), False)
    assert not failed.log.of(WeightsSaved)


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (
            {f"{name}.new": torch.ones(2) for name in "abcd"},
            'Unexpected key(s) in state_dict: "a.new", "b.new", "c.new", "d.new"',
        ),
        ({"1.bias": None}, 'Missing key(s) in state_dict: "1.bias"'),
        ({"1.weight": torch.ones(5, 3)}, "size mismatch for 1.weight"),
    ],
    ids=["more", "less", "shapes"],
)
def test_what_does_not_fit_is_told_in_one_line(
    change: dict[str, Any], difference: str, tmp_path: Path
) -> None:
    model, file = built(), tmp_path / "weights.pt"
    state = {**model.state_dict(), **change}
    torch.save({name: value for name, value in state.items() if value is not None}, file)
    with pytest.raises(UsageError) as raised:
        load_weights(model, file)
    told = str(raised.value)
    assert told.startswith(f"{file} does not fit the model: ")
    assert told.endswith("; check the model and its options")
    assert difference in told
    assert "\n" not in told


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"garbage", "it is damaged, or no file of torch.save"),
        ({"w": torch.ones(1), "own": Harmful()}, "it holds more than tensors (posix._exit), which"),
        ([1, 2], ""),
        ({"epoch": 3}, ""),
    ],
    ids=["garbage", "code", "a list", "no tensor"],
)
def test_a_file_without_a_state_dict_is_told_and_runs_no_code(
    content: object, why: str, tmp_path: Path
) -> None:
    file = tmp_path / "weights.pt"
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        torch.save(content, file)
    end = Worker(init_weights=str(file)).end()
    assert isinstance(end, RunFailed)
    assert end.error.startswith(f"cannot read {file}: {why}" if why else f"{file} holds no state_dict")
    assert "\n" not in end.error
    for text in (end.error, end.traceback):
        assert not re.search("weights_only.*False|arbitrary code|add_safe_globals", text)


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    with pytest.raises(OutputError, match="No such file or directory"):
        save_weights(built(), Tiny(), folder / "weights.pt")
    with pytest.raises(OutputError, match="Is a directory"):
        save_weights(built(), Tiny(), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_resumed_run_goes_on_from_its_checkpoint_not_from_the_first_weights(tmp_path: Path) -> None:
    file = tmp_path / "weights.pt"
    knobs = nn.Sequential(nn.Flatten(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    save_weights(knobs, Tiny(), file)
    folder = tmp_path / "run"
    assert run(folder, "--steps", "3", "--init-weights", str(file)) == 0
    file.unlink()
    assert run(folder, "--resume", "--steps", "5", "--init-weights", str(file)) == 0
    assert run(folder, "--resume", "--steps", "6", "--init-weights", str(tmp_path / "other.pt")) == 2
