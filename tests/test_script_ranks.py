"""Somebody's own script on two ranks, started by torchrun: one run, and the training as without us."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from amptui.base.errors import RunFolderError
from amptui.records.control import NO_XRAY
from amptui.records.ranks import RankLost, RanksAwaited, RanksStarted, StacksTaken
from amptui.records.run import Note, PauseChanged, RunFailed, RunFinished, RunResumed, RunStarted
from amptui.runs.kept_run import look_at
from amptui.runs.rundir import RunDir
from tests.builders import StepRow, of
from tests.checkout import ROOT
from tests.conformance.recorded import Request, Screen
from tests.living import last_step, own_lines, records_of, wait_until
from tests.terminal import amptui_command
from tests.warm import Process, WarmSource

pytestmark = pytest.mark.ci

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")

SCRIPT = str(ROOT / "tests" / "rank_script.py")

Steps = list[list[list[str]]]
"""Of each rank, of each step: the precision and a hash of the weights."""


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path / "amptui" / "runs"


@contextmanager
def started(
    warm: WarmSource, out: Path, kind: str, steps: int, start: tuple[str, ...] = TORCHRUN
) -> Iterator[Process]:
    """The script on two ranks, which goes on until the end of the block; that of the script is awaited.

    What starts them has torch imported.
    """
    out.mkdir()
    command = [*start, SCRIPT, str(out), kind, str(steps)]
    output, errors = (out / name for name in ("printed", "errors"))
    with open(os.devnull) as nothing, output.open("wb") as printed, errors.open("wb") as said:  # noqa: PTH123
        process = warm.start(command, nothing.fileno(), printed.fileno(), said.fileno())
        try:
            yield process
            (out / "stop").touch()
            process.wait(240)
        finally:
            process.send_signal(signal.SIGTERM)


def said(out: Path) -> str:
    return (out / "errors").read_text()


def launched(warm: WarmSource, out: Path, kind: str, steps: int, start: tuple[str, ...] = TORCHRUN) -> int:
    with started(warm, out, kind, steps, start) as process:
        pass
    return process.wait()


def steps_in(out: Path) -> Steps:
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.fixture(scope="module")
def bare(warm: WarmSource, tmp_path_factory: pytest.TempPathFactory) -> Steps:
    out = tmp_path_factory.mktemp("bare") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        assert launched(warm, out, "bare", 200) == 0
    return steps_in(out)


def the_run(runs: Path) -> Path:
    (run,) = runs.iterdir()
    return run


def begun(runs: Path) -> Path:
    wait_until(lambda: runs.exists() and any(runs.iterdir()), "no run", seconds=120)
    return the_run(runs)


def meeting(runs: Path) -> Path:
    run = begun(runs)
    wait_until(lambda: of(RanksStarted, records_of(run)), "the ranks have not met", seconds=120)
    return run


def assert_trained_as(bare: Steps, out: Path) -> None:
    assert sorted(own_lines((out / "printed").read_text())) == ["rank 0 is done", "rank 1 is done"]
    assert steps_in(out) == bare


def test_watch_trains_as_the_bare_script_and_opens_one_run(
    warm: WarmSource, bare: Steps, tmp_path: Path, runs: Path
) -> None:
    out = tmp_path / "out"
    assert launched(warm, out, "watch", 200) == 0
    assert_trained_as(bare, out)
    run = the_run(runs)
    assert [line for line in said(out).splitlines() if "amptui" in line] == [f"amptui attach {run.name}"]
    records = records_of(run)
    (started,) = of(RunStarted, records)
    assert (started.world_size, started.parallel) == (2, "ddp")
    assert started.refuses["x-ray"] == NO_XRAY
    assert len(of(StepRow, records)) == 200
    assert isinstance(records[-1], RunFinished)


def test_observed_ranks_train_as_the_bare_script(
    warm: WarmSource, bare: Steps, tmp_path: Path, runs: Path
) -> None:
    start = amptui_command("run", "--headless", "--observe", "torchrun")
    assert launched(warm, tmp_path / "out", "bare", 200, (*start, *TORCHRUN[3:])) == 0
    assert_trained_as(bare, tmp_path / "out")
    run = the_run(runs)
    assert run.name.startswith("rank_script")
    records = records_of(run)
    steps = of(StepRow, records)
    assert len(steps) == 200
    (started,) = of(RunStarted, records)
    assert (started.world_size, started.observed) == (2, True)
    assert (started.parallel, started.data_parallel) == ("ddp", 2)
    # Counted by what the model is called with, 8 samples on each rank.
    assert {step.samples for step in steps} - {0} == {16}


def screen_of(run: Path) -> Screen:

    def reached() -> Screen | None:
        try:
            return Screen(run)
        except RunFolderError:
            return None

    screen = wait_until(reached, "no socket", seconds=120)
    assert screen is not None
    return screen


STOP: Request = {"request": "stop", "reason": "q", "at_once": False}


def switch(precision: str) -> Request:
    return {"request": "precision", "precision": precision}


def pause(paused: bool) -> Request:
    return {"request": "pause", "paused": paused}


@contextmanager
def training(
    warm: WarmSource, out: Path, kind: str, runs: Path, steps: int = 1_000_000
) -> Iterator[tuple[Screen, Path]]:
    """A script on two ranks that trains until it is stopped, and a screen; its end is awaited."""
    with started(warm, out, kind, steps) as process:
        screen = screen_of(begun(runs))
        yield screen, the_run(runs)
    screen.close()
    assert process.returncode == 0, said(out)


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["watch", "sharded"])
def test_all_ranks_obey_a_screen_at_the_same_step(
    kind: str, warm: WarmSource, tmp_path: Path, runs: Path
) -> None:
    out = tmp_path / "out"
    with training(warm, out, kind, runs) as (screen, run):
        screen.wait_for(lambda line: line.get("type") == "Steps")
        asked = [switch(name) for name in ("bf16", "fp16", "fp32", "bf16")]
        asked += [{"request": "checkpoint"}, pause(True), pause(False)]
        assert {screen.answer(request)["type"] for request in asked} == {"RequestTaken"}
        refused = screen.answer({"request": "x-ray"})
        assert (refused["type"], refused["detail"]) == ("RequestRefused", NO_XRAY)
        screen.wait_for(lambda line: line.get("type") == "RanksSampled")
        screen.ask(STOP)
    precisions, weights = ([[step[part] for step in steps] for steps in steps_in(out)] for part in (0, 1))
    assert precisions[0] == precisions[1]
    assert set(precisions[0]) == {"fp32", "bf16", "fp16"}
    records = records_of(run)
    if kind == "sharded":  # each rank has weights of its own, and no rank the norm of all
        assert {record.grad_norm for record in of(StepRow, records)} == {None}
    else:
        assert weights[0] == weights[1]
    (ranks,) = of(RanksStarted, records)
    assert [place.rank for place in ranks.ranks] == [0, 1]
    assert [record.paused for record in of(PauseChanged, records)] == [True, False]
    last = records[-1]
    assert isinstance(last, RunFinished)
    assert (last.reason, last.steps) == ("stopped", len(precisions[0]))


def test_where_only_rank_0_watches_it_tells_so_once_and_nobody_waits(
    warm: WarmSource, bare: Steps, tmp_path: Path, runs: Path
) -> None:
    out = tmp_path / "out"
    with training(warm, out, "only rank 0", runs, 200) as (screen, run):
        answer = screen.answer(switch("bf16"))
        assert answer["type"] == "RequestRefused"
        assert "rank 1 has not called amptui" in answer["detail"]
    first, other = steps_in(out)
    assert first == other
    assert [first[:200], other[:200]] == bare
    records = records_of(run)
    assert len(of(StepRow, records)) == len(first)
    assert len([note for note in of(Note, records) if "rank 1 has not called amptui" in note.text]) == 1


@pytest.mark.nightly
def test_ranks_with_unequal_batches_train_as_without_us_and_refuse(
    warm: WarmSource, tmp_path: Path, runs: Path
) -> None:
    assert launched(warm, tmp_path / "bare", "bare uneven", 200) == 0
    out = tmp_path / "out"
    with training(warm, out, "uneven", runs, 200) as (screen, run):
        wait_until(lambda: last_step(run) >= 100, "no step")
        for request in (switch("bf16"), pause(True)):
            assert screen.answer(request)["type"] == "RequestRefused"
    for ours, bare in zip(steps_in(out), steps_in(tmp_path / "bare"), strict=True):
        assert len(bare) >= 190
        assert ours[: len(bare)] == bare


def test_a_killed_rank_ends_the_script_as_without_us(warm: WarmSource, tmp_path: Path, runs: Path) -> None:
    status = launched(warm, tmp_path / "bare", "bare killed", 1_000_000)
    out = tmp_path / "out"
    with started(warm, out, "killed", 1_000_000) as ours:
        wait_until(lambda: of(StepRow, records_of(begun(runs))), "no step", seconds=120)
    assert ours.returncode == status != 0
    for text in (said(tmp_path / "bare"), said(out)):  # the other rank may die of it first, as gloo has it
        assert dict(re.findall(r"rank +: (\d).*\n +exitcode +: (-?\d+)", text))["1"] == "-9"
    assert of(StepRow, records_of(the_run(runs)))  # what happened before is kept
    assert "SIGABRT" not in said(out)


def test_the_error_of_another_rank_is_in_the_journal(warm: WarmSource, tmp_path: Path, runs: Path) -> None:
    """That of rank 0 says only that the connection was closed."""
    with started(warm, tmp_path / "out", "failing", 1_000_000) as process:
        run = meeting(runs)
    assert process.returncode == 1
    records = records_of(run)
    (lost,) = of(RankLost, records)
    assert (lost.rank, lost.cause, lost.detail) == (1, "failed", "ArithmeticError: a wrong number")
    found = look_at(RunDir(run))
    if found.state == "died":  # torchrun ended rank 0, with signals of its own, before its last record
        assert found.trouble == lost
    else:
        assert found.state == "failed"
        assert isinstance(records[-1], RunFailed)


def test_a_rank_that_makes_the_others_wait_is_told_with_its_stack_and_never_ended(
    warm: WarmSource, tmp_path: Path, runs: Path
) -> None:
    with started(warm, tmp_path / "out", "stuck", 100) as process:
        wait_until(lambda: of(StacksTaken, records_of(begun(runs))), "no stacks", seconds=120)
    assert process.returncode == 0
    records = records_of(the_run(runs))
    waits = of(RanksAwaited, records)
    # On a busy machine the rank may not even answer for the 2 s after which it is told here.
    assert ((1,), "script") in {(record.ranks, record.phase) for record in waits}
    assert {record.ranks for record in waits} == {(1,)}
    assert [record.over for record in (waits[0], waits[-1])] == [False, True]
    (stacks,) = of(StacksTaken, records)
    assert ([stack.rank for stack in stacks.stacks], stacks.silent) == ([0, 1], ())
    assert ["time.sleep(15)" in stack.stack for stack in stacks.stacks] == [False, True]
    assert isinstance(records[-1], RunFinished)


@pytest.mark.parametrize(
    "kind", ["killed once: rank 1", pytest.param("failing once: rank 0", marks=pytest.mark.nightly)]
)
def test_ranks_that_are_started_again_go_on_in_one_run(
    warm: WarmSource, kind: str, tmp_path: Path, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The new ranks would find the addresses of the old ones in torchrun's store (pytorch 135712).
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    again = ("--standalone", *TORCHRUN[3:], "--max-restarts", "1", "--monitor-interval", "0.1")
    start = amptui_command("run", "--headless", "torchrun")
    with started(warm, tmp_path / "out", kind, 40, (*start, *again)) as process:
        run = meeting(runs)
    assert process.returncode == 0, said(tmp_path / "out")
    records = records_of(run)
    assert len(of(RunStarted, records)) == 1
    (resumed,) = of(RunResumed, records)
    assert (resumed.restarts, resumed.world_size) == (1, 2)
    if kind.startswith("failing"):
        assert "only once" in of(RankLost, records)[0].detail
    assert [record.step for record in of(StepRow, records)] == list(range(1, resumed.step + 41))
    (last,) = of(RunFinished, records[-1:])
    assert (last.reason, last.steps) == ("done", resumed.step + 40)


@pytest.mark.nightly
def test_the_demo_trains_on_two_ranks(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    demo = str(ROOT / "demo" / "own_ranks.py")
    command = amptui_command("run", "--run-dir", str(folder), "torchrun", *TORCHRUN[3:], demo, "20")
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert result.returncode == 0, result.stderr
    steps = of(StepRow, records_of(folder))
    assert [(record.step, record.samples) for record in steps] == [(step, 256) for step in range(1, 21)]


def test_ranks_of_a_mesh_that_share_their_samples_count_them_once(
    warm: WarmSource, tmp_path: Path, runs: Path
) -> None:
    start = (*amptui_command("run", "--headless", "torchrun"), "--standalone", "--nproc-per-node", "4")
    out = tmp_path / "out"
    assert launched(warm, out, "mesh", 40, start) == 0, said(out)
    records = records_of(the_run(runs))
    (started,) = of(RunStarted, records)
    assert (started.world_size, started.parallel, started.data_parallel) == (4, "fsdp2+tp", 2)
    steps = of(StepRow, records)
    assert len(steps) == 40
    assert {step.samples for step in steps} == {2 * 8}
    assert isinstance(records[-1], RunFinished)
    assert "4 ranks, FSDP2 + TP, data parallel 2" in (out / "printed").read_text() + said(out)
