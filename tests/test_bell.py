"""The bell of a real terminal rings once for each cause, from the screen and from plain lines alike."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.living import ended_afterwards, train, train_arguments, wait_until
from tests.terminal import FRAMES, Terminal, amptui_command
from tests.warm import WarmSource

_OTHER_OSC = re.compile(rb"\x1b\](?:22|2|0);[^\x07\x1b]*(?:\x07|\x1b\\)")
"""Textual's wishes for the pointer and the title: their BEL ends a sequence and rings nothing."""

DONE = r"\x07\x1b\]9;amptui: knobs: done after 30 steps in [^\x07\x1b]+\x07"
FAILED = r"\x07\x1b\]9;amptui: knobs: failed: ValueError: bad label in batch 9[^\x07\x1b]*\x07"
ASKS = r"\x07\x1b\]9;amptui: knobs needs an answer: the loss has been nan since step 9[^\x07\x1b]*\x07"


def rung(terminal: Terminal) -> str:
    """All that rang, or asked the desktop for a notification, in the order written; nothing else."""
    written = _OTHER_OSC.sub(b"", bytes(terminal.written)).decode("utf-8", "replace")
    parts = re.findall(r"\x1bP.*?\x1b\\|\x1b\](?:9|777);[^\x07]*\x07|\x07", written)
    return "".join(parts)


def plain(run: Path, *options: str) -> list[str]:
    return amptui_command(*train_arguments(run, "--headless", *options))


@pytest.mark.ci
def test_the_screen_rings_once_at_the_end(warm: WarmSource, tmp_path: Path) -> None:
    with train(warm, tmp_path / "run", "--steps", "30") as terminal:
        terminal.wait_for("finished")
        terminal.press("?")  # another frame, and another look at the run
        terminal.wait_for("run folder")
        terminal.press("?")
        terminal.press("q")
        assert terminal.wait() == 0
        assert re.fullmatch(DONE, rung(terminal))


@pytest.mark.ci
def test_the_screen_rings_once_at_a_failure(warm: WarmSource, tmp_path: Path) -> None:
    with train(warm, tmp_path / "run", "--set", "trouble=loss", "--set", "at=9") as terminal:
        terminal.wait_for("ValueError: bad label")
        terminal.press("q")
        assert terminal.wait() == 1
        assert re.fullmatch(FAILED, rung(terminal))


@pytest.mark.ci
def test_the_screen_rings_when_the_run_waits_for_an_answer_and_not_when_the_person_ends_it(
    warm: WarmSource, tmp_path: Path
) -> None:
    with train(warm, tmp_path / "run", "--set", "trouble=nan", "--set", "at=9") as terminal:
        terminal.wait_for("esc|enter")
        wait_until(lambda: terminal.read(0.05) and "needs an answer" in rung(terminal), "no bell")
        terminal.press("\x03")
        assert terminal.wait() == 130
        # The NaN itself may have been seen, and told, in an earlier frame than the pause.
        assert len(re.findall(ASKS, rung(terminal))) == 1
        alarm = r"\x07\x1b\]9;amptui: knobs: (?!done|failed)[^\x07\x1b]*(?:NaN|not finite)[^\x07\x1b]*\x07"
        assert re.fullmatch(f"({alarm})?{ASKS}", rung(terminal))


@pytest.mark.ci
def test_a_quiet_screen_rings_nothing(warm: WarmSource, tmp_path: Path) -> None:
    with train(warm, tmp_path / "run", "--steps", "30", "--quiet") as terminal:
        terminal.wait_for("finished")
        terminal.press("q")
        assert terminal.wait() == 0
        assert rung(terminal) == ""


@pytest.mark.ci
def test_a_screen_that_attached_rings_and_a_quiet_one_beside_it_does_not(
    warm: WarmSource, tmp_path: Path
) -> None:
    run, gate = tmp_path / "run", tmp_path / "gate"
    held = ("--steps", "30", "--set", "at=20", "--set", f"gate={gate}")
    with train(warm, run, *held) as first:
        first.wait_for(r"step\s+[1-9]")
        attach = amptui_command("attach", str(run), *FRAMES)
        with (
            Terminal(attach, warm=warm) as second,
            Terminal([*attach, "--quiet"], warm=warm) as third,
        ):
            screens = (first, second, third)
            for terminal in (second, third):
                terminal.wait_for("running")
            gate.touch()
            for terminal in screens:
                terminal.wait_for("finished")
                terminal.press("q")
                assert terminal.wait() == 0
            assert [len(re.findall(DONE, rung(terminal))) for terminal in screens] == [1, 1, 0]
            assert rung(third) == ""


@pytest.mark.ci
def test_plain_lines_ring_on_a_terminal_once(warm: WarmSource, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with ended_afterwards(run), Terminal(plain(run, "--steps", "30"), warm=warm) as terminal:
        assert terminal.wait(seconds=60) == 0
        assert re.fullmatch(DONE, rung(terminal))


@pytest.mark.ci
def test_plain_lines_ring_at_a_failure_and_not_if_they_are_quiet(warm: WarmSource, tmp_path: Path) -> None:
    for options, expected in (((), FAILED), (("--quiet",), "")):
        run = tmp_path / f"run{len(options)}"
        command = plain(run, "--set", "trouble=loss", "--set", "at=9", *options)
        with ended_afterwards(run), Terminal(command, warm=warm) as terminal:
            assert terminal.wait(seconds=60) == 1
            assert re.fullmatch(expected, rung(terminal))


def test_a_pipe_hears_no_bell(warm: WarmSource, tmp_path: Path) -> None:
    options = ("--headless", "--set", "trouble=loss", "--set", "at=9")
    process = warm.run(*train_arguments(tmp_path / "run", *options))
    assert process.returncode == 1
    assert b"failed" in process.stdout
    assert b"\x07" not in process.stdout + process.stderr
    assert b"\x1b" not in process.stdout + process.stderr


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        pytest.param(
            {"TERM": "tmux-256color", "TMUX": "tmux,1,0", "STY": ""},
            rf"\x1bPtmux;\x1b{DONE[4:]}\x1b\\",
            id="tmux",
            marks=pytest.mark.ci,
        ),
        pytest.param(
            {"TERM": "screen", "TMUX": "", "STY": "1.a"},
            rf"\x1bP{DONE[4:]}\x1b\\",
            id="screen",
            marks=pytest.mark.ci,
        ),
        pytest.param({"TERM": "linux", "TMUX": "", "STY": ""}, "", id="linux", marks=pytest.mark.ci),
        pytest.param({"TERM": "dumb", "TMUX": "", "STY": ""}, "", id="dumb", marks=pytest.mark.ci),
    ],
)
def test_what_stands_between_gets_it_wrapped_and_a_poor_terminal_the_bell_alone(
    env: Mapping[str, str], expected: str, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with ended_afterwards(run), Terminal(plain(run, "--steps", "30"), env=env) as terminal:
        assert terminal.wait(seconds=60) == 0
        assert re.fullmatch(rf"\x07{expected}", rung(terminal))
