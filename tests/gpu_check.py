"""What only a GPU can show, in one command: it prints one JSON object and nothing else on standard output.

    python -m tests.gpu_check [--data-dir DIR] [--out DIR] [--quick]

Without CUDA it says what it would check, and ends with 0. With CUDA it ends with 1 if a check failed, and
within nine minutes. Runs from the root of a checkout; amptui need not be installed.
"""

import argparse
import json
import shutil
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from amptui.data.mnist import MNIST
from amptui.findings import Float16Window, ModulesTraced, XRayTaken
from amptui.records import (
    BlockFinished,
    CheckpointWritten,
    EpochFinished,
    PrecisionChanged,
    Record,
    RunFinished,
    RunStarted,
    StepRecord,
)
from tests.benchmarks.lab import Lab, last_line, open_lab
from tests.benchmarks.measures import MEASURES, Plan
from tests.benchmarks.watched import finished_run
from tests.benchmarks.workloads import workloads
from tests.checkout import ROOT
from tests.terminal import Terminal, amptui_command

LONGEST_SECONDS = 510.0

JOURNAL_LIMIT_BYTES = 1_000_000

TOP_LINE = r"\A.*"
"""Begins a pattern for the screen's first line, where the run's state and step are."""

NO_SYNC = str(ROOT / "tests" / "recipes" / "no_sync.py")

NO_SYNC_STEPS = 520
"""Two epochs of 234 steps with their validations, and some more."""

PUBLISHED = {
    "fp32": {"epoch_seconds": 22.1, "first_epoch_loss": 0.25, "tenth_epoch_loss": 0.008},
    "fp16": {"epoch_seconds": 12.95, "first_epoch_loss": 0.27, "tenth_epoch_loss": 0.009},
    "speedup": 1.71,
}
"""What the mixed-precision tutorial prints for mnist-deep on real MNIST, on a GPU that it does not name."""


_DESCRIBE = """
import json, os, platform, pynvml, torch
pynvml.nvmlInit()
print(json.dumps({
    "gpu": torch.cuda.get_device_name(),
    "capability": torch.cuda.get_device_capability(),
    "memory_bytes": torch.cuda.get_device_properties(0).total_memory,
    "driver": pynvml.nvmlSystemGetDriverVersion(),
    "cuda": torch.version.cuda,
    "cudnn": torch.backends.cudnn.version(),
    "torch": torch.__version__,
    "python": platform.python_version(),
    "cores": len(os.sched_getaffinity(0)),
}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What the checks work with."""

    lab: Lab
    data_options: tuple[str, ...]
    out: Path | None
    quick: bool


def main() -> int:
    """Run every check, or say what each would do."""
    options = parse_options()
    if not torch.cuda.is_available():
        would = [
            {"name": check.__name__, "does": " ".join((check.__doc__ or "").split())} for check in CHECKS
        ]
        print(json.dumps({"gpu": None, "would_check": would}))
        return 0
    began = time.monotonic()
    with open_lab(LONGEST_SECONDS) as lab:
        data_options = find_data(options.data_dir, lab.folder)
        bench = Bench(lab=lab, data_options=data_options, out=options.out, quick=options.quick)
        results = {check.__name__: checked(check, bench) for check in CHECKS}
    seconds = round(time.monotonic() - began, 1)
    gpu = results["machine"].get("gpu", "a GPU whose name could not be read")
    print(json.dumps({"gpu": gpu, "quick": options.quick, "seconds": seconds, "checks": results}))
    return 0 if all(result["ok"] for result in results.values()) else 1


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Check what only a GPU can show.")
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="where MNIST's files may be")
    parser.add_argument("--out", type=Path, metavar="DIR", help="keep the screen and the journal there")
    parser.add_argument("--quick", action="store_true", help="two epochs instead of ten, fewer repetitions")
    return parser.parse_args()


def find_data(data_dir: Path | None, scratch: Path) -> tuple[str, ...]:
    """Options that train on real MNIST if ``data_dir`` holds it, laid out as amptui wants it or flat."""
    if data_dir is None:
        return ("--data", "auto")
    folder = scratch / "data" / MNIST.folder
    folder.mkdir(parents=True)
    for place in (data_dir / MNIST.folder, data_dir):
        for file in MNIST.files:
            for path in (place / file.name, place / f"{file.name}.gz"):
                if path.is_file() and not (folder / path.name).exists():
                    (folder / path.name).symlink_to(path.resolve())
    found = {path.name.removesuffix(".gz") for path in folder.iterdir()}
    kind = "real" if found == {file.name for file in MNIST.files} else "auto"
    return ("--data", kind, "--data-dir", str(scratch / "data"))


