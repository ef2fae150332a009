"""The checks of a GPU in their order, their command line, and what they report."""

import argparse
import json
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

import torch

from tests.benchmarks.lab import OutOfTimeError, open_lab
from tests.gpu_check import paths, speed
from tests.gpu_check.bench import Bench, Check, Found, found_data

LONGEST_SECONDS = 1500.0

CHECKS = (
    Check(paths.machine, needs_gpu=False),
    Check(paths.waits),
    Check(paths.float8_waits),
    Check(paths.app_on_gpu),
    Check(paths.x_ray),
    Check(paths.gpu_tests),
    Check(speed.published),
    Check(speed.tutorial_loop, needs_gpu=False),
)
"""In the order in which they run: those that take minutes come last."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the checks that are asked for, or say what each would do."""
    options = parse_options(arguments)
    if options.device is None and not torch.cuda.is_available():
        would = [{"name": check.name, "does": check.does} for check in CHECKS]
        print(json.dumps({"gpu": None, "would_check": would}))
        return 0
    began = time.monotonic()
    results: dict[str, Found] = {}
    with open_lab(options.longest) as lab, _ended_by_sigterm():
        bench = Bench(
            lab=lab,
            data_dir=found_data(options.data_dir, lab.folder),
            keep=options.keep,
            device=options.device or "cuda",
            quick=options.quick,
        )
        wanted = [check for check in CHECKS if not options.only or check.name in options.only]
        run_checks(wanted, bench, results, out=options.out)
    report = {"device": bench.device, "quick": options.quick, "seconds": round(time.monotonic() - began, 1)}
    left_out = [check.name for check in wanted if check.name not in results]
    print(json.dumps({**report, "left_out": left_out, "checks": results}))
    return 0 if not left_out and all(result["ok"] is not False for result in results.values()) else 1


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpu_check", description="Check what only a GPU can show.")
    parser.add_argument("--only", action="append", choices=[check.name for check in CHECKS], metavar="NAME")
    parser.add_argument("--out", type=Path, metavar="FILE", help="append each answer there, one a line")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the screen and the journal there")
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="where MNIST's files may be")
    parser.add_argument("--quick", action="store_true", help="fewer epochs and repetitions")
    parser.add_argument("--longest", type=float, default=LONGEST_SECONDS, metavar="SECONDS")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="cpu: what can run there, in small")
    return parser.parse_args(arguments)


def run_checks(
    wanted: Sequence[Check], bench: Bench, results: dict[str, Found], *, out: Path | None = None
) -> None:
    """Add each check's answer to ``results`` as it comes, and to the file; stops where the time is up."""
    try:
        for check in wanted:
            bench.lab.limit_seconds()
            results[check.name] = found = checked(check, bench)
            if out is not None:
                out.parent.mkdir(parents=True, exist_ok=True)
                with out.open("a", encoding="utf-8") as file:
                    file.write(f"{json.dumps({'check': check.name, 'device': bench.device, **found})}\n")
    except (OutOfTimeError, _EndedError):
        return


def checked(check: Check, bench: Bench) -> Found:
    """What ``check`` found, or why it failed, and how long it took; ``ok`` is None where it cannot run."""
    if check.needs_gpu and not bench.on_gpu:
        return {"ok": None, "skipped": "needs a GPU"}
    print(f"{check.name} ...", file=sys.stderr, flush=True)
    began = time.monotonic()
    try:
        result: Found = {"ok": True, **check.run(bench)}
    except Exception as error:  # noqa: BLE001 - one check's trouble must not cost what the others find
        result = {"ok": False, "error": f"{type(error).__name__}: {error}"}
    return {**result, "seconds": round(time.monotonic() - began, 1)}


class _EndedError(BaseException):
    """Somebody ended the command: what was found is told all the same."""


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    def end(_number: int, _frame: FrameType | None) -> NoReturn:
        raise _EndedError

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
