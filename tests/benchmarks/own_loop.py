"""What amptui costs in a script of somebody else's: one table.

    python -m tests.benchmarks.own_loop [--restarts N] [--pairs N] [--form FORM] [--json FILE]

Each figure is measured for every form of watching in :data:`FORMS`. For a step rate the watched and the bare
script take turns of some 0.4 s, so that what drifts falls on both; two processes of the same program differ
for as long as they live, so both are started anew several times. Step rates say something only on a machine
that does nothing else.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np

from tests.benchmarks.figures import Figure, interval_of_mean, mean_interval, mean_ratio, rounded, table
from tests.benchmarks.lab import Lab, open_lab

LOOPS = ((32, 600, None), (160, 400, None), (384, 200, 0.985), (960, 40, 0.995))
"""The width of a loop's layers, the steps of a turn, and the aim of the step rate. A step of the bare loop
takes some 0.2, 0.6, 2 and 12 ms on one core of an EPYC server: the table has what was measured."""

LONGEST_SECONDS = 3600.0

MIN_PAIRS = 5


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


def command_of(form: Form, *options: str) -> list[str]:
    """The script, watched in that form."""
    script = ("-m", "tests.benchmarks.own_script", "--form", form.call, *options)
    return [sys.executable, *form.start, *script]


def step_rates(lab: Lab, form: Form, restarts: int, pairs: int) -> Iterator[Figure]:
    """The step rate of the watched script as a part of the bare one's, for each loop."""
    for width, steps, aim in LOOPS:
        runs = [_side_by_side(lab, form, pairs, width, steps) for _ in range(restarts)]
        # By the mean, which is what a user loses: looks and other threads take their time from few steps.
        alone = [fmean(bare["seconds"] for bare, _ in turns) for turns in runs]
        watched = [fmean(ours["seconds"] for _, ours in turns) for turns in runs]
        rates = [bare / ours for bare, ours in zip(alone, watched, strict=True)]
        size = f"{1000 * fmean(alone):.2g} ms loop"
        caveat = f"{restarts} of {MIN_PAIRS} restarts" if restarts < MIN_PAIRS else ""
        yield Figure(
            name=f"step rate, {size}, {form.name}",
            value=mean_ratio(rates),
            unit="fraction",
            aim=aim,
            more_is_better=True,
            interval=mean_interval(rates),
            caveat=caveat,
            detail={"step_seconds": rounded(alone), "rates": rounded(rates)},
        )
        extra = [
            fmean(ours["thread_seconds"] - bare["thread_seconds"] for bare, ours in turns) for turns in runs
        ]
        yield Figure(
            name=f"training thread's processor time added to a step, {size}, {form.name}",
            value=float(np.mean(extra)),
            unit="seconds",
            interval=interval_of_mean(extra),
            caveat=caveat,
        )


def _side_by_side(
    lab: Lab, form: Form, pairs: int, width: int, steps: int
) -> list[tuple[dict[str, float], dict[str, float]]]:
    """Turns of the bare and the watched script, A B B A, in two processes of which one waits at any time."""
    options = ("--width", str(width), "--steps", str(steps))
    environment = {"XDG_STATE_HOME": str(lab.folder), "OMP_NUM_THREADS": "1"}
    found = []
    with (
        lab.talk(command_of(BARE, *options), environment) as bare,
        lab.talk(command_of(form, *options), environment) as ours,
    ):
        ours()  # its samplers begin, and the search for the scale ends
        for number in range(pairs):
            turns = {each: json.loads(each()) for each in ((bare, ours) if number % 2 == 0 else (ours, bare))}
            found.append((turns[bare], turns[ours]))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; the exit status is 1 if an aim was surely missed."""
    parser = argparse.ArgumentParser(description="Measure what watching costs a script.")
    parser.add_argument("--restarts", type=int, default=8, help="pairs of processes for a step rate")
    parser.add_argument("--pairs", type=int, default=12, help="pairs of turns of each")
    parser.add_argument("--form", choices=[form.name for form in FORMS], help="only this one")
    parser.add_argument("--json", type=Path, help="also write the figures there")
    options = parser.parse_args(arguments)
    found: list[Figure] = []
    with open_lab(LONGEST_SECONDS) as lab:
        for form in [form for form in FORMS if options.form in (None, form.name)]:
            found += step_rates(lab, form, options.restarts, options.pairs)
            print(form.name, file=sys.stderr, flush=True)
    print(table(found))
    if options.json:
        options.json.write_text(json.dumps([figure.as_json() for figure in found], indent=2))
    return 1 if any(figure.met is False and figure.is_sure for figure in found) else 0


if __name__ == "__main__":
    sys.exit(main())