def checked(check: Callable[[Bench], dict[str, Any]], bench: Bench) -> dict[str, Any]:
    """What ``check`` found, or why it failed, and how long it took."""
    print(f"{check.__name__} ...", file=sys.stderr, flush=True)
    began = time.monotonic()
    result: dict[str, Any]
    try:
        result = {"ok": True, **check(bench)}
    except Exception as error:  # noqa: BLE001 - one check's trouble must not cost what the others find
        result = {"ok": False, "error": f"{type(error).__name__}: {error}"}
    return {**result, "seconds": round(time.monotonic() - began, 1)}


# ---------------------------------------------------------------------------------------- checks


def machine(bench: Bench) -> dict[str, Any]:
    """Name the GPU, its driver, torch, CUDA and cuDNN."""
    # In a child: a CUDA context in this process would hold memory beside the trainings.
    found: dict[str, Any] = json.loads(last_line(bench.lab.run([sys.executable, "-c", _DESCRIBE])))
    return found


def gpu_tests(bench: Bench) -> dict[str, Any]:
    """Run the tests that carry the marker gpu, and count what passed, failed and was skipped."""
    report = bench.lab.folder / "gpu_tests.xml"
    options = ("-m", "gpu", "-q", "-p", "no:cacheprovider", f"--junitxml={report}")
    # The children's own paths say where amptui is; the checkout itself must not stand before them.
    done = bench.lab.run([sys.executable, "-m", "pytest", *options, "--override-ini=pythonpath="])
    if not report.exists():
        raise RuntimeError(f"pytest ended with {done.returncode}: {(done.stderr or done.stdout)[-2000:]}")
    counts = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
    for suite in ET.parse(report).getroot().iter("testsuite"):  # noqa: S314 - our own child wrote it
        counts = {name: number + int(suite.get(name, 0)) for name, number in counts.items()}
    bad = counts["failures"] + counts["errors"]
    result = {
        "ok": done.returncode == 0,
        "passed": counts["tests"] - bad - counts["skipped"],
        "failed": bad,
        "skipped": counts["skipped"],
    }
    return result if result["ok"] else {**result, "output": done.stdout[-3000:]}


def tutorial(bench: Bench) -> dict[str, Any]:
    """Train mnist-deep for ten epochs in FP32 and ten in fp16, beside what the tutorial published."""
    fp32, fp16 = (_train_epochs(bench, precision) for precision in ("fp32", "fp16"))
    peaks = fp32["peak_allocated_bytes"], fp16["peak_allocated_bytes"]
    return {
        "fp32": fp32,
        "fp16": fp16,
        "speedup": fp32["median_epoch_seconds"] / fp16["median_epoch_seconds"],
        "memory_saving": 1 - peaks[1] / peaks[0] if None not in peaks else None,
        "published": PUBLISHED,
        "comparable": fp32["real_data"] and not bench.quick,
    }


def no_sync(bench: Bench) -> dict[str, Any]:
    """Train 520 steps in the whole app, both precisions and two validations, with an error for any wait."""
    run_dir = bench.lab.folder / "no_sync"
    options = ("--batch-size", "256", "--steps", str(NO_SYNC_STEPS), "--data", "synthetic")
    with _app(bench, NO_SYNC, *options, "--run-dir", str(run_dir)) as terminal:
        _await(bench, terminal, rf"{TOP_LINE}(epoch +[23]/|failed)")
        terminal.press("n")  # hooks on every module may not wait either
        terminal.press("p")
        _await(bench, terminal, rf"{TOP_LINE}(finished|failed)")
        terminal.press("q")
        terminal.wait()
    records = finished_run(run_dir / "journal.jsonl")
    switches = [record for record in records if isinstance(record, PrecisionChanged)]
    traces = [record for record in records if isinstance(record, ModulesTraced)]
    if not switches or not traces:
        raise RuntimeError("the run ended before it was switched and traced")
    return {
        "steps": len(_steps(records)),
        "switched_at_step": switches[0].step,
        "switched_to": switches[0].current,
        "validated_epochs": [record.epoch for record in records if isinstance(record, EpochFinished)],
        "unmeasured_steps": _unmeasured(records),
        "float16_windows": sum(isinstance(record, Float16Window) for record in records),
        "traced_modules": traces[0].modules,
    }


