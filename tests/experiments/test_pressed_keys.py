"""What a person asks for while a training runs changes the steps that the journal says, and no other bit."""

import time
from dataclasses import replace
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


def slow(precision: str = "fp32", **recipe: Any) -> Training:
    return Training(precision=precision, recipe={**SLOW, **recipe})


SWITCHED = ("p", "PrecisionChanged", 1)
SESSIONS: dict[str, tuple[tuple[Press, ...], str, Training]] = {
    "to bf16 and back": ((SWITCHED, SWITCHED), "bf16", slow()),
    "fp16 goes on with its scale": (
        (SWITCHED, SWITCHED, SWITCHED),
        "fp16",
        slow("fp16", spoilt="2,3", optimizer="fused adam", average=0.9),
    ),
    "every precision of a CPU": (
        tuple((f"m{row}", "PrecisionChanged", 1) for row in (2, 4, 5, 1)),
        "bf16",
        slow(optimizer="momentum", schedule="exponential"),
    ),
    "a comparison in turns, ended": (
        (("c", "PrecisionChanged", 4), ("c", "PrecisionsCompared", 1)),
        "bf16",
        slow(),
    ),
    "probes, a pause and a checkpoint": (
        (
            *(("n", "ModulesTraced", 1), ("s", "CheckpointWritten", 1)),
            *[(" ", "PauseChanged", 1)] * 2,
            *(("x", "XRayTaken", 1), ("f", "Float16Window", 1)),
        ),
        "bf16",
        slow("bf16", dropout=0.2, norm=True),
    ),
}
"""What is pressed, what AMP means, and what is trained meanwhile."""


@pytest.mark.ci
@pytest.mark.parametrize("name", SESSIONS)
def test_keys_change_the_steps_that_they_are_meant_to(name: str, tmp_path: Path, warm: WarmSource) -> None:
    (presses, amp, training), run = SESSIONS[name], tmp_path / "run"
    command = amptui_command(*command_line(training, tmp_path, "--amp-dtype", amp))
    with Terminal(command, warm=warm) as terminal:
        wait_for(terminal, run, "StepRow", 100)
        for keys, kind, count in presses:
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
