"""What a script's run is called, its file, module or notebook; and how its ranks share the training."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from amptui.guest.loop.named_optimizers import NamedOptimizer
from amptui.guest.loop.script import ObservedScript
from amptui.guest.processes import OneOfRanks
from amptui.guest.run_records import own_script_name
from amptui.ranks.world import World

KERNEL = "/env/lib/python3.12/site-packages/ipykernel_launcher.py"


@pytest.fixture(autouse=True)
def _no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)


@pytest.mark.parametrize(
    ("argument", "name"),
    [
        ("train.py", "train"),
        ("/home/me/runs/train_big.py", "train_big"),
        ("/home/me/package/__main__.py", "package"),
        ("-c", "script"),
        ("", "script"),
        (KERNEL, "notebook"),
        ("/usr/local/lib/python3.12/dist-packages/colab_kernel_launcher.py", "notebook"),
    ],
)
def test_a_run_has_the_name_of_what_python_runs(
    argument: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [argument])
    assert own_script_name() == name


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/home/me/Fine tuning.ipynb", "Fine tuning"),
        ("nested/train.v2.ipynb", "train.v2"),
        ("/home/me/console-1-0c7e", "console-1-0c7e"),
        ("", "notebook"),
    ],
)
def test_a_notebook_s_run_has_the_notebook_s_name(
    path: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [KERNEL, "-f", "/run/kernel-1.json"])
    monkeypatch.setenv("JPY_SESSION_NAME", path)
    assert own_script_name() == name
    monkeypatch.setattr(sys.modules["__main__"], "__vsc_ipynb_file__", "/home/me/code.ipynb", raising=False)
    assert own_script_name() == "code"


def test_a_script_that_a_notebook_starts_has_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(Path("train.py"))])
    monkeypatch.setenv("JPY_SESSION_NAME", "/home/me/some.ipynb")
    assert own_script_name() == "train"


@pytest.mark.parametrize(
    ("option", "data_parallel", "is_known"), [(None, 4, True), (2, 2, True), (1, 1, True), (3, 0, False)]
)
def test_a_script_may_say_how_many_ranks_take_samples_of_their_own(
    option: int | None, data_parallel: int, is_known: bool
) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    script = ObservedScript(first=NamedOptimizer("", model, optimizer), data_parallel=option)
    layout = OneOfRanks(World(0, 0, 4)).layout(script)
    assert layout.data_parallel == data_parallel
    assert (layout.unknown == "") is is_known