def goes_on(bench: Bench) -> dict[str, Any]:
    """Train with checkpoints, go on from the last in another process, and say what each cost the training."""
    run_dir = bench.lab.folder / "goes_on"
    begin = ("mnist-deep", "--data", "synthetic", "--precision", "fp16", "--run-dir", str(run_dir))
    for options in (
        (*begin, "--steps", "150", "--checkpoint-every", "50"),
        ("--resume", str(run_dir), "--steps", "300"),
    ):
        last_line(bench.lab.run(amptui_command("train", *options, "--headless")))
    records = finished_run(run_dir / "journal.jsonl")
    numbers = [record.step for record in _steps(records)]
    if numbers != list(range(1, 301)):
        raise RuntimeError(f"the journal does not read as one run: {len(numbers)} steps")
    written = [record for record in records if isinstance(record, CheckpointWritten)]
    return {
        "steps": len(numbers),
        "checkpoint_bytes": written[-1].size_bytes,
        "blocked_seconds": [record.blocked_seconds for record in written],
        "seconds": [record.seconds for record in written],
    }


def app_on_gpu(bench: Bench) -> dict[str, Any]:
    """Press p in the app while it trains, wait for both columns and the verdict, keep the screen."""
    run_dir = bench.lab.folder / "app_on_gpu"
    with _app(bench, "mnist-deep", "--run-dir", str(run_dir), *bench.data_options) as terminal:
        _await(bench, terminal, _from_step(300))
        terminal.press("p")
        _await(bench, terminal, r"[\d.]+ m?s +[\d.]+ m?s +│")  # both columns have a step time
        verdict = _await(bench, terminal, r"AMP ([\d.]+× (faster|slower)|as fast as|not surely)")
        _await(bench, terminal, _from_step(700))
        saved = _keep_screen(bench, terminal)
        terminal.press("q")
        _await(bench, terminal, "Stop it and leave")
        terminal.press("\r")
        status = terminal.wait()
    journal = run_dir / "journal.jsonl"
    records = finished_run(journal)
    if bench.out and journal.stat().st_size < JOURNAL_LIMIT_BYTES:
        saved.append(str(shutil.copy(journal, bench.out / "app_on_gpu.jsonl")))
    return {
        "ok": status == 0,
        "exit_status": status,
        "first_verdict": verdict,
        "steps": len(_steps(records)),
        "unmeasured_steps": _unmeasured(records),
        "journal_bytes": journal.stat().st_size,
        "saved": saved,
    }


def x_ray(bench: Bench) -> dict[str, Any]:
    """Take an X-ray of mnist-deep in the app, and hold FP32 and fp16 to each other's gradients."""
    run_dir = bench.lab.folder / "x_ray"
    options = ("--precision", "fp16", "--run-dir", str(run_dir), *bench.data_options)
    with _app(bench, "mnist-deep", *options) as terminal:
        _await(bench, terminal, _from_step(100))
        terminal.press("x")
        _await(bench, terminal, "(safe|careful|not safe):")
        terminal.press("\x1b")
        terminal.press("q")
        _await(bench, terminal, "Stop it and leave")
        terminal.press("\r")
        terminal.wait()
    (found, *_) = [r for r in finished_run(run_dir / "journal.jsonl") if isinstance(r, XRayTaken)]
    cosines = [layer.cosine for layer in found.layers if layer.cosine is not None]
    return {
        "ok": bool(cosines) and min(cosines) > 0.9,
        "layers": len(cosines),
        "least_cosine": min(cosines, default=None),
        "losses": [found.loss_fp32, found.loss_amp],
        "saved_bytes": [found.saved_bytes_fp32, found.saved_bytes_amp],
        "x_ray_seconds": found.seconds,
        "operators": len(found.operators),
    }


def probes(bench: Bench) -> dict[str, Any]:
    """Measure what looking inside costs in percent of a step of mnist-deep, in FP32 and in fp16."""
    command = [sys.executable, "-m", "tests.benchmarks.probes", "--precision"]
    return {
        precision: json.loads(last_line(bench.lab.run([*command, precision, "--steps", "300"])))
        for precision in ("fp32", "fp16")
    }


def benches(bench: Bench) -> dict[str, Any]:
    """Run amptui bench on mnist-deep at two batch sizes, on resnet50 and char-gpt, and keep its words."""
    rounds = ("--rounds", "3" if bench.quick else "8")
    wanted = {
        "mnist-deep": ("--batch-size", "256,4096", *bench.data_options),
        "resnet50": ("--data", "synthetic"),
        "char-gpt": (),
    }
    found = {}
    for model, options in wanted.items():
        done = bench.lab.run(amptui_command("bench", model, "--json", *rounds, *options))
        found[model] = json.loads(last_line(done))
        if bench.out is not None:
            bench.out.mkdir(parents=True, exist_ok=True)
            (bench.out / f"bench_{model}.json").write_text(
                json.dumps(found[model], indent=1), encoding="utf-8"
            )
    return {model: report["measured"] for model, report in found.items()}


