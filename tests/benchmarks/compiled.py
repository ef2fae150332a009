"""What does ``--compile`` bring? Step times of a model eager and compiled, in alternating blocks of steps.

    python -m tests.benchmarks.compiled --models mnist-deep,simple-cnn --batch-size 64

Prints a table of medians and speed-ups with 95% intervals, then one JSON object. Compiling is timed apart.
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median

import torch

from amptui import units
from amptui.data.batches import Batches
from amptui.data.sources import DataRequest
from amptui.engine import setup
from amptui.engine.compilation import check_compiler
from amptui.engine.loading import build_experiment, load_class
from amptui.engine.precision import Precision
from amptui.engine.validation import checked_loss
from amptui.estimate import paired_ratio
from amptui.modelspec import parse_model
from amptui.request import COMPILE_MODES, TrainRequest

WARM_UP_STEPS = 5
"""Of each side after it was compiled; CUDA graphs are recorded in them."""

SETTLE_STEPS = 2
"""First steps of a block that do not count: the other side has used the caches."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One model in one precision and mode."""

    model: str
    precision: str
    mode: str
    """``eager`` or one of torch.compile's."""
    first_step_seconds: float
    """Compiling included."""
    step_seconds: float
    """Median of the medians of all blocks."""
    fastest_seconds: float
    """The fastest counted step: other load can only slow one down."""
    speedup: float
    """Over eager."""
    low: float | None
    high: float | None


def measure(model: str, precision: str, modes: Sequence[str], options: argparse.Namespace) -> list[Measured]:
    """Train all sides in turns, a block each; their rows, eager first."""
    sides = {mode: _side(model, precision, mode, options) for mode in ("eager", *modes)}
    firsts = {mode: side(1)[0] for mode, side in sides.items()}
    for side in sides.values():
        side(WARM_UP_STEPS)
    medians: dict[str, list[float]] = {mode: [] for mode in sides}
    fastest = dict.fromkeys(sides, math.inf)
    for number in range(options.rounds):
        for mode in sides if number % 2 == 0 else reversed(sides):
            seconds = sides[mode](SETTLE_STEPS + options.steps)[SETTLE_STEPS:]
            medians[mode].append(median(seconds))
            fastest[mode] = min(fastest[mode], *seconds)
    rows = []
    for mode, blocks in medians.items():
        ratio = paired_ratio(medians["eager"], blocks)
        assert ratio is not None, "there is a block at least"
        interval = (None, None) if mode == "eager" else (ratio.low, ratio.high)
        rows.append(
            Measured(
                model=model,
                precision=precision,
                mode=mode,
                first_step_seconds=firsts[mode],
                step_seconds=median(blocks),
                fastest_seconds=fastest[mode],
                speedup=ratio.value,
                low=interval[0],
                high=interval[1],
            )
        )
    return rows


def _side(model: str, precision: str, mode: str, options: argparse.Namespace) -> Callable[[int], list[float]]:
    """A training that makes as many steps as it is told to, and says how long each took, in seconds."""
    request = TrainRequest(
        model=model,
        precision=precision,
        device=options.device,
        batch_size=options.batch_size,
        data="synthetic",
        compile_mode=None if mode == "eager" else mode,
        channels_last=options.channels_last,
    )
    choices = setup.choose(request)
    setup.enter_device(choices.device)
    setup.seed_everything(0)
    chosen = load_class(parse_model(model))
    experiment = build_experiment(chosen, setup.experiment_settings(chosen, request, choices.device))
    asked = DataRequest(data_dir=Path("unused"), kind="synthetic")
    prepared = setup.assemble(request, experiment, choices, data_request=asked)
    batches = _endless(prepared.training)
    return partial(_steps, prepared, prepared.precisions[precision], batches)


def _steps(
    prepared: setup.Prepared, precision: Precision, batches: Iterator[object], steps: int
) -> list[float]:
    precision.enter()
    seconds = []
    for _ in range(steps):
        began = time.perf_counter()
        prepared.optimizer.zero_grad(set_to_none=True)
        with precision.forward_context():
            result = prepared.experiment.loss(prepared.model, next(batches))
        precision.backward(checked_loss(prepared.experiment, result)[0])
        precision.step(prepared.optimizer)
        if prepared.device.type == "cuda":
            torch.cuda.synchronize(prepared.device)
        seconds.append(time.perf_counter() - began)
    return seconds


def _endless(batches: Batches) -> Iterator[object]:
    for epoch in count(1):
        yield from batches.epoch(epoch)


def line(row: Measured) -> str:
    """One row for a person."""
    gain = "" if row.mode == "eager" else f"{row.speedup:.2f}"
    if row.low is not None and row.high is not None:
        gain += f" ({row.low:.2f} to {row.high:.2f})"
    seconds = (row.first_step_seconds, row.step_seconds, row.fastest_seconds)
    first, step, fastest = map(units.milliseconds, seconds)
    name = Path(row.model).stem
    return f"{name:12} {row.precision:9} {row.mode:16} {first:>10} {step:>9} {fastest:>9}  {gain}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Step times of models eager and compiled.")
    parser.add_argument("--models", default="mnist-deep,simple-cnn", help="names or files, with commas")
    parser.add_argument("--precisions", default="fp32,bf16", help="with commas")
    parser.add_argument("--modes", default="default", help=f"of {', '.join(COMPILE_MODES)}, with commas")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=5, help="counted steps in a block")
    parser.add_argument("--rounds", type=int, default=6, help="blocks of each side")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--channels-last", action="store_true")
    options = parser.parse_args(arguments)
    check_compiler(setup.choose_device(options.device))
    print(f"{'model':12} {'precision':9} {'mode':16} {'first step':>10} {'step':>9} {'fastest':>9}  speed-up")
    rows: list[Measured] = []
    for model in options.models.split(","):
        for precision in options.precisions.split(","):
            found = measure(model, precision, options.modes.split(","), options)
            print(*map(line, found), sep="\n", flush=True)
            rows += found
    print(json.dumps([asdict(row) for row in rows]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
