"""The commands for runs that exist: list, show, play back, compare and export them."""

import argparse
import gc
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from amptui.base.errors import AmptuiError, UsageError
from amptui.base.prompt import complain, say
from amptui.command.parser import (
    RUN_HELP,
    add_shared,
    finite_float,
    path,
    positive_float,
    positive_int,
)
from amptui.recipe.request import PAGE_RUNS

if TYPE_CHECKING:
    from amptui.tui.opening import Opening
    from amptui.tui.run_list.frame import ListState
    from amptui.tui.run_list.screen import RunListScreen

_SIGNALLED = 128
"""An exit status above it means a signal, or a terminal that is gone: the list does not open again."""


def add_attach_options(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Show a live run. Leaving the screen does not stop it. HOST:RUN is a run on another machine that "
        "you reach with `ssh HOST`, HOST: its newest live run; $AMPTUI_REMOTE_COMMAND starts amptui there."
    )
    add_shared(parser, "run", help=RUN_HELP.format("the newest live run"))
    add_shared(parser, "--quiet")


def run_attach(options: argparse.Namespace) -> int:
    from amptui.process.launch import attach

    return attach(options.run, quiet=options.quiet)


def add_runs_options(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "List runs with their status and progress, newest first: as many as fit the terminal, or the newest "
        f"{PAGE_RUNS} in a pipe, a file or JSON. A last line, or standard error, says how many older runs "
        "there are."
    )
    how_many = parser.add_mutually_exclusive_group()
    how_many.add_argument("--limit", type=positive_int, metavar="N", help="list the newest N runs")
    how_many.add_argument(
        "--all", dest="limit", action="store_const", const=sys.maxsize, help="list all runs"
    )
    parser.add_argument("--json", action="store_true", help="write one JSON line for each run")


def run_runs(options: argparse.Namespace) -> int:
    from amptui.reports.runs_table import list_runs

    return list_runs(json=options.json, out=sys.stdout, limit=options.limit)


def browse_runs(run: Callable[[Sequence[str]], int]) -> int:
    """Show the list of runs until the user leaves it; return the exit status.

    ``run`` runs the command line of each choice; what error ends it stands below the list then. Call this
    where a screen can be shown.
    """
    from amptui.process.stop_signals import show
    from amptui.tui.panels.screen_state import ScreenState
    from amptui.tui.run_list.frame import ListState, draw

    before, message = ListState(entries=None), ""
    while True:
        first = partial(draw, state=ListState(entries=None), screen=ScreenState())
        listing, status = show(partial(_list_screen, before, message), first)
        if status or not listing.chosen:
            return status
        before, message = listing.list_state, ""
        try:
            status = run(listing.chosen)
        except AmptuiError as error:
            complain(str(error))
            status, message = error.exit_status, str(error)
        if status > _SIGNALLED or (listing.chosen[0] == "compare" and not message):
            return status  # also with a comparison, which the list would hide
        gc.collect()  # the last screen, before the next one freezes what it finds


def _list_screen(before: "ListState", message: str, opening: "Opening") -> "RunListScreen":
    from amptui.runs.find import listed_runs
    from amptui.tui.run_list.screen import RunListScreen

    return RunListScreen(listed_runs, opening, before=before, message=message)


def add_replay_options(parser: argparse.ArgumentParser) -> None:
    parser.description = "Play back a recorded run on the screen, without torch or a GPU."
    add_shared(parser, "run", "--trust")
    parser.add_argument(
        "--speed", type=positive_float, default=1.0, metavar="X", help="playback speed (default: 1)"
    )


def run_replay(options: argparse.Namespace) -> int:
    from amptui.process.viewer import replay
    from amptui.runs.find import find_run

    return replay(find_run(options.run, trust=options.trust), speed=options.speed)


def add_compare_options(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Compare runs: tables, and whether final losses differ by more than between seeds. Runs that differ "
        "only in the seed are one group."
    )
    add = parser.add_argument
    add(
        "runs",
        metavar="RUN",
        nargs="+",
        help="a run's folder, journal or name, or a model's name for its newest run; the first is the "
        "baseline",
    )
    add_shared(parser, "--trust")
    add("--target-loss", type=finite_float, metavar="X", help="show the training time to a loss of X")
    add_shared(parser, "--json", "--html")


def run_compare(options: argparse.Namespace) -> int:
    from amptui.reports.compare.command import compare

    return compare(
        options.runs,
        json=options.json,
        html=options.html,
        target_loss=options.target_loss,
        trust=options.trust,
    )


def add_export_options(parser: argparse.ArgumentParser) -> None:
    parser.description = "Export a run to one or more formats."
    add_shared(parser, "run", "--trust")
    parser.add_argument("--csv", type=path, metavar="FILE", help="a table of all steps")
    parser.add_argument("--tensorboard", type=path, metavar="DIR", help="event files for TensorBoard")
    parser.add_argument("--html", type=path, metavar="FILE", help="a self-contained page to share")


def run_export(options: argparse.Namespace) -> int:
    from amptui.reports.export.exporting import export
    from amptui.runs.find import find_run

    places = {"csv": options.csv, "tensorboard": options.tensorboard, "html": options.html}
    if not any(places.values()):
        raise UsageError("no export format given", hint="use --csv FILE, --tensorboard DIR or --html FILE")
    journal = find_run(options.run, trust=options.trust)
    exported = export(journal, **places)
    files = ", ".join(str(place) for place in places.values() if place is not None)
    say(f"{journal}: exported {exported.steps:,} steps to {files}")
    if exported.passed_over:
        complain(exported.passed_over)
    return 0


def add_relay_options(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Connect standard input and output to a live run. `amptui attach HOST:RUN` starts it on HOST."
    )
    parser.add_argument("run", metavar="RUN", nargs="?", default="", help="as for `amptui attach`")


def run_relay(options: argparse.Namespace) -> int:
    from amptui.runs.remote import relay

    return relay(options.run)
