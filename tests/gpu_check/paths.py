"""The checks of what amptui does on a device: without waits, over switches, in FP8."""

import json
import re
import shutil
import sys
from collections.abc import Sequence

import torch

from amptui.recipe.float8 import torchao_trouble
from amptui.records.findings import Float16Window, ModulesTraced, XRayTaken
from amptui.records.keeping import KeepingChanged
from amptui.records.run import EpochFinished, Note, PrecisionChanged, Record
from tests.builders import StepRow, of
from tests.checkout import ROOT
from tests.gpu_check.bench import TOP_LINE, Bench, Found, finished_run, from_step, unmeasured
from tests.terminal import amptui_command

JOURNAL_LIMIT_BYTES = 1_000_000

NO_SYNC = str(ROOT / "tests" / "gpu_check" / "no_sync.py")

NO_SYNC_STEPS = 520
"""Two epochs of 234 steps with their validations, and some more."""

WAIT = "synchronizing CUDA operation"
"""What torch says of a wait under its sync debug mode (c10/cuda/CUDAFunctions.cpp)."""

MIN_COSINE = 0.9
"""Between a layer's gradients in FP32 and fp16: below it amptui itself says "gradients differ"."""


def machine(bench: Bench) -> Found:
    """Name the GPU, its driver, torch, CUDA and the host, as `amptui doctor` does."""
    lines = bench.lab.run(amptui_command("doctor", "--json")).stdout.splitlines()
    return {"ok": bool(lines), "doctor": [json.loads(line) for line in lines]}


def gpu_tests(bench: Bench) -> Found:
    """Run the tests that carry the marker gpu, and count what passed, failed and was skipped."""
    options = ("-m", "gpu", "-q", "-p", "no:cacheprovider")
    # The children's own paths say where amptui is; the checkout itself must not stand before them.
    done = bench.lab.run([sys.executable, "-m", "pytest", *options, "--override-ini=pythonpath="])
    said = done.stdout.strip() or done.stderr.strip()
    ended = re.findall(r"(\d+) (passed|failed|errors?|skipped)", said.splitlines()[-1])
    result = {"ok": done.returncode == 0, **{how: int(number) for number, how in ended}}
    return result if result["ok"] else {**result, "output": said[-3000:]}


def waits(bench: Bench) -> Found:
    """Train 520 steps in the whole app, both precisions and two validations, with an error for any wait."""
    return trained_without_waits(bench, "fp32")


def trained_without_waits(bench: Bench, precision: str) -> Found:
    """Train from ``precision`` on, trace a step and press p, with an error for any wait."""
    run_dir = bench.lab.folder / f"no_sync_{precision}"
    options = ["--batch-size", "256", "--steps", str(NO_SYNC_STEPS), "--data", "synthetic"]
    options += ["--precision", precision]
    with bench.app(NO_SYNC, *options, "--run-dir", str(run_dir)) as terminal:
        bench.wait_for(terminal, rf"{TOP_LINE}(epoch +[23]/|failed)")
        terminal.press("n")  # hooks on every module may not wait either
        terminal.press("p")
        bench.wait_for(terminal, rf"{TOP_LINE}(finished|failed)")
        terminal.leave("q")
    records = finished_run(run_dir)
    switches = of(PrecisionChanged, records)
    traces = of(ModulesTraced, records)
    if not switches or not traces:
        raise RuntimeError("the run ended before it was switched and traced")
    notes = waits_told(records)
    steps = len(of(StepRow, records))
    return {
        "ok": not notes and steps == NO_SYNC_STEPS and not unmeasured(records),
        "waits": notes,
        "steps": steps,
        "switched_at_step": switches[0].step,
        "switched_to": switches[0].current,
        "validated_epochs": [record.epoch for record in records if isinstance(record, EpochFinished)],
        "unmeasured_steps": unmeasured(records),
        "float16_windows": sum(isinstance(record, Float16Window) for record in records),
        "traced_modules": traces[0].modules,
    }


def waits_told(records: Sequence[Record]) -> list[str]:
    """What was given up because it waited: a probe with a note, a checkpoint with a trouble in keeping it."""
    told = [record.text for record in records if isinstance(record, Note)]
    told += [record.trouble for record in records if isinstance(record, KeepingChanged)]
    return [text for text in told if WAIT in text]


def app_on_gpu(bench: Bench) -> Found:
    """Press p in the app while it trains, wait for both columns and the verdict, keep the screen."""
    run_dir = bench.lab.folder / "app_on_gpu"
    with bench.app("mnist-deep", "--run-dir", str(run_dir), *bench.data_options) as terminal:
        bench.wait_for(terminal, from_step(300))
        terminal.press("p")
        bench.wait_for(terminal, r"[\d.]+ m?s +[\d.]+ m?s +│")  # both columns have a step time
        first = r"AMP (fp16|bf16) +(about [\d.]+× the speed|step times too uneven|no clear)"
        verdict = bench.wait_for(terminal, first)
        bench.wait_for(terminal, from_step(700))
        screen = terminal.text
        status = bench.quit(terminal)
    journal = run_dir / "journal.jsonl"
    records = finished_run(run_dir)
    if bench.keep:
        bench.keep.mkdir(parents=True, exist_ok=True)
        (bench.keep / "app_on_gpu.txt").write_text(f"{screen}\n", encoding="utf-8")
        if journal.stat().st_size < JOURNAL_LIMIT_BYTES:
            shutil.copy(journal, bench.keep / "app_on_gpu.jsonl")
    return {
        "ok": status == 0 and not unmeasured(records),
        "exit_status": status,
        "first_verdict": verdict,
        "steps": len(of(StepRow, records)),
        "unmeasured_steps": unmeasured(records),
        "journal_bytes": journal.stat().st_size,
    }


def x_ray(bench: Bench) -> Found:
    """Take an X-ray of mnist-deep in the app, and hold FP32 and fp16 to each other's gradients."""
    run_dir = bench.lab.folder / "x_ray"
    options = ("--precision", "fp16", "--run-dir", str(run_dir), *bench.data_options)
    with bench.app("mnist-deep", *options) as terminal:
        bench.wait_for(terminal, from_step(100))
        terminal.press("x")
        bench.wait_for(terminal, "gradients (agree|differ|disagree) in")
        bench.wait_for(terminal, "esc back")
        terminal.press("\x1b")
        bench.wait_for(terminal, "╭ throughput")  # a key that follows at once would be alt and that key
        bench.quit(terminal)
    found = of(XRayTaken, finished_run(run_dir))[0]
    cosines = [layer.cosine for layer in found.layers if layer.cosine is not None]
    return {
        "ok": bool(cosines) and min(cosines) > MIN_COSINE,
        "layers": len(cosines),
        "min_cosine": min(cosines, default=None),
        "losses": [found.loss_fp32, found.loss_amp],
        "x_ray_seconds": found.seconds,
    }


def float8_waits(bench: Bench) -> Found:
    """Train 520 steps from FP8 on in the whole app, with an error for any wait."""
    if trouble := torchao_trouble():
        return {"ok": None, "skipped": trouble}
    if torch.cuda.get_device_capability() < (8, 9):
        return {"ok": None, "skipped": "needs compute capability 8.9"}
    return trained_without_waits(bench, "fp8")
