"""Shows a live run."""

import argparse

from amptui.base.webhook import parse_webhook
from amptui.command.parser import add_fps, add_notify, add_quiet, add_run


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = "Show a live run. Leaving the screen does not stop it."
    add_run(parser, default="the newest live run")
    add_quiet(parser.add_argument)
    add_notify(parser.add_argument)
    add_fps(parser.add_argument)


def run(options: argparse.Namespace) -> int:
    from amptui.process.launch import attach

    # Not that of AMPTUI_NOTIFY, which the run itself uses: each news would come twice.
    webhook = parse_webhook(options.notify) if options.notify else None
    return attach(options.run, frames_per_second=options.fps, quiet=options.quiet, webhook=webhook)
