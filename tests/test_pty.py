"""The whole program in a real pseudo-terminal: a real training on the CPU, and the list of runs."""

import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from amptui.records.keeping import CheckpointWritten
from amptui.records.run import PrecisionChanged, Printed, RunFinished
from tests.builders import StepRow, of
from tests.checkout import ROOT
from tests.living import (
    ALT_SCREEN_OFF,
    CURSOR_ON,
    Lives,
    assert_restored,
    ended_afterwards,
    headless_run,
    last_step,
    outcome,
    records_of,
    steps_of,
    stop,
    train,
    train_arguments,
    wait_for_end,
    wait_for_more,
    wait_until,
)
from tests.terminal import Terminal, amptui_command
from tests.warm import WarmSource


def test_train_watch_switch_compare_and_quit(warm: WarmSource, tmp_path: Path) -> None:
    with train(warm, tmp_path / "run") as terminal:
        terminal.wait_for("importing torch|loading data|building the model|first step|running")
        terminal.wait_for("FP32 .*running")
        # 10 settling steps and 20 to count: then the comparison may speak.
        terminal.wait_for(r"step\s+([5-9]\d|\d{3}|\d+,\d{3})\s*/100,000")
        terminal.press("p", until=r"FP32 → AMP bf16")
        terminal.wait_for(r"AMP bf16 .*running")
        # Both columns fill, and what AMP gives is said once enough steps were counted.
        terminal.wait_for(r"step\s+[\d.]+ ms\s+[\d.]+ ms")
        terminal.wait_for(r"AMP bf16 +(about [\d.]+×|step times too uneven|no clear)")
        terminal.press("q", until="Stop it or detach")
        assert terminal.leave("y") == 0
        assert_restored(terminal)
        assert "stopped after" in terminal.text
        assert "journal.jsonl" in terminal.text
    records = records_of(tmp_path / "run")
    (change,) = of(PrecisionChanged, records)
    steps = of(StepRow, records)
    assert (change.previous, change.current) == ("fp32", "bf16")
    assert [r.step for r in steps] == list(range(1, len(steps) + 1))
    assert all((r.precision == "bf16") == (r.step >= change.step) for r in steps)
    assert [r.reason for r in of(RunFinished, records)] == ["stopped"]


SCRIPT = """
import amptui, time, torch
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters())
with amptui.watch(model, optimizer) as monitor:
    for _ in monitor.steps(range(10_000)):
        time.sleep(0.02)
        with monitor.autocast():
            loss = model(torch.ones(4, 8)).square().mean()
        monitor.backward(loss)
        monitor.step()
"""


@pytest.mark.ci
@pytest.mark.parametrize("command", ["train", "run"])
def test_ctrl_z_suspends_the_screen_in_a_shell_and_the_training_goes_on(command: str, tmp_path: Path) -> None:
    folder, script = tmp_path / "run", tmp_path / "train.py"
    script.write_text(SCRIPT)
    words = train_arguments(folder)
    if command == "run":
        words = ["run", "--run-dir", str(folder), str(script)]
    shell = ["bash", "--norc", "--noediting", "-i"]
    with ended_afterwards(folder), Terminal(shell, env={"PS1": "$ "}) as terminal:
        terminal.press(f"{shlex.join(amptui_command(*words))}\n", until=r"running.* step +[1-9]")
        terminal.press("?", until="suspend the screen; training goes on")
        terminal.press("\x1a", until="Stopped")
        terminal.press("printf 'a%s' shell\n", until="ashell")
        assert ALT_SCREEN_OFF in terminal.written
        wait_for_more(folder)
        drawn = terminal.written.count(b"suspend the screen")
        terminal.press("fg\n")
        terminal.wait_until(lambda: terminal.written.count(b"suspend the screen") > drawn)
        terminal.press("?", until="d detach")
        terminal.press("d", until="to watch it again")
        wait_for_more(folder)


@pytest.mark.ci
def test_where_no_shell_would_bring_the_screen_back_ctrl_z_says_what_to_press(
    warm: WarmSource, tmp_path: Path
) -> None:
    with train(warm, tmp_path / "run") as terminal:
        terminal.wait_for(r"step +[1-9]")
        terminal.press("\x1a", until="no shell here would bring the screen back: press q instead")
        assert terminal.leave("\x03") == 130


@pytest.mark.ci
def test_prints_and_warnings_stay_off_the_screen_and_are_kept(warm: WarmSource, tmp_path: Path) -> None:
    with train(
        warm, tmp_path / "run", "--set", "trouble=print", "--set", "step_ms=20", "--steps", "60"
    ) as terminal:
        terminal.wait_for("finished")
        terminal.press("t", until="print from step|printf from C|warning 6|red stderr")
        terminal.press("\x1b", until="╭ loss")
        assert terminal.leave("q") == 0
        assert_restored(terminal)
        # The model's own escape sequences never reach the terminal.
        assert b"\x1b[2J\x1b[31mred" not in terminal.written
    log = (tmp_path / "run" / "output.log").read_text()
    for said in ("print from step 60", "printf from C 60", "red stderr 60", "UserWarning: warning 60"):
        assert said in log
    records = records_of(tmp_path / "run")
    assert any(r.text.startswith("print from step") for r in of(Printed, records))
    assert not of(Printed, records[records.index(of(RunFinished, records)[0]) :])


