"""Which signal does what to which command: exit status, last words, the journal's end, a whole terminal."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGKILL, SIGSEGV, SIGTERM, SIGUSR1, SIGXCPU

import pytest

from amptui.records.keeping import CheckpointWritten
from amptui.records.run import PhaseChanged, RunFailed, RunFinished
from amptui.runs.rundir import RunDir
from tests.checkout import ROOT
from tests.living import (
    Lives,
    assert_restored,
    changed_program,
    ended_afterwards,
    last_step,
    outcome,
    records_of,
    run_pid,
    screens,
    steps_of,
    train,
    train_arguments,
    wait_for_end,
    wait_for_more,
    wait_until,
)
from tests.terminal import Terminal, amptui_command
from tests.warm import Process, WarmSource

WATCHED = """
import amptui, time
from tests.observed import Loop
loop = Loop("fp16")
amptui.observe(loop.model, loop.optimizer, loop.scaler)
while True:
    loop.run(1)
    time.sleep(0.005)
"""


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts import from tests."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def assert_whole(run: Path) -> None:
    """The last word is there, and a checkpoint of the last step."""
    assert outcome(run) is RunFinished
    assert [r.reason for r in records_of(run) if isinstance(r, RunFinished)] == ["stopped"]
    newest = max(RunDir(run).checkpoints_path.glob("*.pt"))
    assert int(newest.stem.removeprefix("step-")) == last_step(run) == len(steps_of(run))


def said_by(terminal: Terminal) -> str:
    return " ".join(terminal.text.split()).replace("- ", "-")


@contextmanager
def headless(lives: Lives, run: Path, *arguments: str) -> Iterator[Process]:
    with ended_afterwards(run):
        process = lives.start(*(arguments or train_arguments(run, "--headless")))
        wait_until(lambda: last_step(run) > 0, "no step was taken")
        yield process


@pytest.mark.parametrize(
    ("number", "script"),
    [
        (SIGTERM, ""),
        pytest.param(SIGINT, "", marks=pytest.mark.ci),
        pytest.param(SIGUSR1, "", marks=pytest.mark.ci),
        pytest.param(SIGTERM, WATCHED, marks=pytest.mark.ci),
    ],
    ids=["SIGTERM", "SIGINT", "SIGUSR1", "a script dies of it as without amptui"],
)
def test_a_headless_run_that_is_signalled_writes_a_checkpoint(
    number: signal.Signals, script: str, lives: Lives, tmp_path: Path
) -> None:
    run, program = tmp_path / "run", tmp_path / "train.py"
    program.write_text(script)
    command = ("run", "--headless", "--run-dir", str(run), str(program)) if script else ()
    with headless(lives, run, *command) as process:
        process.send_signal(number)
        assert process.wait(60) == 128 + number
    if script:
        assert outcome(run) is RunFailed
    else:
        assert_whole(run)


@pytest.mark.ci
def test_a_headless_run_that_prints_survives_its_terminal(warm: WarmSource, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with train(warm, run, "--headless", "--set", "trouble=print") as terminal:
        terminal.wait_for("print from step")
        os.kill(terminal.process.pid, SIGHUP)
        wait_until((run / "output.log").exists, "output is not kept")
        terminal.hang_up()
        wait_for_more(run)
        os.kill(terminal.process.pid, SIGTERM)
        assert terminal.wait() == 128 + SIGTERM
    assert_whole(run)
    assert f"print from step {last_step(run)}" in (run / "output.log").read_text()
    assert any("terminal was closed" in getattr(record, "text", "") for record in records_of(run))


@contextmanager
def in_a_slow_step(lives: Lives, tmp_path: Path, *options: str) -> Iterator[tuple[Process, Path, Path]]:
    """A run in its third step, its folder, and the file that this step waits for."""
    run, gate = tmp_path / "run", tmp_path / "gate"
    held = ("--set", f"gate={gate}", "--set", "at=3")
    arguments = train_arguments(run, "--headless", *held, *options)
    with headless(lives, run, *arguments) as process:
        wait_until(lambda: last_step(run) == 2, "the slow step did not begin")
        yield process, run, gate


def waits(run: Path) -> list[str]:
    return [r.detail for r in records_of(run) if isinstance(r, PhaseChanged) and r.phase == "stopping"]


@pytest.mark.ci
@pytest.mark.parametrize(
    "numbers",
    [(SIGTERM,), (SIGUSR1, SIGUSR1, SIGXCPU)],
    ids=["terminated", "by a scheduler, which comes twice"],
)
def test_a_stop_waits_for_the_step_however_long_it_takes_and_says_so(
    numbers: tuple[signal.Signals, ...], lives: Lives, tmp_path: Path
) -> None:
    with in_a_slow_step(lives, tmp_path) as (process, run, gate):
        for number in numbers:
            process.send_signal(number)
        wait_until(lambda: waits(run) == ["stopping after step 3"], "what is awaited was not told")
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.0)
        assert "second Ctrl+C or SIGTERM" in lives.log.read_text()
        gate.touch()
        assert process.wait(60) in {128 + number for number in numbers}
    assert last_step(run) == 3
    assert_whole(run)


@pytest.mark.ci
def test_a_second_signal_ends_the_run_in_its_step_and_says_what_is_lost(lives: Lives, tmp_path: Path) -> None:
    with in_a_slow_step(lives, tmp_path, "--checkpoint-every", "1") as (process, run, _):
        wait_until(lambda: checkpoints_told(run), "no checkpoint was written")
        process.send_signal(SIGTERM)
        wait_until(lambda: waits(run), "the first signal was not heeded")
        process.send_signal(SIGINT)
        assert process.wait(60) == 128 + SIGTERM
    last = records_of(run)[-1]
    assert isinstance(last, RunFailed)
    assert last.step == last_step(run) == 2
    assert last.error in lives.log.read_text()
    assert last.error.startswith("ended at once, in step 3: ")
    assert f"; to resume from step {checkpoints_told(run)[-1]}: amptui train " in last.error


def checkpoints_told(run: Path) -> list[int]:
    return [r.step for r in records_of(run) if isinstance(r, CheckpointWritten)]


ENDS, GOES_ON, NO_RUN = "the run ends", "the run goes on", "there is none"

SCREENS = (
    ("train", "ctrl+c", 130, ENDS, "stopped after"),
    ("train", SIGTERM, 143, ENDS, "stopped after"),
    ("train", SIGUSR1, 128 + SIGUSR1, ENDS, "stopped after"),
    ("train", "closed", 129, GOES_ON, ""),
    ("attach", SIGINT, 130, GOES_ON, "training continues to watch it again: amptui attach"),
    ("attach", "closed", 129, GOES_ON, ""),
    ("run", "closed", 129, GOES_ON, ""),
    ("replay", SIGINT, 130, NO_RUN, ""),
    ("replay", SIGTERM, 143, NO_RUN, ""),
    ("replay", "closed", 129, NO_RUN, ""),
    ("list", "ctrl+c", 130, NO_RUN, ""),
    ("list", "closed", 129, NO_RUN, ""),
)
"""Command; what is sent to it; its exit status; what becomes of the run; what it says at last."""


@contextmanager
def screen_of(command: str, lives: Lives, run: Path) -> Iterator[Terminal]:
    script = run.with_name("train.py")
    script.write_text(WATCHED)
    journal = str(ROOT / "demo" / "mnist-deep.jsonl")
    arguments, seen = {
        "train": (train_arguments(run), r"step\s+[1-9]"),
        "attach": (("attach", str(run)), r"step\s+[1-9]"),
        "run": (("run", "--run-dir", str(run), str(script)), "AMP fp16 .*running"),
        "replay": (("replay", journal), r"replay (×1|ended)"),
        "list": ((), "no runs yet"),
    }[command]
    with ExitStack() as stack, ended_afterwards(run):
        if command == "attach":
            stack.enter_context(headless(lives, run))
        with Terminal(amptui_command(*arguments), warm=lives.warm) as terminal:
            terminal.wait_for(seen)
            yield terminal


@pytest.mark.ci
@pytest.mark.parametrize(
    ("command", "sent", "status", "becomes", "said"), SCREENS, ids=lambda each: getattr(each, "name", None)
)
def test_what_a_signal_does_to_a_screen_and_to_its_run(
    command: str, sent: str | int, status: int, becomes: str, said: str, lives: Lives, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with screen_of(command, lives, run) as terminal:
        if sent == "closed":
            terminal.hang_up()
        elif isinstance(sent, str):
            terminal.press("\x03")
        else:
            terminal.process.send_signal(sent)
        assert terminal.wait() == status
        if sent != "closed":
            wait_until(lambda: terminal.read(0.05) and said in said_by(terminal), f"{said!r} is not said")
            assert_restored(terminal)
            assert "still stopping" not in terminal.text
        if becomes == GOES_ON:
            wait_for_more(run)
            if sent == "closed":
                wait_until(lambda: not screens(run), "that the screen hung up")
    if becomes == ENDS:
        wait_for_end(run)
        if command == "train":
            assert_whole(run)
        assert outcome(run) is RunFinished


@pytest.mark.ci
@pytest.mark.parametrize("twice", [True, False])
def test_a_screen_says_which_step_its_stop_waits_for_and_a_second_one_does_not_wait(
    *, twice: bool, warm: WarmSource, tmp_path: Path
) -> None:
    run, gate = tmp_path / "run", tmp_path / "gate"
    with train(warm, run, "--set", f"gate={gate}", "--set", "at=3") as terminal:
        terminal.wait_for(r"step\s+2")
        terminal.press("\x03")
        terminal.wait_for("stopping after step 3")
        if twice:
            terminal.press("\x03")
        else:
            gate.touch()
        assert terminal.wait() == 130
        assert_restored(terminal)
        if twice:
            assert "ended at once, in step 3: 2 finished steps lost" in said_by(terminal)
    wait_for_end(run)
    if twice:
        assert outcome(run) is RunFailed
    else:
        assert_whole(run)


@pytest.mark.ci
@pytest.mark.parametrize("number", [SIGKILL, SIGSEGV])
def test_a_run_that_is_killed_leaves_a_whole_terminal_and_says_so(
    number: signal.Signals, lives: Lives, tmp_path: Path
) -> None:
    with screen_of("train", lives, tmp_path / "run") as terminal:
        pid = run_pid(tmp_path / "run")
        assert pid is not None
        os.kill(pid, number)
        terminal.wait_for(rf"lost[\s\S]*was killed by {number.name}")
        assert terminal.leave("q") == 1
        assert_restored(terminal)
        assert f"was killed by {number.name}" in said_by(terminal)
    log = tmp_path / "run" / "output.log"
    assert ("Fatal Python error: Segmentation fault" in log.read_text()) == (number == SIGSEGV)


HEARING = changed_program("from amptui.process import followers; followers._SILENT_SECONDS = 1.5")


@pytest.mark.ci
def test_a_run_that_is_stopped_is_called_silent_and_can_be_left(lives: Lives, tmp_path: Path) -> None:
    run = tmp_path / "run"
    attach = [sys.executable, "-c", HEARING, "attach", str(run)]
    with headless(lives, run) as process:
        process.send_signal(signal.SIGSTOP)
        with Terminal(attach, warm=lives.warm) as terminal:
            terminal.wait_for("no response from the run")
            assert "silent" in terminal.text.splitlines()[0]
            assert terminal.leave("d") == 0
            assert "no response from the run" in said_by(terminal)
            assert "training continues" not in said_by(terminal)
