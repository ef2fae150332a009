"""Lists runs."""

import argparse
import sys

from amptui.command.option_values import positive_int
from amptui.command.parser import add_remote_command
from amptui.recipe.request import PAGE_RUNS


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "List runs with their status and progress, newest first: as many as fit the terminal, or the newest "
        f"{PAGE_RUNS} in a pipe, a file or JSON. A last line, or standard error, says how many older runs "
        "there are. HOST: lists those of another machine that you reach with `ssh HOST`."
    )
    parser.add_argument("machine", metavar="HOST:", nargs="?", help="another machine (default: this one)")
    how_many = parser.add_mutually_exclusive_group()
    how_many.add_argument("--limit", type=positive_int, metavar="N", help="list the newest N runs")
    how_many.add_argument(
        "--all", dest="limit", action="store_const", const=sys.maxsize, help="list all runs"
    )
    add_remote_command(parser.add_argument)
    parser.add_argument("--json", action="store_true", help="write one JSON line for each run")
    # For `amptui runs HOST:`, which starts this command there: nobody else needs it.
    parser.add_argument("--end", action="store_true", help=argparse.SUPPRESS)


def run(options: argparse.Namespace) -> int:
    from amptui.reports.runs_table import list_remote_runs, list_runs

    if options.machine is not None:
        from amptui.runs.remote import host_of

        remote = host_of(options.machine, options.remote_command)
        return list_remote_runs(remote, json=options.json, out=sys.stdout, limit=options.limit)
    return list_runs(json=options.json, out=sys.stdout, limit=options.limit, with_end=options.end)
