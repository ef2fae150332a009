"""Checks what this machine can do."""

import argparse


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Check what this machine can do. Each problem is listed with its fix. "
        "The exit status is 1 if training cannot run."
    )
    parser.add_argument("--json", action="store_true", help="write every check as one JSON line")


def run(options: argparse.Namespace) -> int:
    from amptui.reports.doctor import doctor

    return doctor(json=options.json)
