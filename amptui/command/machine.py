"""Lists the runs of another machine: what `amptui HOST:` does."""

import sys
from collections.abc import Sequence

from amptui.base.terminal import can_show_a_screen
from amptui.command.parser import Parser, add_remote_command


def run(arguments: Sequence[str]) -> int:
    """Show the runs of the machine that ``HOST:`` names; print them without a terminal."""
    parser = Parser(prog="amptui", description="List the runs of HOST, which you reach with `ssh HOST`.")
    parser.add_argument("host", metavar="HOST:", help="a machine, with its colon")
    add_remote_command(parser.add_argument)
    options = parser.parse_args(arguments)
    from amptui.runs.remote import host_of

    remote = host_of(options.host, options.remote_command)
    if can_show_a_screen():
        from amptui.command.run_list import browse_runs

        return browse_runs(_open, remote)
    from amptui.reports.runs_table import list_remote_runs

    return list_remote_runs(remote, json=False, out=sys.stdout)


def _open(arguments: Sequence[str]) -> int:
    """Attach to a run of the list."""
    from amptui.command import attach

    parser = Parser(prog="amptui attach")
    attach.add_options(parser)
    return attach.run(parser.parse_args(arguments[1:]))
