"""Connects a run to a screen on another machine: what `amptui attach HOST:RUN` starts on HOST."""

import argparse


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Connect standard input and output to a live run. `amptui attach HOST:RUN` starts it on HOST."
    )
    parser.add_argument("run", metavar="RUN", nargs="?", default="", help="as for `amptui attach`")


def run(options: argparse.Namespace) -> int:
    from amptui.runs.relay import relay

    return relay(options.run)
