"""What amptui tells of a training: its command line, and the steps and validations of a journal."""

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.experiments.by_hand import Ledger, Step, Training

RECIPE = Path(__file__).parent / "recipe.py"

IN_A_STEP = ("epoch", "precision", "skipped", "loss", "samples", "lr", "loss_scale", "growth_tracker")


def command_line(training: Training, folder: Path, *more: str) -> list[str]:
    """The arguments of `amptui` for this training, whose run, weights and batches are in ``folder``."""
    kind = "ByEpoch" if training.by_epoch else "Recipe"
    options = {
        "precision": training.precision,
        "clip-norm": training.clip_norm,
        "accumulate": training.accumulate,
        "seed": training.seed,
        "steps": training.steps,
        "epochs": training.epochs,
        "batch-size": training.batch_size,
        "lr": training.lr,
        "validate-every": training.validate_every,
        "validation-batches": training.validation_batches,
        "checkpoint-every": training.checkpoint_every,
        "run-dir": folder / "run",
        "save-weights": folder / "weights.pt",
        "device": "cpu",
    }
    named = [(f"--{name}", str(value)) for name, value in options.items() if value is not None]
    fields = {**training.recipe, "trail": folder / "trail"}
    named += [("--set", f"{name}={value}") for name, value in fields.items()]
    return ["train", f"{RECIPE}:{kind}", *[word for pair in named for word in pair], *more]


def journal(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]


def steps_of(lines: Iterable[dict[str, Any]]) -> list[Step]:
    """All optimizer steps, each as a line of its own; of one that was made again, the last time's."""
    steps = [step for line in lines if line["type"] == "Steps" for step in _one_by_one(line)]
    return list({step["step"]: step for step in steps}.values())


def _one_by_one(block: dict[str, Any]) -> Iterable[Step]:
    columns = {name: block[name] for name in (*IN_A_STEP, "grad_norm")} | block.get("losses", {})
    columns["micro_batches"] = block.get("micro_batches", 1)
    for index in range(block["count"]):
        step = {name: _at(index, column) for name, column in columns.items()}
        step["group_lrs"] = [_at(index, column) for column in block.get("group_lrs", ())]
        yield {"step": block["first_step"] + index, **step}


def _at(index: int, column: Any) -> Any:
    """A number of a column, which is written once if all of its numbers are the same."""
    value = column[index] if isinstance(column, list) else column
    return float(value) if value in ("nan", "inf", "-inf") else value


def validations_of(lines: Iterable[dict[str, Any]]) -> list[Step]:
    """All validations, within epochs and at their ends."""
    found = {}
    for line in lines:
        if line["type"] in ("Validated", "EpochFinished") and (told := line["validation"]) is not None:
            means = {name: told[name] for name in ("loss", "accuracy") if told[name] is not None}
            numbers = {"samples": told["samples"], **means, **told["metrics"]}
            found[line["step"]] = {"step": line["step"], "epoch": line["epoch"], **numbers}
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
    lines = journal(folder / "run")
    assert differences(steps_of(lines), by_hand.steps) == []
    assert differences(validations_of(lines), by_hand.validations) == []
    for line in lines:
        if line["type"] == "EpochFinished":
            losses = [step["loss"] for step in by_hand.steps if step["epoch"] == line["epoch"]]
            finite = [loss for loss in losses if math.isfinite(loss)]
            assert line["mean_loss"] == (pytest.approx(sum(finite) / len(finite)) if finite else None)
    weights = torch.load(folder / "weights.pt")
    assert weights.keys() == by_hand.weights.keys()
    assert [name for name, value in by_hand.weights.items() if not torch.equal(weights[name], value)] == []


def _same(ours: Any, by_hand: Any) -> bool:
    both_nan = all(isinstance(value, float) and math.isnan(value) for value in (ours, by_hand))
    return both_nan or bool(ours == by_hand)


def order_of(folder: Path) -> list[list[int]]:
    """The images of each training batch; of one that was made again after a restart, the last time's."""
    lines = [line.split() for line in (folder / "trail").read_text().splitlines()]
    by_call = {int(call): numbers for call, *numbers in lines}
    return [[int(number) for number in by_call[call]] for call in sorted(by_call)]
