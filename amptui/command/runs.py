"""Lists runs."""

import argparse
import sys

from amptui.command.option_values import positive_int
from amptui.recipe.request import PAGE_RUNS


def add_options(parser: argparse.ArgumentParser) -> None:
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


def run(options: argparse.Namespace) -> int:
    from amptui.reports.runs_table import list_runs

    return list_runs(json=options.json, out=sys.stdout, limit=options.limit)
