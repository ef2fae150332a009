"""Signals to real runs and real screens: a checkpoint and a clean end, or a whole terminal."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from amptui.records.keeping import CheckpointWritten
from amptui.records.run import PhaseChanged, RunFailed, RunFinished
from amptui.runs.rundir import RunDir
from tests.living import (
    assert_restored,
    ended_afterwards,
    last_step,
    outcome,
    records_of,
    run_pid,
    steps_of,
    train,
    train_arguments,
    wait_for_end,
    wait_until,
)
from tests.terminal import Terminal, amptui_command
from tests.warm import Process, WarmSource

ENDS_CLEANLY = (
    *(signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU, signal.SIGALRM),
    *(signal.SIGVTALRM, signal.SIGPROF, signal.SIGIO, signal.SIGPWR),
)
"""What schedulers, limits and timers send: a request to stop."""

KILLS_A_SCREEN = (signal.SIGQUIT, signal.SIGABRT, signal.SIGSEGV, signal.SIGKILL)


HURRIED = """
import sys
from amptui.process import stop_signals
from amptui.cli import main
stop_signals.LEAVE_AFTER_SECONDS = 0.1
sys.exit(main(sys.argv[1:]))
"""
"""A process with nothing to wait for leaves much sooner than usual."""


@contextmanager
def headless(warm: WarmSource, run: Path, *options: str, program: str = "") -> Iterator[Process]:
    """A run that has begun to train; ``program`` stands for amptui's own."""
    command = [sys.executable, "-c", program] if program else amptui_command()
    program_and_options = [*command, *train_arguments(run, "--headless")]
    with ended_afterwards(run), run.with_name("log").open("w") as said, open(os.devnull) as nothing:  # noqa: PTH123
        process = warm.start([*program_and_options, *options], nothing.fileno(), said.fileno(), said.fileno())
        wait_until(lambda: last_step(run) > 0, "no step was taken")
        yield process


def assert_whole(run: Path) -> None:
    """The last word is there, and a checkpoint of the last step."""
    assert outcome(run) is RunFinished
    assert [r.reason for r in records_of(run) if isinstance(r, RunFinished)] == ["stopped"]
    newest = max(RunDir(run).checkpoints_path.glob("*.pt"))
    assert int(newest.stem.removeprefix("step-")) == last_step(run) == len(steps_of(run))


@pytest.mark.parametrize("number", ENDS_CLEANLY)
def test_a_headless_run_that_is_signalled_writes_a_checkpoint_and_says_so(
    number: signal.Signals, warm: WarmSource, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with headless(warm, run) as process:
        process.send_signal(number)
        assert process.wait(60) == 128 + number
    assert_whole(run)


@contextmanager
def in_a_slow_step(
    warm: WarmSource, tmp_path: Path, *options: str, program: str = ""
) -> Iterator[tuple[Process, Path, Path]]:
    """A run in its third step, its folder, and the file that this step waits for."""
    run, gate = tmp_path / "run", tmp_path / "gate"
    held = ("--set", f"gate={gate}", "--set", "at=3")
    with headless(warm, run, *held, *options, program=program) as process:
        wait_until(lambda: last_step(run) == 2, "the slow step did not begin")
        yield process, run, gate


def waits(run: Path) -> list[str]:
    """What a stop waited for, as the journal tells it."""
    return [r.detail for r in records_of(run) if isinstance(r, PhaseChanged) and r.phase == "stopping"]


@pytest.mark.ci
@pytest.mark.parametrize(
    "numbers",
    [(signal.SIGTERM,), (signal.SIGINT,), (signal.SIGUSR1, signal.SIGUSR1, signal.SIGXCPU)],
    ids=["terminated", "interrupted", "by a scheduler, which comes twice"],
)
def test_a_stop_waits_for_the_step_however_long_it_takes_and_says_so(
    numbers: tuple[signal.Signals, ...], warm: WarmSource, tmp_path: Path
) -> None:
    with in_a_slow_step(warm, tmp_path, program=HURRIED) as (process, run, gate):
        for number in numbers:
            process.send_signal(number)
        wait_until(lambda: waits(run) == ["stopping after step 3"], "what is awaited was not told")
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.0)  # ten times the time of a process with nothing to wait for
        assert "second Ctrl+C or SIGTERM" in run.with_name("log").read_text()
        gate.touch()
        assert process.wait(60) in {128 + number for number in numbers}
    assert last_step(run) == 3
    assert_whole(run)


