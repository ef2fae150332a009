"""The checks of FP8: that its steps wait for nothing, and what it gives a transformer with wide layers."""

from statistics import mean, median

import torch

from amptui.recipe.float8 import torchao_trouble
from amptui.records.findings import Float8Layers, FlopsCounted
from amptui.records.run import Note
from tests.benchmarks.lab import last_line
from tests.benchmarks.watched import finished_run
from tests.gpu_check.bench import Bench, Found, steps_of, unmeasured
from tests.gpu_check.paths import trained_without_waits
from tests.terminal import amptui_command

WIDE = {"layers": 8, "heads": 16, "width": 2048, "context": 512, "dropout": 0}
"""Products large enough for the Tensor Cores: 8,192 tokens by 2,048 channels and more."""

NARROW = {"layers": 1, "heads": 2, "width": 32, "context": 16, "dropout": 0}

MAX_LOSS_APART = 0.1
"""Of the mean loss of the last steps, FP8 by bf16: torchao's own trainings end within 0.01."""


def float8_waits(bench: Bench) -> Found:
    """Train 520 steps from FP8 on in the whole app, with an error for any wait."""
    return _missing(bench) or trained_without_waits(bench, "fp8")


def float8(bench: Bench) -> Found:
    """Train char-gpt with wide layers in bf16 and FP8, eager and compiled, and hold the losses together."""
    missing = _missing(bench)
    if missing is not None:
        return missing
    runs = {
        f"{precision}{' compiled' if compiles else ''}": _train(bench, precision, compiles=compiles)
        for compiles in ((False, True) if bench.on_gpu else (False,))
        for precision in ("bf16", "fp8" if bench.on_gpu else "fp8-emulated")
    }
    last = {name: run["last_loss"] for name, run in runs.items()}
    apart = max(last.values()) / min(last.values()) - 1
    troubles = [note for run in runs.values() for note in run["errors"]]
    return {
        "ok": apart < MAX_LOSS_APART
        and not troubles
        and not any(r["unmeasured_steps"] for r in runs.values()),
        "losses_apart": apart,
        "runs": runs,
    }


def _missing(bench: Bench) -> Found | None:
    """Why nothing can be checked here."""
    if trouble := torchao_trouble():
        return {"ok": None, "skipped": trouble}
    if bench.on_gpu and torch.cuda.get_device_capability() < (8, 9):
        return {"ok": None, "skipped": "needs compute capability 8.9"}
    return None


def _train(bench: Bench, precision: str, *, compiles: bool) -> Found:
    run_dir = bench.lab.folder / f"float8_{precision}_{compiles}"
    sizes, batch, steps = (WIDE, 16, 60) if bench.on_gpu else (NARROW, 2, 6)
    options = [option for name, value in sizes.items() for option in ("--set", f"{name}={value}")]
    options += ["--batch-size", str(batch), "--steps", str(steps), "--precision", precision]
    options += ["--device", bench.device, "--run-dir", str(run_dir), *(["--compile"] if compiles else [])]
    last_line(bench.lab.run(amptui_command("train", "char-gpt", *options, "--headless")))
    records = finished_run(run_dir / "journal.jsonl")
    trained = steps_of(records)[steps // 2 :]
    layers = [record for record in records if isinstance(record, Float8Layers)]
    flops = [record for record in records if isinstance(record, FlopsCounted)]
    return {
        "layers": layers[-1].layers if layers else 0,
        "emulated": layers[-1].emulated if layers else None,
        "median_step_seconds": median(step.step_seconds or 0.0 for step in trained),
        "last_loss": mean(step.loss for step in trained if step.loss is not None),
        "flops_by_type": flops[-1].flops_by_type if flops else None,
        "unmeasured_steps": unmeasured(records),
        "errors": [r.text for r in records if isinstance(r, Note) and r.severity == "error"],
    }
