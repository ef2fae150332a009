"""The bell of a real terminal rings once for each cause, from the screen and from plain lines alike."""

import re
from pathlib import Path

import pytest

from tests.living import train, wait_until
from tests.terminal import FRAMES, Terminal, amptui_command
from tests.warm import WarmSource

pytestmark = pytest.mark.ci

_OTHER_OSC = re.compile(rb"\x1b\](?:22|2|0);[^\x07\x1b]*(?:\x07|\x1b\\)")
"""Textual's wishes for the pointer and the title: their BEL ends a sequence and rings nothing."""

DONE = r"\x07\x1b\]9;amptui: knobs: done after 30 steps in [^\x07\x1b]+\x07"
FAILED = r"\x07\x1b\]9;amptui: knobs: failed: ValueError: bad label in batch 9[^\x07\x1b]*\x07"
ASKS = r"\x07\x1b\]9;amptui: knobs needs an answer: the loss has been nan since step 9[^\x07\x1b]*\x07"

ENDS, FAILS = ("--steps", "30"), ("--set", "trouble=loss", "--set", "at=9")


def rung(terminal: Terminal) -> str:
    """All that rang, or asked the desktop for a notification, in the order written; nothing else."""
    written = _OTHER_OSC.sub(b"", bytes(terminal.written)).decode("utf-8", "replace")
    parts = re.findall(r"\x1bP.*?\x1b\\|\x1b\](?:9|777);[^\x07]*\x07|\x07", written)
    return "".join(parts)


@pytest.mark.parametrize(
    ("options", "expected", "status"),
    [
        (ENDS, DONE, 0),
        (FAILS, FAILED, 1),
        ((*ENDS, "--quiet"), "", 0),
        ((*ENDS, "--headless"), DONE, 0),
        ((*FAILS, "--headless"), FAILED, 1),
        ((*FAILS, "--headless", "--quiet"), "", 1),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_the_end_rings_once_unless_the_run_is_quiet(
    options: tuple[str, ...], expected: str, status: int, warm: WarmSource, tmp_path: Path
) -> None:
    with train(warm, tmp_path / "run", *options) as terminal:
        if "--headless" not in options:
            terminal.wait_for("ValueError: bad label" if status else "finished")
            terminal.press("?")  # another frame, and another look at the run
            terminal.wait_for("run folder")
            terminal.press("?")
            terminal.press("q")
        assert terminal.wait() == status
        assert re.fullmatch(expected, rung(terminal))


def test_the_screen_rings_when_the_run_waits_for_an_answer_and_not_when_the_person_ends_it(
    warm: WarmSource, tmp_path: Path
) -> None:
    with train(warm, tmp_path / "run", "--set", "trouble=nan", "--set", "at=9") as terminal:
        terminal.wait_for("esc|enter")
        wait_until(lambda: terminal.read(0.05) and "needs an answer" in rung(terminal), "no bell")
        assert terminal.leave("\x03") == 130
        # The NaN itself may have been seen, and told, in an earlier frame than the pause.
        alarm = r"\x07\x1b\]9;amptui: knobs: (?!done|failed)[^\x07\x1b]*(?:NaN|not finite)[^\x07\x1b]*\x07"
        assert re.fullmatch(f"({alarm})?{ASKS}", rung(terminal))


def test_a_screen_that_attached_rings_and_a_quiet_one_beside_it_does_not(
    warm: WarmSource, tmp_path: Path
) -> None:
    run, gate = tmp_path / "run", tmp_path / "gate"
    with train(warm, run, *ENDS, "--set", "at=20", "--set", f"gate={gate}") as first:
        first.wait_for(r"step\s+[1-9]")
        attach = amptui_command("attach", str(run), *FRAMES)
        with Terminal(attach, warm=warm) as second, Terminal([*attach, "--quiet"], warm=warm) as third:
            for terminal in (second, third):
                terminal.wait_for("running")
            gate.touch()
            for terminal, expected in ((first, DONE), (second, DONE), (third, "")):
                terminal.wait_for("finished")
                assert terminal.leave("q") == 0
                assert re.fullmatch(expected, rung(terminal))
