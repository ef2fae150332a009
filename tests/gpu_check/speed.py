"""The checks of what amptui gives: beside a tutorial's loop, and by itself."""

import math
from dataclasses import replace
from statistics import fmean, median
from typing import Any

from amptui.records.run import BlockFinished, EpochFinished, RunFinished, RunStarted
from tests.benchmarks.figures import Figure
from tests.benchmarks.lab import last_line
from tests.benchmarks.overhead import speedup
from tests.benchmarks.side import TUTORIAL
from tests.benchmarks.turns import APP, take_turns, workloads
from tests.builders import StepRow, of
from tests.gpu_check.bench import Bench, Found, finished_run, judged, unmeasured
from tests.terminal import amptui_command

TIMES: dict[str, Any] = {"restarts": 3, "rounds": 2}
CPU_TIMES: dict[str, Any] = {"restarts": 1, "rounds": 1}
"""As few as an interval needs: on an H200's machine five minutes for both loops in both precisions. On a CPU
they show that it runs.
"""

LONGEST_TURNS_SECONDS = 240.0

MNIST_IMAGES = 60_000
"""Of an epoch."""

MIN_TUTORIAL_SPEEDUP = 2.0
"""The app by a tutorial's loop in the same precision, on a GPU: 60,000 images that are decoded one by one
take that loop some 4 s, and the GPU a second."""

WISHED_SPEEDUPS = {"fp32": 5.0, "fp16": 8.0}
"""By the tutorial's FP32 loop: told, and nothing fails that does not reach them."""

MIN_MEMORY_SAVING = 0.1
"""What fp16 does without, of mnist-deep's peak at 256 images: its activations halve."""

MAX_LAST_LOSS, MAX_TENTH_LOSS = 0.1, 0.03
"""Mean loss of the last epoch, and of the tenth on real MNIST: ten classes that are guessed have 2.3."""

PUBLISHED = {
    "fp32": {"epoch_seconds": 22.1, "first_epoch_loss": 0.25, "tenth_epoch_loss": 0.008},
    "fp16": {"epoch_seconds": 12.95, "first_epoch_loss": 0.27, "tenth_epoch_loss": 0.009},
    "speedup": 1.71,
}
"""What the mixed-precision tutorial prints for mnist-deep on real MNIST, on a GPU that it does not name."""


def tutorial_loop(bench: Bench) -> Found:
    """Run mnist-deep under the app in turns with a loop as tutorials write it, in FP32, AMP and compiled AMP.

    Besides the ratios: the seconds in which each takes the steps of MNIST's 60,000 images.
    """
    workload = replace(
        workloads(on_gpu=bench.on_gpu, quick=bench.quick)["mnist_deep"], mnist=bench.mnist_files()
    )
    if not bench.on_gpu:
        workload = replace(workload, batch_size=2, threads=1, turn_seconds=1.0)
    entrants = {
        f"{side} {precision}": (side, replace(workload, precision=precision))
        for precision in ("fp32", bench.amp)
        for side in (TUTORIAL, APP)
    }
    compiled = f"{APP} compiled {bench.amp}"
    if bench.on_gpu:
        entrants[compiled] = APP, replace(workload, precision=bench.amp, compiles=True)
    times = TIMES if bench.on_gpu else CPU_TIMES
    turns = take_turns(bench.lab, entrants, **times, longest_seconds=LONGEST_TURNS_SECONDS)
    aim = MIN_TUTORIAL_SPEEDUP if bench.on_gpu else None
    same = [
        speedup(f"app.{p}", turns[f"{TUTORIAL} {p}"], turns[f"{APP} {p}"], aim=aim)
        for p in ("fp32", bench.amp)
    ]
    by_fp32 = {
        f"app.{bench.amp}.by_fp32": f"{APP} {bench.amp}",
        f"app.compiled.{bench.amp}.by_fp32": compiled,
    }
    across = [
        speedup(name, turns[f"{TUTORIAL} fp32"], turns[entrant], aim=None)
        for name, entrant in by_fp32.items()
        if entrant in turns
    ]
    steps = math.ceil(MNIST_IMAGES / workload.batch_size)
    epochs = [
        Figure(name=f"{name}.epoch", value=steps * fmean(t.step_seconds.mean() for t in of), unit="seconds")
        for name, of in turns.items()
    ]
    return judged([*same, *across, *epochs], wished=WISHED_SPEEDUPS, real_data=bench.data_dir is not None)


def published(bench: Bench) -> Found:
    """Train mnist-deep for ten epochs in FP32 and ten in fp16, beside what the tutorial published."""
    fp32, fp16 = (_train_epochs(bench, precision) for precision in ("fp32", "fp16"))
    peaks = fp32["peak_allocated_bytes"], fp16["peak_allocated_bytes"]
    speedup = fp32["median_epoch_seconds"] / fp16["median_epoch_seconds"]
    figures = [Figure(name="fp16.speedup", value=speedup, unit="times", more_is_better=True)]
    if None not in peaks:
        saving, aim = 1 - peaks[1] / peaks[0], MIN_MEMORY_SAVING
        figures.append(
            Figure(name="fp16.memory_saving", value=saving, unit="fraction", aim=aim, more_is_better=True)
        )
    comparable = fp32["real_data"] and not bench.quick
    aim = MAX_TENTH_LOSS if comparable else MAX_LAST_LOSS
    for name, run in (("fp32", fp32), ("fp16", fp16)):
        last = run["epoch_mean_losses"][-1]
        figures.append(Figure(name=f"{name}.last_epoch_loss", value=last, unit="number", aim=aim))
        missing = run["unmeasured_steps"]
        figures.append(Figure(name=f"{name}.unmeasured_steps", value=missing, unit="number", aim=0))
    return judged(figures, fp32=fp32, fp16=fp16, published=PUBLISHED, comparable=comparable)


def _train_epochs(bench: Bench, precision: str) -> Found:
    options = ("--precision", precision, "--epochs", "2" if bench.quick else "10", *bench.data_options)
    run_dir = bench.lab.folder / f"published-{precision}"
    command = amptui_command("train", "mnist-deep", *options, "--device", bench.device, "--headless")
    last_line(bench.lab.run([*command, "--run-dir", str(run_dir)]))
    records = finished_run(run_dir)
    epochs = of(EpochFinished, records)
    measured = [epoch.seconds for epoch in epochs if epoch.seconds is not None]
    last = epochs[-1].validation
    return {
        "real_data": of(RunStarted, records)[0].data.real,
        "epoch_seconds": [epoch.seconds for epoch in epochs],
        "median_epoch_seconds": median(measured),
        "epoch_mean_losses": [epoch.mean_loss for epoch in epochs],
        "validation_accuracy": last.accuracy if last else None,
        "peak_allocated_bytes": of(BlockFinished, records)[0].peak_allocated_bytes,
        "skipped_steps": sum(step.skipped for step in of(StepRow, records)),
        "unmeasured_steps": unmeasured(records),
        "run_seconds": of(RunFinished, records)[0].seconds,
    }
