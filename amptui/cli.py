"""The command line: the table of commands, and how each ends.

Heavy imports (torch, textual) happen inside functions: the screen opens before torch is imported.
"""

import argparse
import sys
from collections.abc import Callable, Sequence

from amptui.base.errors import AmptuiError
from amptui.base.prompt import complain, put, replace_closed_streams
from amptui.base.terminal import can_show_a_screen
from amptui.base.version import __version__
from amptui.command import measure, runs, train
from amptui.command.parser import Parser

_Command = tuple[str, Callable[[argparse.ArgumentParser], None], Callable[[argparse.Namespace], int]]
"""What the help says of it; what adds its options; what runs it and returns the exit status."""

COMMANDS: dict[str, _Command] = {
    "train": ("train a model and watch it", train.add_train_options, train.run_train),
    "run": ("run a script of yours and watch its training", train.add_run_options, train.run_run),
    "attach": ("watch a live run from any terminal", runs.add_attach_options, runs.run_attach),
    "runs": ("list runs and their status", runs.add_runs_options, runs.run_runs),
    "advise": (
        "recommend a precision for a model or a script",
        measure.add_advise_options,
        measure.run_advise,
    ),
    "bench": ("benchmark a model in every precision", measure.add_bench_options, measure.run_bench),
    "replay": ("play back a recorded run", runs.add_replay_options, runs.run_replay),
    "compare": (
        "compare runs: figures, final losses",
        runs.add_compare_options,
        runs.run_compare,
    ),
    "export": ("export a run to CSV, TensorBoard or HTML", runs.add_export_options, runs.run_export),
    "doctor": ("check what this machine can do", measure.add_doctor_options, measure.run_doctor),
    "models": ("list the built-in models", lambda _parser: None, measure.run_models),
}

HIDDEN_COMMANDS: dict[str, _Command] = {"relay": ("", runs.add_relay_options, runs.run_relay)}
"""What amptui starts itself, on another machine."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status. Without a command, show the list of runs or the help.

    0 done or stopped by the user, 1 failed, 2 usage error, 3 done without all records or checkpoints, 130
    Ctrl+C, 128 + the signal number for a signal.
    """
    replace_closed_streams()
    try:
        return _run(arguments)
    except AmptuiError as error:
        complain(str(error))
        return error.exit_status
    except KeyboardInterrupt:
        return 130


def _run(arguments: Sequence[str] | None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = build_parser(arguments[:1])
    options = parser.parse_args(arguments)
    if options.command is not None:
        run = (COMMANDS | HIDDEN_COMMANDS)[options.command][2]
        return run(options)
    if not can_show_a_screen():
        put(parser.format_help())
        return 0
    return runs.browse_runs(_run)


def build_parser(first: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The commands and their options; a hidden one only if it is ``first``: no error lists it."""
    parser = Parser(
        prog="amptui",
        description="Watch and understand mixed-precision training. Without COMMAND, list runs.",
        epilog="Exit status: 0 done, stopped or detached; 1 failed; 2 usage error; 3 done or stopped, but "
        "some records or checkpoints were not saved; 129 terminal closed (the run continues); 130 Ctrl+C; "
        "143 SIGTERM; 128 + N for any other signal N.",
    )
    parser.add_argument("--version", action="version", version=f"amptui {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, (words, add_options, _) in COMMANDS.items():
        add_options(commands.add_parser(name, help=words))
    for name in HIDDEN_COMMANDS.keys() & set(first):
        HIDDEN_COMMANDS[name][1](commands.add_parser(name))
    return parser