@pytest.mark.ci
def test_a_step_of_twenty_seconds_is_waited_for(warm: WarmSource, tmp_path: Path) -> None:
    with in_a_slow_step(warm, tmp_path) as (process, run, gate):
        process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(20.0)
        gate.touch()
        assert process.wait(60) == 128 + signal.SIGTERM
    assert last_step(run) == 3
    assert_whole(run)


def checkpoints_told(run: Path) -> list[int]:
    """The steps of the checkpoints, as the journal tells of them."""
    return [r.step for r in records_of(run) if isinstance(r, CheckpointWritten)]


@pytest.mark.ci
@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_the_run_in_the_middle_of_its_step_and_says_what_is_lost(
    second: signal.Signals, warm: WarmSource, tmp_path: Path
) -> None:
    with in_a_slow_step(warm, tmp_path, "--checkpoint-every", "1") as (process, run, _):
        checkpoint = wait_until(lambda: checkpoints_told(run), "no checkpoint was written")[-1]
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: waits(run), "the first signal was not heeded")
        process.send_signal(second)
        assert process.wait(60) == 128 + signal.SIGTERM
    last = records_of(run)[-1]
    assert isinstance(last, RunFailed)
    assert last.step == last_step(run) == 2
    assert last.error in run.with_name("log").read_text()
    assert last.error.startswith("ended at once, in step 3: ")
    assert f"; to resume from step {checkpoint}: amptui train " in last.error


@pytest.mark.ci
def test_a_run_is_waited_for_no_longer_than_the_stop_timeout(warm: WarmSource, tmp_path: Path) -> None:
    with in_a_slow_step(warm, tmp_path, "--stop-timeout", "0.1") as (process, run, _):
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 1
    last = records_of(run)[-1]
    assert isinstance(last, RunFailed)
    assert "in step 3: steps 1 to 2 are lost, there is no checkpoint" in last.error


@pytest.mark.ci
def test_sigterm_after_a_schedulers_warning_does_not_cut_off_the_clean_end(
    warm: WarmSource, tmp_path: Path
) -> None:
    run, gate = tmp_path / "run", tmp_path / "gate"
    with headless(warm, run, "--set", f"gate={gate}", "--set", "at=3") as process:
        wait_until(lambda: last_step(run) == 2, "the slow step did not begin")
        process.send_signal(signal.SIGUSR1)
        process.send_signal(signal.SIGTERM)
        gate.touch()
        # Of two that wait to be delivered, threads may take either first.
        assert process.wait(60) in (128 + signal.SIGUSR1, 128 + signal.SIGTERM)
    assert_whole(run)


# ----------------------------------------------------------------------------------------- screens


