"""What amptui costs the training and the terminal, each figure beside its aim.

    python -m tests.benchmarks.overhead [--quick] [--only NAME ...] [--restarts N] [--rounds N]
                                        [--sides SIDE ...] [--precisions P ...] [--device D] [--json FILE]
                                        [--judge]

Prints a table and then one JSON object. Ends by itself within twelve minutes, with 0 if all that was asked
for could be measured, with 1 if not, and with ``--judge`` with 1 also if an aim was missed.

Step times are taken in turns of seconds, the plain loop's beside those of the app, or of each of ``--sides``:
``plain-again trainer no-probes recorder app``. Two processes of one program differ by a few percent, so all
sides are started anew several times, and intervals are over restarts; ``plain-again`` shows whether they hold
what they say. A busy machine is told by its counters and gets no verdict; on one, ``nice -n -10`` before the
command helps. On a GPU the host's clock sees when steps are sent off: there only the mean says what they
take.
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

from amptui.loops.description import device_name
from tests.benchmarks.beside import AGAIN, PLAIN
from tests.benchmarks.figures import Figure, table
from tests.benchmarks.lab import open_lab
from tests.benchmarks.measures import MEASURES, Plan
from tests.benchmarks.turns import ALL_SIDES, APP
from tests.benchmarks.workloads import workloads

LONGEST_SECONDS = 690.0

BESIDE_PLAIN = (AGAIN, *ALL_SIDES[ALL_SIDES.index(PLAIN) + 1 :])
"""Those that are told beside the plain loop."""

RESTARTS, QUICK_RESTARTS = 8, 2

ROUNDS, QUICK_ROUNDS = 2, 1
"""Few: processes differ more than turns of one do, and restarts narrow the interval."""


def main() -> int:
    """Measure what the command line asks for."""
    options = parse_options()
    machine, began = describe_machine(), time.monotonic()
    with open_lab(LONGEST_SECONDS) as lab:
        plan = Plan(
            lab=lab,
            workloads=workloads(on_gpu=options.device == "cuda", quick=options.quick),
            quick=options.quick,
            restarts=options.restarts or (QUICK_RESTARTS if options.quick else RESTARTS),
            rounds=options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS),
            sides=in_order(options.sides),
            precisions=options.precisions,
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
    for figure in figures:
        if figure.explanation:
            print(f"\n{figure.explanation}")
    for name, error in errors.items():
        print(f"{name} could not be measured: {error}")
    print(json.dumps(report))
    if options.json:
        options.json.write_text(f"{json.dumps(report, indent=1)}\n")
    missed = [figure.name for figure in figures if figure.met is False]
    return 1 if errors or (options.judge and missed) else 0


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Measure what amptui costs.")
    parser.add_argument("--quick", action="store_true", help="show that everything runs; says little")
    parser.add_argument("--only", action="append", choices=MEASURES, help="measure this; may be repeated")
    starts = f"sets of processes (default: {RESTARTS}, quick {QUICK_RESTARTS})"
    parser.add_argument("--restarts", type=int, help=starts)
    turns = f"turns of each process (default: {ROUNDS}, quick {QUICK_ROUNDS})"
    parser.add_argument("--rounds", type=int, help=turns)
    parser.add_argument(
        "--sides", nargs="+", choices=BESIDE_PLAIN, default=[APP], help="beside the plain loop"
    )
    parser.add_argument("--precisions", nargs="+", choices=("fp32", "fp16", "bf16"), default=["fp32"])
    found = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=("cpu", "cuda"), default=found)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the JSON object there, too")
    parser.add_argument("--judge", action="store_true", help="end with 1 if an aim was missed")
    return parser.parse_args()


def in_order(sides: Sequence[str]) -> list[str]:
    """The plain loop first, then the more of amptui the later."""
    return [PLAIN, *(side for side in BESIDE_PLAIN if side in sides)]


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
