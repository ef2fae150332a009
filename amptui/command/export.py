"""Exports a run."""

import argparse

from amptui.base.errors import UsageError
from amptui.base.prompt import complain, say
from amptui.command.option_values import path
from amptui.command.parser import add_run, add_trust


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = "Export a run to one or more formats."
    add_run(parser)
    add_trust(parser)
    parser.add_argument(
        "--csv",
        type=path,
        metavar="FILE",
        help="a table of all steps, and a second one of the ranks",
    )
    parser.add_argument("--tensorboard", type=path, metavar="DIR", help="event files for TensorBoard")
    parser.add_argument("--html", type=path, metavar="FILE", help="a self-contained page to share")


def run(options: argparse.Namespace) -> int:
    from amptui.reports.export import export
    from amptui.runs.find import find_run

    places = {"csv": options.csv, "tensorboard": options.tensorboard, "html": options.html}
    if not any(places.values()):
        raise UsageError("no export format given", hint="use --csv FILE, --tensorboard DIR or --html FILE")
    journal = find_run(options.run, trust=options.trust)
    exported = export(journal, **places)
    files = ", ".join(str(place) for place in (*places.values(), exported.ranks_csv) if place is not None)
    say(f"{journal}: exported {exported.steps:,} steps to {files}")
    if exported.passed_over:
        complain(exported.passed_over)
    return 0
