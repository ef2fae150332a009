"""What a person asks for while a training runs changes the steps that the journal says, and no other bit."""

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.experiments.by_hand import Loop, Training
from tests.experiments.recorded import assert_same_run, command_line, journal, steps_of
from tests.terminal import Terminal, amptui_command
from tests.warm import WarmSource

PATIENCE_SECONDS = 60

SLOW = {"data": "own order", "step_ms": 3.0, "epochs": 2000, "validates": False}

Press = tuple[str, str, int]
"""Keys, the type of the journal's lines that follow, and how many of them to wait for."""


@dataclass(frozen=True)
class Session:
    presses: tuple[Press, ...]
    precision: str = "fp32"
    amp: str = "bf16"
    recipe: tuple[tuple[str, Any], ...] = ()


SWITCHED = "PrecisionChanged"
SESSIONS = {
    "to bf16 and back": Session((("p", SWITCHED, 1), ("p", SWITCHED, 1))),
    "fp16 goes on with its scale": Session(
        (("p", SWITCHED, 1), ("p", SWITCHED, 1), ("p", SWITCHED, 1)),
        precision="fp16",
        amp="fp16",
        recipe=(("spoilt", "2,3"), ("optimizer", "fused adam"), ("average", 0.9)),
    ),
    "every precision of a CPU": Session(
        (("m2", SWITCHED, 1), ("m4", SWITCHED, 1), ("m5", SWITCHED, 1), ("m1", SWITCHED, 1)),
        recipe=(("optimizer", "momentum"), ("schedule", "exponential")),
    ),
    "a comparison in turns, ended": Session((("c", SWITCHED, 4), ("c", "PrecisionsCompared", 1))),
    "probes, a pause and a checkpoint": Session(
        (
            ("n", "ModulesTraced", 1),
            ("s", "CheckpointWritten", 1),
            (" ", "PauseChanged", 1),
            (" ", "PauseChanged", 1),
            ("x", "XRayTaken", 1),
            ("f", "Float16Window", 1),
        ),
        precision="bf16",
        recipe=(("dropout", 0.2), ("norm", True)),
    ),
}


@pytest.mark.ci
@pytest.mark.parametrize("name", SESSIONS)
def test_keys_change_the_steps_that_they_are_meant_to(name: str, tmp_path: Path, warm: WarmSource) -> None:
    session = SESSIONS[name]
    training = Training(precision=session.precision, recipe={**SLOW, **dict(session.recipe)})
    command = amptui_command(*command_line(training, tmp_path, "--amp-dtype", session.amp, "--fps", "20"))
    with Terminal(command, warm=warm) as terminal:
        wait_for_lines(terminal, tmp_path, "Steps", 4)
        for keys, kind, count in session.presses:
            seen = len(lines_of(tmp_path, kind))
            for key in keys:
                terminal.press(key)
                terminal.read(0.2)
            wait_for_lines(terminal, tmp_path, kind, seen + count)
        wait_for_lines(terminal, tmp_path, "Steps", len(lines_of(tmp_path, "Steps")) + 2)
        terminal.press("\x03")
        assert terminal.wait() in (0, 130)
    steps = steps_of(lines_of(tmp_path, "Steps"))
    assert [step["step"] for step in steps] == list(range(1, len(steps) + 1))
    precisions = {step["step"]: step["precision"] for step in steps}
    assert_same_run(tmp_path, Loop(replace(training, steps=len(steps))).run(precisions))


def lines_of(folder: Path, kind: str) -> list[dict[str, Any]]:
    try:
        return [line for line in journal(folder / "run") if line["type"] == kind]
    except (FileNotFoundError, ValueError):  # not there yet, or its last line is being written
        return []


def wait_for_lines(terminal: Terminal, folder: Path, kind: str, count: int) -> None:
    """Read what the screen shows until there are so many of them."""
    limit = time.monotonic() + PATIENCE_SECONDS
    while len(lines_of(folder, kind)) < count:
        assert time.monotonic() < limit, f"never {count} of {kind}\n{terminal.text}"
        terminal.read(0.1)
