"""Runs a script of the user's and shows its training."""

import argparse

from amptui.base.terminal import can_show_a_screen
from amptui.command.option_values import path
from amptui.command.parser import add_fps, add_notify, add_quiet, hand_over_webhook


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.usage = "amptui run [options] (SCRIPT | -m MODULE) [ARGUMENT ...]"
    parser.description = (
        "Run a Python script in a new process and show its training: a script that calls amptui.watch() or "
        "amptui.observe(), or with --observe any script that trains with torch.optim. Without a terminal, "
        "the script's output passes through."
    )
    parser.epilog = (
        "The exit status is the script's, unless you close the screen before the script ends. It is 3 if the "
        "script's is 0 but records could not be saved."
    )
    add = parser.add_argument
    add("-m", dest="module", action="store_true", help="run a module, as `python -m MODULE` does")
    add("--observe", action="store_true", help="observe a script that does not call amptui")
    add("--run-dir", type=path, metavar="DIR", help="folder of this run (default: a new one)")
    add("--headless", action="store_true", help="pass the script through instead of showing the screen")
    add_quiet(add)
    add_notify(add)
    add_fps(add)
    add("script", metavar="SCRIPT", help="the script's file, or torchrun; with -m, a module")
    rest = add("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENT", help="the script's own arguments")
    rest.required = False  # argparse says of a missing SCRIPT that both are required


def run(options: argparse.Namespace) -> int:
    from amptui.guest.run_script import run_script

    hand_over_webhook(options.notify)
    return run_script(
        [*(["-m"] if options.module else []), options.script, *options.arguments],
        run_dir=options.run_dir,
        observe=options.observe,
        screen=not options.headless and can_show_a_screen(),
        frames_per_second=options.fps,
        quiet=options.quiet,
    )
