"""The runs of another machine, as `amptui runs --json` lists them there."""

from dataclasses import dataclass
from pathlib import Path

from amptui.base import strictjson
from amptui.base.errors import RemoteError
from amptui.base.text import one_line, printable
from amptui.records.codec import Codec
from amptui.runs.kept_run import KeptRun
from amptui.runs.remote import Remote, Ssh

_MAX_OUTPUT_BYTES = 20_000 * 1024
"""Limit of what is read: 20,000 runs, the largest list that is promised. One has about 600 bytes."""

_OPENING = b'{"type": "Run"'
"""How the line of a run begins."""

_END = b'{"type": "End"'
"""How the line after the last run begins: without it amptui there did not run, or not to its end."""

_SAVED = ("amptui", "runs")
"""The end of the folder of saved runs, wherever a user's state is."""

_CODEC: Codec[KeptRun] = Codec(KeptRun)


@dataclass(frozen=True, slots=True)
class RemoteRuns:
    """The newest runs of another machine."""

    runs: list[KeptRun]
    """``is_here`` and ``folder`` are as seen from there."""
    older: str
    """HOST's own words on those that it leaves out, in one line; empty if there are none."""


def remote_runs(remote: Remote, limit: int | None = None, *, batch: bool = False) -> RemoteRuns:
    """The newest runs on HOST, at most ``limit``; without ``batch``, ssh may ask for a password.

    Raises ``RemoteError`` if HOST or amptui there cannot be reached, or is of a version that lists other
    facts, or if a start-up file of the shell there exits before amptui has run.
    """
    limits = [] if limit is None else ["--limit", str(limit)]
    with Ssh(remote, ["runs", "--json", "--end", *limits], batch=batch) as ssh:
        output = ssh.read_output(_MAX_OUTPUT_BYTES, hint="list fewer with `amptui runs HOST: --limit N`")
        said = ssh.last_error().removeprefix("amptui: ")
        if _END not in output:
            raise ssh.only_noise(output)
    runs: list[KeptRun] = []
    for line in output.splitlines():
        noise, opening, fields = line.partition(_OPENING)
        if not opening or (noise and runs):
            continue  # the shell's own
        try:
            runs.append(_CODEC.read(strictjson.parse(opening + fields)))
        except ValueError as error:
            what = f"{remote.host} lists its runs in a way that this amptui does not know"
            hint = "install the same version of amptui on both"
            raise RemoteError(f"{what} ({printable(one_line(str(error)))})", hint=hint) from error
    return RemoteRuns(runs, said if " older run" in said else "")


def remote_argument(folder: Path) -> str:
    """What `amptui attach HOST:RUN` there calls the run in ``folder``: a saved run by its name."""
    return folder.name if folder.parts[-3:-1] == _SAVED else str(folder)
