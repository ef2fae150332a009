"""observe() in a compiled loop, an interactive session and a script, which behave as without it."""

import code
import gc
import io
import os
import random
import signal
import sys
import threading
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import amptui
from amptui.records.run import RunFailed, RunFinished
from tests.builders import StepRow, of
from tests.builders import recorded as records
from tests.observed import Loop, same_bits


@pytest.fixture
def compiler() -> Iterator[Any]:
    """torch's compiler, which forgets before and after the test what it compiled."""
    import torch._dynamo

    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    yield torch._dynamo
    torch.compiler.reset()


@pytest.mark.ci  # it traces
@pytest.mark.torch
@pytest.mark.parametrize("what", ["model", "whole loop"])
def test_a_compiled_loop_has_the_same_graphs_and_bits(what: str, compiler: Any, runs: Path) -> None:
    def train(*, watched: bool) -> tuple[Loop, dict[str, int]]:
        compiler.utils.counters.clear()
        torch.compiler.reset()
        loop = Loop("bf16")
        monitor = amptui.observe(loop.model, loop.optimizer) if watched else None
        if what == "model":
            loop.model = torch.compile(loop.model, backend="eager")  # type: ignore[assignment]
        step = torch.compile(loop.train_step, backend="eager") if what == "whole loop" else loop.train_step
        for _ in range(4):
            step(1)
        if monitor is not None:
            monitor.close()
        return loop, dict(compiler.utils.counters["stats"])

    (bare, before), (ours, after) = train(watched=False), train(watched=True)
    assert before["unique_graphs"] > 0
    assert after == before
    assert same_bits(ours, bare)
    if what == "model":
        assert len(of(StepRow, records(runs))) == 4


def test_a_session_prints_how_to_attach_and_goes_on_after_an_error(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    monkeypatch.setattr(sys, "argv", [""])
    session = code.InteractiveConsole({})
    for line in (
        "import amptui",
        "from tests.observed import Loop",
        "loop = Loop('fp32')",
        "monitor = amptui.observe(loop.model, loop.optimizer)",
        "_ = loop.run(2)",
        "1 / 0",
        "_ = loop.run(1)",
        "monitor._close_at_exit()",
    ):
        assert not session.push(line)
    stderr = capsys.readouterr().err
    (run,) = runs.iterdir()
    assert stderr.count(f"amptui attach {run.name}\n") == 1
    assert stderr.count("ZeroDivisionError") == 1
    assert len(of(StepRow, records(runs))) == 3
    assert isinstance(records(runs)[-1], RunFinished)


def test_random_numbers_threads_and_signals_are_those_of_the_bare_script(runs: Path) -> None:
    def state() -> list[Any]:
        return [
            *(random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()),
            *(torch.get_num_threads(), torch.get_num_interop_threads(), torch.get_default_dtype()),
            *(torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
            *(torch.backends.cuda.matmul.allow_tf32, torch.are_deterministic_algorithms_enabled()),
            [signal.getsignal(number) for number in signal.valid_signals()],
            *(signal.pthread_sigmask(signal.SIG_BLOCK, ()), list(warnings.filters), sys.getswitchinterval()),
            *(gc.isenabled(), gc.get_freeze_count(), sys.excepthook, threading.excepthook, io.open is open),
            *(sys.stdout, sys.stderr, torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()),
            *(Path.cwd(), dict(os.environ), os.sched_getaffinity(0), sys.getrecursionlimit()),
            *(threading.active_count(), sys.gettrace(), sys.getprofile(), list(sys.meta_path)),
        ]

    Loop("fp16").run(3)
    before, loop = state(), Loop("fp16")  # which sets the seed
    with amptui.observe(loop.model, loop.optimizer, loop.scaler):
        loop.run(3)
    assert state() == before
    assert not {"scale", "unscale_", "step", "update"} & set(vars(loop.scaler))
    assert not loop.optimizer._optimizer_step_post_hooks


def test_what_the_script_drops_is_freed_while_it_is_observed(runs: Path) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())
    with amptui.observe(model, optimizer):
        for _ in range(3):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        references = [weakref.ref(part) for part in (model, optimizer, model.weight)]
        del model, optimizer
        assert [reference() for reference in references] == [None, None, None]
        torch.ones(1, requires_grad=True).sum().backward()
    assert len(of(StepRow, records(runs))) == 3


@pytest.mark.parametrize(
    ("error", "last_words"),
    [
        (SystemExit(3), "the script exited with status 3"),
        (SystemExit("no data"), "the script exited with status 1: no data"),
        (SystemExit(-1), "the script exited with status 255"),
        (SystemExit(0), ""),
        (SystemExit(), ""),
        (AssertionError(), "AssertionError"),
    ],
    ids=repr,
)
def test_what_a_script_raises_is_its_end(error: BaseException, last_words: str, runs: Path) -> None:
    loop = Loop("fp32")

    def script() -> None:
        with amptui.observe(loop.model, loop.optimizer):
            loop.run(2)
            raise error

    with pytest.raises(type(error)):
        script()
    last = records(runs)[-1]
    if last_words:
        assert isinstance(last, RunFailed)
        assert last.error == last_words
    else:
        assert isinstance(last, RunFinished)
        assert last.reason == "done"
