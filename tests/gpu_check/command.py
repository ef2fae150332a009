"""The checks of a GPU in their order, their command line, and what they report."""

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from tests.benchmarks.lab import OutOfTimeError, open_lab
from tests.gpu_check import paths, speed
from tests.gpu_check.bench import Bench, Found

LONGEST_SECONDS = 1500.0

ANYWHERE = (paths.machine, speed.tutorial_loop)

CHECKS: dict[str, Callable[[Bench], Found]] = {
    check.__name__: check
    for check in (
        *(paths.machine, paths.waits, paths.float8_waits, paths.app_on_gpu, paths.x_ray, paths.gpu_tests),
        *(speed.published, speed.tutorial_loop),
    )
}
"""In the order in which they run: those that take minutes come last."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_options(arguments)
    if options.device is None and not torch.cuda.is_available():
        would = [
            {"name": name, "does": " ".join((check.__doc__ or "").split())} for name, check in CHECKS.items()
        ]
        print(json.dumps({"gpu": None, "would_check": would}))
        return 0
    began = time.monotonic()
    results: dict[str, Found] = {}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the lab ends its children
    with open_lab(options.longest) as lab:
        bench = Bench(
            lab=lab,
            data_dir=options.data_dir,
            keep=options.keep,
            device=options.device or "cuda",
            quick=options.quick,
        )
        wanted = [name for name in CHECKS if not options.only or name in options.only]
        run_checks(wanted, bench, results, out=options.out)
    report = {"device": bench.device, "quick": options.quick, "seconds": round(time.monotonic() - began, 1)}
    left_out = [name for name in wanted if name not in results]
    print(json.dumps({**report, "left_out": left_out, "checks": results}))
    return 0 if not left_out and all(result["ok"] is not False for result in results.values()) else 1


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpu_check", description="Check what only a GPU can show.")
    parser.add_argument("--only", action="append", choices=list(CHECKS), metavar="NAME")
    parser.add_argument("--out", type=Path, metavar="FILE", help="append each answer there, one a line")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the screen and the journal there")
    parser.add_argument(
        "--data-dir", type=Path, metavar="DIR", help="where MNIST's files are, as amptui lays them"
    )
    parser.add_argument("--quick", action="store_true", help="fewer epochs and repetitions")
    parser.add_argument("--longest", type=float, default=LONGEST_SECONDS, metavar="SECONDS")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="cpu: what can run there, in small")
    return parser.parse_args(arguments)


def run_checks(
    wanted: Sequence[str], bench: Bench, results: dict[str, Found], *, out: Path | None = None
) -> None:
    """Add each check's answer to ``results`` as it comes, and to the file; stops where the time is up."""
    try:
        for name in wanted:
            bench.lab.limit_seconds()
            results[name] = found = checked(name, bench)
            if out is not None:
                out.parent.mkdir(parents=True, exist_ok=True)
                with out.open("a", encoding="utf-8") as file:
                    file.write(f"{json.dumps({'check': name, 'device': bench.device, **found})}\n")
    except OutOfTimeError:
        return


def checked(name: str, bench: Bench) -> Found:
    """What a check found, or why it failed, and how long it took; ``ok`` is None where it cannot run."""
    if CHECKS[name] not in ANYWHERE and not bench.on_gpu:
        return {"ok": None, "skipped": "needs a GPU"}
    print(f"{name} ...", file=sys.stderr, flush=True)
    began = time.monotonic()
    try:
        result: Found = {"ok": True, **CHECKS[name](bench)}
    except Exception as error:  # noqa: BLE001 - one check's trouble must not cost what the others find
        result = {"ok": False, "error": f"{type(error).__name__}: {error}"}
    return {**result, "seconds": round(time.monotonic() - began, 1)}