def overhead(bench: Bench) -> dict[str, Any]:
    """Measure mnist-deep and a launch-bound loop under the app beside the plain loop, on the GPU."""
    plan = Plan(
        lab=bench.lab,
        workloads=workloads(on_gpu=True, quick=bench.quick),
        pairs=2 if bench.quick else 4,
        quick=bench.quick,
    )
    figures = [figure for name in ("mnist_deep", "launch_bound") for figure in MEASURES[name](plan)]
    return {"figures": [figure.as_json() for figure in figures]}


CHECKS = (machine, gpu_tests, tutorial, no_sync, goes_on, app_on_gpu, x_ray, benches, probes, overhead)
"""In the order in which they run: what matters most comes before the time is used up."""


# ----------------------------------------------------------------------------------------- parts


def _train_epochs(bench: Bench, precision: str) -> dict[str, Any]:
    """One headless training as its journal tells it."""
    run_dir = bench.lab.folder / f"tutorial-{precision}"
    options = ("--precision", precision, "--epochs", "2" if bench.quick else "10", "--device", "cuda")
    command = amptui_command("train", "mnist-deep", "--headless", *options, *bench.data_options)
    last_line(bench.lab.run([*command, "--run-dir", str(run_dir)]))
    records = finished_run(run_dir / "journal.jsonl")
    epochs = [record for record in records if isinstance(record, EpochFinished)]
    measured = [epoch.seconds for epoch in epochs if epoch.seconds is not None]
    last = epochs[-1].validation
    return {
        "real_data": next(r.data.real for r in records if isinstance(r, RunStarted)),
        "epoch_seconds": [epoch.seconds for epoch in epochs],
        "median_epoch_seconds": median(measured),
        "epoch_mean_losses": [epoch.mean_loss for epoch in epochs],
        "validation_accuracy": last.accuracy if last else None,
        "peak_allocated_bytes": next(r.peak_allocated_bytes for r in records if isinstance(r, BlockFinished)),
        "skipped_steps": sum(step.skipped for step in _steps(records)),
        "unmeasured_steps": _unmeasured(records),
        "run_seconds": next(r.seconds for r in records if isinstance(r, RunFinished)),
    }


def _app(bench: Bench, model: str, *options: str) -> Terminal:
    """The whole app in a terminal, training on the GPU."""
    command = amptui_command("train", model, "--device", "cuda", *options)
    return Terminal(command, env=bench.lab.environment)


def _await(bench: Bench, terminal: Terminal, pattern: str) -> str:
    """What matched ``pattern`` once it stood on the screen; fails when it never does."""
    return terminal.wait_for(pattern, seconds=bench.lab.limit_seconds())[0]


def _steps(records: Sequence[Record]) -> list[StepRecord]:
    return [record for record in records if isinstance(record, StepRecord)]


def _unmeasured(records: Sequence[Record]) -> int:
    """Steps whose numbers never reached the host."""
    return sum(step.step_seconds is None for step in _steps(records))


def _from_step(step: int) -> str:
    """A pattern for the screen's top line once it shows ``step``, a number of hundreds, or a later one."""
    return rf"{TOP_LINE}step +([{step // 100}-9]\d\d|\d+,\d{{3}})/"


def _keep_screen(bench: Bench, terminal: Terminal) -> list[str]:
    """Write the screen as text, and as runs of equally coloured cells; return the files' names."""
    if bench.out is None:
        return []
    bench.out.mkdir(parents=True, exist_ok=True)
    text, cells = bench.out / "app_on_gpu.txt", bench.out / "app_on_gpu.screen.json"
    text.write_text(f"{terminal.text}\n", encoding="utf-8")
    cells.write_text(json.dumps(_runs(terminal), ensure_ascii=False), encoding="utf-8")
    return [str(text), str(cells)]


def _runs(terminal: Terminal) -> list[list[list[Any]]]:
    """For each line its runs of cells: text, colour, background, bold, reverse."""
    lines = []
    for y in range(terminal.screen.lines):
        runs: list[list[Any]] = []
        for x in range(terminal.screen.columns):
            cell = terminal.screen.buffer[y][x]
            look = [cell.fg, cell.bg, cell.bold, cell.reverse]
            if runs and runs[-1][1:] == look:
                runs[-1][0] += cell.data
            else:
                runs.append([cell.data, *look])
        lines.append(runs)
    return lines


if __name__ == "__main__":
    sys.exit(main())
