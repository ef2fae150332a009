"""A script's run among its processes: its name, its ranks, and a rank that fails."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._C._distributed_c10d import HashStore

import amptui
from amptui.device.readback import HostReadback
from amptui.guest.processes import OneOfRanks
from amptui.guest.run import own_script_name
from amptui.loops.script.script import ObservedScript
from amptui.ranks.agreement.board import Board
from amptui.ranks.failure import RankEnds
from amptui.ranks.world import World
from amptui.recipe.trained import NamedOptimizer
from tests.builders import StepRow, of, recorded
from tests.tiny import Log

KERNEL = "/env/lib/python3.12/site-packages/ipykernel_launcher.py"


@pytest.mark.parametrize(
    ("argument", "jupyter", "vs_code", "name"),
    [
        ("/home/me/runs/train_big.py", "", "", "train_big"),
        ("/home/me/package/__main__.py", "", "", "package"),
        ("-c", "", "", "script"),
        ("", "", "", "script"),
        (KERNEL, "", "", "notebook"),
        (KERNEL, "nested/Fine tuning.v2.ipynb", "", "Fine tuning.v2"),
        (KERNEL, "", "/home/me/code.ipynb", "code"),
        ("train.py", "nested/Fine tuning.v2.ipynb", "/home/me/code.ipynb", "train"),  # the notebook starts it
    ],
)
def test_a_run_has_the_name_of_what_python_runs(
    argument: str, jupyter: str, vs_code: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [argument])
    monkeypatch.setenv("JPY_SESSION_NAME", jupyter)
    monkeypatch.setattr(sys.modules["__main__"], "__vsc_ipynb_file__", vs_code or None, raising=False)
    assert own_script_name() == name


def test_a_rank_that_fails_tells_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    """Else they would wait for it after each request."""
    world, log = World(1, 1, 2), Log()
    board, rank = Board(HashStore(), "test"), OneOfRanks(world)
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rank.open(ObservedScript(first=NamedOptimizer("", model, optimizer)), log.emit)
    rank._ends = RankEnds(board, world)
    rank._lose(ZeroDivisionError("a fault"))
    assert board.look("first end")[0] == 1
    assert capsys.readouterr().err.count("\n") == 1


class BlockedDevice(HostReadback):
    """A device that waits for a collective of a rank that has ended: nothing arrives any more."""

    def drain(self) -> None:
        """What has arrived, which is nothing."""

    def flush(self) -> None:
        raise AssertionError("this would wait for ever")


def test_after_an_error_of_a_rank_its_device_is_not_awaited(runs: Path) -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with amptui.observe(model, optimizer) as monitor:
        assert monitor._run is not None
        loop = monitor._run.loop
        loop.first._readback = device = BlockedDevice(lambda: 0.0)
        loop.first.probes.drain, loop.first.probes.flush = device.drain, device.flush  # type: ignore[method-assign]
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        with pytest.raises(AssertionError, match="for ever"):
            loop.first.close(waits=True)
        loop.close(waits=False)
    assert of(StepRow, recorded(runs)) == []