@pytest.mark.ci
def test_a_screen_says_which_step_its_stop_waits_for_and_ctrl_c_twice_does_not_wait(
    warm: WarmSource, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with train(warm, run, "--set", f"gate={tmp_path / 'gate'}", "--set", "at=3") as terminal:
        terminal.wait_for(r"step\s+2")
        terminal.press("\x03")
        terminal.wait_for("stopping after step 3")
        terminal.press("\x03")
        assert terminal.wait() == 128 + signal.SIGINT
        assert_restored(terminal)
        assert "ended at once, in step 3: steps 1 to 2 are lost" in said_by(terminal)
    wait_for_end(run)
    assert outcome(run) is RunFailed


@pytest.mark.ci
def test_a_screen_that_is_terminated_waits_for_the_step(warm: WarmSource, tmp_path: Path) -> None:
    run, gate = tmp_path / "run", tmp_path / "gate"
    with train(warm, run, "--set", f"gate={gate}", "--set", "at=3") as terminal:
        terminal.wait_for(r"step\s+2")
        terminal.process.send_signal(signal.SIGTERM)
        terminal.wait_for("stopping after step 3")
        gate.touch()
        assert terminal.wait() == 128 + signal.SIGTERM
        assert_restored(terminal)
    assert_whole(run)


@contextmanager
def screen(warm: WarmSource, run: Path, *options: str) -> Iterator[Terminal]:
    """A training with its screen, on which steps are seen."""
    with train(warm, run, *options) as terminal:
        terminal.wait_for(r"step\s+[1-9]")
        yield terminal


@pytest.mark.ci
@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGXCPU])
def test_a_scheduler_that_signals_the_screen_stops_the_run(
    number: signal.Signals, warm: WarmSource, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with screen(warm, run) as terminal:
        terminal.process.send_signal(number)
        assert terminal.wait() == 128 + number
        assert_restored(terminal)
        wait_for_end(run)
    assert_whole(run)


@pytest.mark.ci
def test_a_scheduler_that_signals_the_run_behind_a_screen_stops_it(warm: WarmSource, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with screen(warm, run) as terminal:
        pid = run_pid(run)
        assert pid is not None
        os.kill(pid, signal.SIGUSR1)
        terminal.wait_for("finished|stopped")
        terminal.press("q")
        assert terminal.wait() == 128 + signal.SIGUSR1
    assert_whole(run)


@pytest.mark.ci
def test_a_signal_that_is_sent_to_screen_and_run_stops_both_once(warm: WarmSource, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with screen(warm, run) as terminal:
        pid = run_pid(run)
        assert pid is not None
        for process_id in (pid, terminal.process.pid):
            os.kill(process_id, signal.SIGUSR1)
        assert terminal.wait() == 128 + signal.SIGUSR1
        assert_restored(terminal)
        wait_for_end(run)
    assert_whole(run)


@pytest.mark.ci
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_an_attached_screen_that_is_signalled_says_that_training_goes_on(
    number: signal.Signals, warm: WarmSource, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with headless(warm, run):
        with Terminal(amptui_command("attach", str(run)), warm=warm) as terminal:
            terminal.wait_for(r"step\s+[1-9]")
            terminal.process.send_signal(number)
            assert terminal.wait() == 128 + number
            assert_restored(terminal)
            assert f"training continues to watch it again: amptui attach {run}" in said_by(terminal)
        before = last_step(run)
        wait_until(lambda: last_step(run) > before, "training did not go on")


@pytest.mark.ci
@pytest.mark.parametrize("number", KILLS_A_SCREEN)
def test_a_screen_that_is_killed_leaves_a_whole_terminal_and_the_run(
    number: signal.Signals, warm: WarmSource, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with screen(warm, run) as terminal:
        terminal.process.send_signal(number)
        assert terminal.process.wait(60) == -number
        terminal.wait_for("to watch it again: amptui attach")
        assert_restored(terminal)
        before = last_step(run)
        wait_until(lambda: last_step(run) > before, "training did not go on")


@pytest.mark.ci
def test_a_screen_that_is_killed_after_its_run_ended_does_not_say_it_goes_on(
    warm: WarmSource, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with screen(warm, run, "--steps", "20") as terminal:
        terminal.wait_for("finished")
        wait_for_end(run)
        terminal.process.kill()
        terminal.wait_for("the run has ended")
        assert_restored(terminal)


HEARING = """
import sys
from amptui.process import viewer as watching
from amptui.cli import main
watching._SILENT_SECONDS = 1.5
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.ci
def test_a_run_that_is_stopped_is_called_so_and_can_be_left(warm: WarmSource, tmp_path: Path) -> None:
    run = tmp_path / "run"
    attach = [sys.executable, "-c", HEARING, "attach", str(run)]
    with headless(warm, run) as process:
        process.send_signal(signal.SIGSTOP)
        with Terminal(attach, warm=warm) as terminal:
            terminal.wait_for(rf"no response from the run .*kill -CONT {process.pid}\b")
            assert "silent" in terminal.text.splitlines()[0]
            terminal.press("d")
            assert terminal.wait() == 0
            assert f"to continue it: kill -CONT {process.pid}" in said_by(terminal)
            assert "training continues" not in said_by(terminal)
        with Terminal(attach, warm=warm) as terminal:
            terminal.wait_for("no response from the run")
            process.send_signal(signal.SIGCONT)
            terminal.wait_for(r"(?s)running(?!.*no response)")


def said_by(terminal: Terminal) -> str:
    """What stands on the terminal, as one line."""
    return " ".join(terminal.text.split()).replace("- ", "-")
