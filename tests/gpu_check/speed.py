"""The checks of what amptui costs and gives: beside a bare loop, and by itself."""

import json
from dataclasses import replace
from statistics import median
from typing import Any

from amptui.records.run import BlockFinished, EpochFinished, RunFinished, RunStarted
from tests.benchmarks.figures import Figure
from tests.benchmarks.lab import last_line
from tests.benchmarks.overhead import beside_plain_loop
from tests.benchmarks.turns import workloads
from tests.builders import StepRow, of
from tests.gpu_check.bench import Bench, Found, judged, unmeasured
from tests.terminal import amptui_command

TIMES: dict[str, Any] = {"restarts": 3, "rounds": 2}
CPU_TIMES: dict[str, Any] = {"restarts": 1, "rounds": 1}
"""As few as an interval needs: on an H200's machine five minutes for both loops in both precisions. On a CPU
they show that it runs.
"""

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


def overhead(bench: Bench) -> Found:
    """Run mnist-deep and a launch-bound loop under the app in turns with a bare loop, in FP32 and AMP."""
    # On a CPU this shows that it runs: a step of mnist-deep takes seconds there.
    names = ("launch_bound", "mnist_deep") if bench.on_gpu else ("launch_bound",)
    found = workloads(on_gpu=bench.on_gpu, quick=bench.quick)
    times, precisions = TIMES if bench.on_gpu else CPU_TIMES, ("fp32", bench.amp)
    figures = [
        figure for name in names for figure in beside_plain_loop(bench.lab, found[name], precisions, **times)
    ]
    if not bench.on_gpu:
        figures = [replace(figure, aim=None) for figure in figures]
    return judged(figures)


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


def benches(bench: Bench) -> Found:
    """Run amptui bench on mnist-deep at two batch sizes, on resnet50 and char-gpt, and keep its words."""
    rounds = ("--rounds", "3" if bench.quick else "4")
    wanted = {
        "mnist-deep": ("--batch-size", "256,4096", *bench.data_options),
        "resnet50": ("--data", "synthetic"),
        "char-gpt": (),
    }
    found = {}
    for model, options in wanted.items():
        done = bench.lab.run(amptui_command("bench", model, "--json", *rounds, *options))
        found[model] = json.loads(last_line(done))
        if bench.keep is not None:
            bench.keep.mkdir(parents=True, exist_ok=True)
            path = bench.keep / f"bench_{model}.json"
            path.write_text(json.dumps(found[model], indent=1), encoding="utf-8")
    return {model: report["measured"] for model, report in found.items()}


def _train_epochs(bench: Bench, precision: str) -> Found:
    """One headless training as its journal tells it."""
    options = ("--precision", precision, "--epochs", "2" if bench.quick else "10", *bench.data_options)
    records = bench.train(f"published-{precision}", "mnist-deep", *options)
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
