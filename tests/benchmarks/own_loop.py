"""What amptui costs and changes in a script of somebody else's: one table.

    python -m tests.benchmarks.own_loop [--rounds N] [--steps N] [--json FILE]

Each figure is measured for every form of watching in :data:`FORMS`, in fresh processes that take turns with
the bare script (A B B A). Step rates say something only on a machine that does nothing else.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from amptui.estimate import t_975
from tests.benchmarks.figures import Figure, mean_interval, mean_ratio, rounded, table
from tests.benchmarks.lab import Lab, last_line, open_lab
from tests.observed import FAULTS

LOOPS = {"2 ms": (192, 0.985), "10 ms": (640, 0.995)}
"""Width of a loop's two layers, by about how long a step takes on one core, and the least step rate."""

LONGEST_SECONDS = 3600.0

MIN_PAIRS = 5

MAX_SPREAD = 1.1
"""Of the bare script's own step times, slowest over fastest: beyond it a rate says nothing."""


@dataclass(frozen=True, slots=True)
class Form:
    """One way to watch a script: how it is started, and what it calls."""

    name: str
    start: tuple[str, ...]
    """After Python's name, before the script's ``-m``."""
    call: str
    """The script's ``--form``."""


BARE = Form("bare", (), "bare")

FORMS = (
    Form("observe()", (), "observe"),
    Form("watch()", (), "watch"),
    Form("run --observe", ("-m", "amptui", "run", "--observe", "--headless"), "bare"),
)


def run(lab: Lab, form: Form, *options: str, simulated: bool = False) -> dict[str, Any]:
    """Run the script once and return what it printed; raises RuntimeError if it failed."""
    script = ("-m", "tests.benchmarks.own_script", "--form", form.call, *options)
    command = [sys.executable, *form.start, *script]
    if simulated:
        command = [sys.executable, "-m", "tests.simcuda", *command]
    done = lab.run(command, {"XDG_STATE_HOME": str(lab.folder), "OMP_NUM_THREADS": "1"})
    found: dict[str, Any] = json.loads(last_line(done)) | {"told": done.stderr.count("on purpose")}
    return found


def step_rates(lab: Lab, form: Form, rounds: int, steps: int) -> Iterator[Figure]:
    """The step rate of the watched script as a part of the bare one's, for each loop."""
    for name, (width, aim) in LOOPS.items():
        both: dict[str, list[dict[str, Any]]] = {BARE.name: [], form.name: []}
        for number in range(rounds):
            for each in (BARE, form) if number % 2 == 0 else (form, BARE):
                both[each.name].append(run(lab, each, "--width", str(width), "--steps", str(steps)))
        pairs = list(zip(both[BARE.name], both[form.name], strict=True))
        rates = [bare["seconds"] / ours["seconds"] for bare, ours in pairs]
        alone = [bare["seconds"] for bare, _ in pairs]
        yield Figure(
            name=f"step rate, {name} loop, {form.name}",
            value=mean_ratio(rates),
            unit="fraction",
            aim=aim,
            more_is_better=True,
            interval=mean_interval(rates),
            caveat=caveat(alone),
            detail={"step_seconds": rounded(alone)},
        )
        extra = [ours["thread_seconds"] - bare["thread_seconds"] for bare, ours in pairs]
        yield Figure(
            name=f"training thread's processor time added to a step, {name} loop, {form.name}",
            value=float(np.mean(extra)),
            unit="seconds",
            interval=_interval(extra),
            caveat=caveat(alone),
        )


def _interval(differences: Sequence[float]) -> tuple[float, float] | None:
    """95% interval of the mean by Student's t; None with too few pairs."""
    if len(differences) < MIN_PAIRS:
        return None
    reach = t_975(len(differences) - 1) * np.std(differences, ddof=1) / np.sqrt(len(differences))
    return float(np.mean(differences) - reach), float(np.mean(differences) + reach)


def caveat(alone: Sequence[float]) -> str:
    """Why step times say nothing, given the bare script's own (seconds); empty if they do."""
    if len(alone) < MIN_PAIRS:
        return f"{len(alone)} of {MIN_PAIRS} pairs"
    spread = max(alone) / min(alone)
    return f"not a quiet machine: the bare script alone varies {spread:.2f}x" if spread > MAX_SPREAD else ""


def bits(lab: Lab, form: Form) -> Figure:
    """Trainings of 200 steps, one in each precision, that end in other bits than the bare script's."""
    precisions = ("fp32", "bf16", "fp16")
    differing = []
    for precision in precisions:
        ours, bare = (run(lab, each, "--precision", precision)["state"] for each in (form, BARE))
        differing += [precision] if ours != bare else []
    return Figure(
        name=f"trainings with other bits, of {len(precisions)}, {form.name}",
        value=len(differing),
        unit="number",
        aim=0,
        detail={"differing": differing},
    )


def waits(lab: Lab, form: Form) -> Figure:
    """Waits of the host that watching adds to 180 fused fp16 steps, on the pretended GPU."""
    ours, bare = (run(lab, each, "--precision", "fp16", simulated=True)["waits"] for each in (form, BARE))
    return Figure(name=f"host waits added, {form.name}", value=ours - bare, unit="number", aim=0)


def faults(lab: Lab, form: Form) -> Figure:
    """Faults of amptui's, one in each hook, that cost the script a bit or are not told in one line."""
    bare = run(lab, BARE, "--precision", "fp16")["state"]
    harmful = []
    for fault in FAULTS:
        found = run(lab, form, "--precision", "fp16", "--fault", fault)
        if (found["state"], found["told"]) != (bare, 1):
            harmful.append(fault)
    return Figure(
        name=f"faults that do harm, of {len(FAULTS)}, {form.name}",
        value=len(harmful),
        unit="number",
        aim=0,
        detail={"harmful": harmful},
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; the exit status is 1 if an aim was surely missed."""
    parser = argparse.ArgumentParser(description="Measure what watching costs a script.")
    parser.add_argument("--rounds", type=int, default=6, help="pairs of processes for a step rate")
    parser.add_argument("--steps", type=int, default=600, help="steps of each process")
    parser.add_argument("--json", type=Path, help="also write the figures there")
    options = parser.parse_args(arguments)
    found: list[Figure] = []
    with open_lab(LONGEST_SECONDS) as lab:
        measures: tuple[Callable[[Form], list[Figure]], ...] = (
            lambda form: list(step_rates(lab, form, options.rounds, options.steps)),
            lambda form: [bits(lab, form)],
            lambda form: [waits(lab, form)],
            lambda form: [faults(lab, form)],
        )
        for measure in measures:
            for form in FORMS:
                found += measure(form)
                print(found[-1].name, file=sys.stderr, flush=True)
    print(table(found))
    if options.json:
        options.json.write_text(json.dumps([figure.as_json() for figure in found], indent=2))
    return 1 if any(figure.met is False and figure.is_sure for figure in found) else 0


if __name__ == "__main__":
    sys.exit(main())
