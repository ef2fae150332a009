"""Compares runs."""

import argparse

from amptui.command.option_values import finite_float, path
from amptui.command.parser import add_trust


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Compare finished or running runs on one screen. Runs that differ only in the seed are one group. "
        "Without a terminal, write tables."
    )
    add = parser.add_argument
    add(
        "runs",
        metavar="RUN",
        nargs="+",
        help="a run's folder, journal or name, or a model's name for its newest run; the first is the "
        "baseline",
    )
    add_trust(parser)
    add("--target-loss", type=finite_float, metavar="X", help="show the training time to a loss of X")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--plain", action="store_true", help="write tables instead of showing the screen")
    how.add_argument("--json", action="store_true", help="write one JSON object to standard output")
    add("--html", type=path, metavar="FILE", help="write a self-contained page to share")


def run(options: argparse.Namespace) -> int:
    from amptui.reports.compare import compare

    return compare(
        options.runs,
        plain=options.plain,
        json=options.json,
        html=options.html,
        target_loss=options.target_loss,
        trust=options.trust,
    )
