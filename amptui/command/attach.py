"""Shows a live run, of this machine or of another."""

import argparse

from amptui.base.webhook import parse_webhook
from amptui.command.parser import add_fps, add_notify, add_quiet, add_remote_command, add_run


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Show a live run. Leaving the screen does not stop it. HOST:RUN is a run on another machine that "
        "you reach with `ssh HOST`, HOST: its newest live run. If the connection is lost, amptui reconnects."
    )
    add_run(parser, default="the newest live run")
    add_remote_command(parser.add_argument)
    add_quiet(parser.add_argument)
    add_notify(parser.add_argument)
    add_fps(parser.add_argument)


def run(options: argparse.Namespace) -> int:
    from amptui.process.launch import attach

    # Not that of AMPTUI_NOTIFY, which the run itself uses: each news would come twice.
    webhook = parse_webhook(options.notify) if options.notify else None
    return attach(
        options.run,
        frames_per_second=options.fps,
        quiet=options.quiet,
        webhook=webhook,
        remote_command=options.remote_command,
    )
