"""What amptui tells of a training: its command line, and the steps and validations of a journal."""

import math
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch

from amptui.records.run import EpochFinished, Record, Validated
from tests.builders import StepRow, of
from tests.experiments.by_hand import Ledger, Step, Training
from tests.living import records_of

RECIPE = Path(__file__).parent / "recipe.py"

NO_OPTIONS = ("recipe", "by_epoch", "ends")


def command_line(training: Training, folder: Path, *more: str) -> list[str]:
    """The arguments of `amptui` for this training, whose run, weights and batches are in ``folder``."""
    kind = "ByEpoch" if training.by_epoch else "Recipe"
    options = {name: value for name, value in vars(training).items() if name not in NO_OPTIONS}
    options |= {"run_dir": folder / "run", "save_weights": folder / "weights.pt", "device": "cpu"}
    named = [
        (f"--{name.replace('_', '-')}", str(value)) for name, value in options.items() if value is not None
    ]
    fields = {**training.recipe, "trail": folder / "trail"}
    named += [("--set", f"{name}={value}") for name, value in fields.items()]
    return ["train", f"{RECIPE}:{kind}", *[word for pair in named for word in pair], *more]


def steps_of(records: Iterable[Record]) -> list[Step]:
    """All optimizer steps; of one that was made again, the last time's."""
    rows = {row.step: row for row in of(StepRow, records)}.values()
    return [{**vars(row), **row.losses, "group_lrs": list(row.group_lrs)} for row in rows]


def validations_of(records: Iterable[Record]) -> list[Step]:
    """All validations, within epochs and at their ends."""
    found = {}
    for record in records:
        if isinstance(record, Validated | EpochFinished) and (told := record.validation) is not None:
            means = {"loss": told.loss, "accuracy": told.accuracy, **told.metrics}
            found[record.step] = {
                "step": record.step,
                "epoch": record.epoch,
                "samples": told.samples,
                **means,
            }
    return list(found.values())


def differences(ours: Iterable[Step], by_hand: Iterable[Step]) -> list[str]:
    """Where a number is not the same to the last bit; of what the loop by hand knows."""
    pairs = zip(ours, by_hand, strict=True)
    return [
        f"{name} of step {known['step']} is {step.get(name)!r}, by hand {value!r}"
        for step, known in pairs
        for name, value in known.items()
        if not _same(step.get(name), value)
    ]


def assert_same_run(folder: Path, by_hand: Ledger) -> None:
    """The run in ``folder`` has the numbers and the weights of the loop by hand."""
    records = records_of(folder / "run")
    assert differences(steps_of(records), by_hand.steps) == []
    assert differences(validations_of(records), by_hand.validations) == []
    for record in of(EpochFinished, records):
        losses = [step["loss"] for step in by_hand.steps if step["epoch"] == record.epoch]
        finite = [loss for loss in losses if math.isfinite(loss)]
        assert record.mean_loss == (pytest.approx(sum(finite) / len(finite)) if finite else None)
    weights = torch.load(folder / "weights.pt")
    assert weights.keys() == by_hand.weights.keys()
    assert [name for name, value in by_hand.weights.items() if not torch.equal(weights[name], value)] == []


def _same(ours: Any, by_hand: Any) -> bool:
    both_nan = all(isinstance(value, float) and math.isnan(value) for value in (ours, by_hand))
    return both_nan or bool(ours == by_hand)


def order_of(folder: Path) -> list[list[int]]:
    """The images of each training batch, of all ranks; of one that was made again, the last time's."""
    by_call: dict[int, dict[int, list[int]]] = {}
    for line in (folder / "trail").read_text().splitlines():
        call, rank, *numbers = map(int, line.split())
        by_call.setdefault(call, {})[rank] = numbers
    return [[*chain(*(ranks[rank] for rank in sorted(ranks)))] for _, ranks in sorted(by_call.items())]
