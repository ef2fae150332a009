"""What amptui costs the training and the terminal, each figure beside its aim.

    python -m tests.benchmarks.overhead [--quick] [--only NAME ...] [--pairs N] [--json FILE]

Prints a table and then one JSON object. Ends by itself within twelve minutes, with 0 if all that was asked
for could be measured, whether the aims were met or not.
"""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from amptui.engine.description import device_name
from tests.benchmarks.figures import Figure, table
from tests.benchmarks.lab import open_lab
from tests.benchmarks.measures import MEASURES, Plan
from tests.benchmarks.workloads import workloads

LONGEST_SECONDS = 690.0

PAIRS, QUICK_PAIRS = 6, 2


def main() -> int:
    """Measure what the command line asks for."""
    options = parse_options()
    machine, began = describe_machine(), time.monotonic()
    with open_lab(LONGEST_SECONDS) as lab:
        plan = Plan(
            lab=lab,
            workloads=workloads(on_gpu=torch.cuda.is_available(), quick=options.quick),
            pairs=options.pairs or (QUICK_PAIRS if options.quick else PAIRS),
            quick=options.quick,
        )
        figures, errors = measure(plan, options.only or list(MEASURES))
    report = {
        "machine": machine,
        "quick": options.quick,
        "seconds": round(time.monotonic() - began, 1),
        "figures": [figure.as_json() for figure in figures],
        "errors": errors,
    }
    print(describe(machine))
    print(table(figures))
    for name, error in errors.items():
        print(f"{name} could not be measured: {error}")
    print(json.dumps(report))
    if options.json:
        options.json.write_text(f"{json.dumps(report, indent=1)}\n")
    return 1 if errors else 0


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Measure what amptui costs.")
    parser.add_argument("--quick", action="store_true", help="show that everything runs; says little")
    parser.add_argument("--only", action="append", choices=MEASURES, help="measure this; may be repeated")
    parser.add_argument("--pairs", type=int, help=f"pairs of rates (default: {PAIRS}, quick {QUICK_PAIRS})")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the JSON object there, too")
    return parser.parse_args()


def measure(plan: Plan, names: Sequence[str]) -> tuple[list[Figure], dict[str, str]]:
    """The figures of the named measures, and why those that failed did."""
    figures: list[Figure] = []
    errors: dict[str, str] = {}
    for name in names:
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        try:
            figures += MEASURES[name](plan)
        except Exception as error:  # noqa: BLE001 - what fails here must not cost what was measured before
            errors[name] = f"{type(error).__name__}: {error}"
    return figures, errors


def describe_machine() -> dict[str, Any]:
    """Processor, cores, versions, and how busy it was before anything was measured."""
    return {
        "processor": device_name(torch.device("cpu")),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "load_average_at_start": [round(load, 2) for load in os.getloadavg()],
    }


def describe(machine: dict[str, Any]) -> str:
    """The machine in one line."""
    loads = " ".join(map(str, machine["load_average_at_start"]))
    return (
        f"{machine['processor']}, {machine['cores']} cores, Python {machine['python']}, "
        f"torch {machine['torch']}, load average at the start {loads}"
    )


if __name__ == "__main__":
    sys.exit(main())