@pytest.mark.ci
def test_a_failure_leaves_its_traceback_on_the_terminal_and_in_the_log_once(
    warm: WarmSource, tmp_path: Path
) -> None:
    with train(warm, tmp_path / "run", "--set", "trouble=loss", "--set", "at=9") as terminal:
        terminal.wait_for("bad label")
        assert terminal.leave("q") == 1
        after = terminal.written[terminal.written.rindex(ALT_SCREEN_OFF) :].decode()
    for said in (after, (tmp_path / "run" / "output.log").read_text()):
        assert said.count("Traceback (most recent call last)") == 1
        assert said.split("\n")[-2].startswith("amptui: ValueError: bad label in batch 9")


@pytest.mark.ci
def test_a_failure_before_the_first_step_leaves_at_once(warm: WarmSource, tmp_path: Path) -> None:
    with train(warm, tmp_path / "run", "--precision", "tf32") as terminal:
        assert terminal.wait(seconds=60) == 2
        assert_restored(terminal)
        assert "precision tf32: " in " ".join(terminal.text.split())


@pytest.mark.ci
def test_an_interrupt_before_the_first_frame_leaves_no_run_behind(warm: WarmSource, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with train(warm, run) as terminal:
        while not terminal.written:
            terminal.read(0.01)
        # The boxes of the panels stand; the terminal still makes a signal of this.
        terminal.press("\x03")
        assert terminal.wait(seconds=60) == 130
        assert_restored(terminal)
    wait_for_end(run)
    assert outcome(run) is RunFinished


@pytest.mark.ci
def test_a_run_is_left_watched_again_from_two_terminals_and_stopped_from_one(
    warm: WarmSource, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with train(warm, run, size=(80, 24)) as terminal:
        terminal.wait_for(r"step\s+[1-9]")
        assert terminal.leave("d") == 0
        assert_restored(terminal)
        assert "training continues" in terminal.text
        assert "amptui attach" in terminal.text
        step = last_step(run)
        attach = amptui_command("attach", str(run))
        with (
            Terminal(attach, size=(120, 40), warm=warm) as first,
            Terminal(attach, size=(80, 24), warm=warm) as second,
        ):
            for viewer in (first, second):
                viewer.wait_for("FP32 .*running")
            shown = first.wait_for(r"step\s+([\d,]+)")[1]
            assert int(shown.replace(",", "")) >= step
            first.press("s")
            wait_until(lambda: of(CheckpointWritten, records_of(run)), "no checkpoint was written")
            first.press("p")
            second.wait_for("AMP bf16 .*running")
            second.press("q", until="Stop it")
            assert second.leave("y") == 0
            first.wait_for("stopped")
            assert first.leave("q") == 0
    wait_for_end(run)
    assert outcome(run) is RunFinished
    steps = steps_of(run)
    assert [r.step for r in steps] == list(range(1, len(steps) + 1))


@pytest.mark.ci
def test_a_run_that_is_started_detached_trains_and_says_how_to_watch_it(
    warm: WarmSource, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with train(warm, run, "--detach") as terminal:
        assert terminal.wait(seconds=60) == 0
        assert f"amptui attach {run}" in "".join(terminal.text.split("\n"))
        wait_for_more(run)


LIST = r"1 live +1 ended[\s\S]*▸"


@pytest.fixture
def ended(runs: Path) -> Path:
    folder = runs / "mnist-deep-20261125-101500"
    folder.mkdir(parents=True)
    shutil.copy(ROOT / "demo" / "mnist-deep.jsonl", folder / "journal.jsonl")
    return folder


@pytest.fixture
def live(lives: Lives, runs: Path) -> Iterator[Path]:
    with headless_run(lives, runs / "live") as folder:
        yield folder


@pytest.mark.ci
def test_from_the_list_into_runs_and_back(live: Path, ended: Path, warm: WarmSource) -> None:
    with Terminal(amptui_command(), warm=warm) as terminal:
        terminal.wait_for(rf"{LIST}.*live +running[\s\S]*mnist-deep-\S+ +finished")
        terminal.press("\r", until=r"╭ loss[\s\S]*d detach")
        terminal.press("d", until=LIST)
        terminal.press("j\r", until="replay (×1|ended)")
        terminal.press("q", until=r"1 live +1 ended[\s\S]*▸ mnist-deep-20261125-101500")
        assert terminal.leave("q") == 0
        assert_restored(terminal)
        assert b"to watch it again: amptui attach" in terminal.written
    wait_for_more(live)
    stop(live)
    assert outcome(live) is not None


@pytest.mark.ci
def test_the_list_ends_with_the_comparison_of_the_selected_runs(
    live: Path, ended: Path, warm: WarmSource
) -> None:
    with Terminal(amptui_command(), warm=warm, size=(80, 60)) as terminal:
        terminal.wait_for(f"{LIST}.*live")
        terminal.press("aac")
        assert terminal.wait() == 0
        assert_restored(terminal)
        assert "No verdict: a run still trains" in " ".join(terminal.text.split())
    stop(live)


@pytest.mark.ci
def test_what_went_wrong_stands_below_the_list(ended: Path, warm: WarmSource) -> None:
    with Terminal(amptui_command(), warm=warm) as terminal:
        terminal.wait_for("0 live +1 ended[\\s\\S]*▸ mnist-deep")
        (ended / "journal.jsonl").write_text("nothing\n")
        terminal.press("\r", until=r"holds\s+no\s+records")
        terminal.wait_for("0 live +1 ended")
        assert terminal.leave("q") == 0
        assert_restored(terminal)


@pytest.mark.ci
def test_a_terminal_that_can_show_no_screen_gets_the_help() -> None:
    with Terminal(amptui_command(), env={"TERM": "dumb"}) as terminal:
        assert terminal.wait() == 0
        assert CURSOR_ON not in terminal.written
        assert "Exit status" in terminal.text
