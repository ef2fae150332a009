"""Folds millions of steps into a Session and tells what that does to the process's memory.

    python -m tests.benchmarks.fold_many STEPS FIRST

Prints one JSON object: the resident bytes after the first FIRST steps and after all STEPS.
"""

import argparse
import gc
import json
from collections.abc import Iterator

import psutil

from amptui.records.run import LossScaleChanged, PrecisionChanged, Record, StepSkipped
from amptui.records.steps import StepRecord
from amptui.telemetry.session import Session

BATCH = 50
"""Steps folded at once: what a pump that drains ten times a second gets from a loop of 2 ms a step."""

STRETCH = 50
"""Steps between two switches, one skip among them: so short that every bounded list fills early."""

STEPS_A_VIEW = 1000

SCALE = 65536.0


def main() -> None:
    """Fold as the command line says and print what was measured."""
    parser = argparse.ArgumentParser(description="Fold many steps and measure memory.")
    parser.add_argument("steps", metavar="STEPS", type=int)
    parser.add_argument("first", metavar="FIRST", type=int)
    options = parser.parse_args()
    session = Session()
    fold(session, 1, options.first)
    before = resident_bytes()
    fold(session, options.first + 1, options.steps)
    after = resident_bytes()
    assert session.view().step == options.steps
    print(json.dumps({"first_bytes": before, "last_bytes": after}))


def fold(session: Session, first: int, last: int) -> None:
    """Fold the steps from ``first`` to ``last`` batch by batch, looking now and then."""
    for step in range(first, last + 1, BATCH):
        session.fold([record for s in range(step, step + BATCH) for record in records_of(s)])
        if step % STEPS_A_VIEW < BATCH:
            session.view()


def records_of(step: int) -> Iterator[Record]:
    """One step of a run that switches every ``STRETCH`` steps and skips once in each stretch of fp16."""
    time, place = step * 0.002, (step - 1) % STRETCH
    scaled = (step - 1) // STRETCH % 2 == 1
    skipped = scaled and place == STRETCH // 2
    current, previous = ("fp16", "fp32") if scaled else ("fp32", "fp16")
    if place == 0 and step > 1:
        yield PrecisionChanged(time=time, step=step, previous=previous, current=current)
    yield StepRecord(
        time=time,
        step=step,
        epoch=1 + step // 10_000,
        precision=current,
        loss=1 / step,
        samples=256,
        step_seconds=0.002 + 1e-6 * (step % 97),
        data_seconds=1e-5,
        lr=1e-3,
        loss_scale=SCALE if scaled else None,
        growth_tracker=place if scaled else None,
        skipped=skipped,
        grad_norm=1.0,
        nonfinite_gradients=int(skipped),
        settling=place < 10,
    )
    if skipped:
        yield StepSkipped(
            time=time, step=step, loss_scale=SCALE, loss=1 / step, names=("w",), count=1, consecutive=1
        )
        yield LossScaleChanged(time=time, step=step, previous=SCALE, current=SCALE / 2, reason="backoff")


def resident_bytes() -> int:
    """What of this process lies in memory, garbage collected."""
    gc.collect()
    return int(psutil.Process().memory_info().rss)


if __name__ == "__main__":
    main()
