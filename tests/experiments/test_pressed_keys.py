"""What a person asks for while a training runs changes the steps that the journal says, and no other bit."""

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.experiments.by_hand import Loop, Training
from tests.experiments.recorded import assert_same_run, command_line, steps_of
from tests.living import records_of
from tests.terminal import Terminal, amptui_command
from tests.warm import WarmSource

PATIENCE_SECONDS = 60

SLOW = {"data": "own order", "step_ms": 3.0, "epochs": 2000, "validates": False}

Press = tuple[str, str, int]
"""Keys, the kind of the records that follow, and how many of them to wait for."""


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
    session, run = SESSIONS[name], tmp_path / "run"
    training = Training(precision=session.precision, recipe={**SLOW, **dict(session.recipe)})
    command = amptui_command(*command_line(training, tmp_path, "--amp-dtype", session.amp, "--fps", "20"))
    with Terminal(command, warm=warm) as terminal:
        wait_for(terminal, run, "StepRow", 100)
        for keys, kind, count in session.presses:
            seen = count_of(run, kind)
            for key in keys:
                terminal.press(key)
                terminal.read(0.2)
            wait_for(terminal, run, kind, seen + count)
        wait_for(terminal, run, "StepRow", count_of(run, "StepRow") + 50)
        terminal.press("\x03")
        assert terminal.wait() in (0, 130)
    steps = steps_of(records_of(run))
    assert [step["step"] for step in steps] == list(range(1, len(steps) + 1))
    precisions = {step["step"]: step["precision"] for step in steps}
    assert_same_run(tmp_path, Loop(replace(training, steps=len(steps))).run(precisions))


def count_of(run: Path, kind: str) -> int:
    return [type(record).__name__ for record in records_of(run)].count(kind)


def wait_for(terminal: Terminal, run: Path, kind: str, count: int) -> None:
    limit = time.monotonic() + PATIENCE_SECONDS
    while count_of(run, kind) < count:
        assert time.monotonic() < limit, f"never {count} of {kind}\n{terminal.text}"
        terminal.read(0.1)
