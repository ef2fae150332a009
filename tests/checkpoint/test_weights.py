"""Plain weights in files: what is written is read by torch itself, what does not fit is told in one line."""

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from amptui.base.errors import OutputError, UsageError
from amptui.checkpoint.states import load_weights, save_weights
from amptui.cli import main
from amptui.records.keeping import WeightsSaved
from amptui.records.run import RunFailed, RunFinished
from tests.loops.working import Worker
from tests.terminal import KNOBS
from tests.tiny import Log, Tiny, prepare, stopping, train

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
        ({f"{name}.new": torch.ones(2) for name in "abcd"}, "4 unexpected: a.new, b.new, c.new, ...;"),
        ({"1.bias": None}, "1 missing: 1.bias;"),
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


class Evil:
    """Runs code where a pickle is read carelessly."""

    def __reduce__(self) -> Any:
        return sys.exit, ("it ran",)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"garbage", "it is damaged, or no file of torch.save"),
        ({"w": torch.ones(1), "own": Evil()}, "it holds more than tensors (sys.exit), which"),
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
