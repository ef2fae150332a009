"""Plays back a recorded run."""

import argparse

from amptui.command.option_values import positive_float
from amptui.command.parser import add_run, add_trust


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = "Play back a recorded run on the screen, without torch or a GPU."
    add_run(parser)
    add_trust(parser)
    parser.add_argument(
        "--speed", type=positive_float, default=1.0, metavar="X", help="playback speed (default: 1)"
    )


def run(options: argparse.Namespace) -> int:
    from amptui.process.replay import replay
    from amptui.runs.find import find_run

    return replay(find_run(options.run, trust=options.trust), speed=options.speed)
