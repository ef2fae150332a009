"""How many files a rank may have open: torch connects each to all others, and a shell allows 1,024."""

import resource

from amptui.base.errors import DeviceError

_CONNECTIONS = 2
"""Of each rank to each other one: gloo keeps one for torch's default group, and one for ours."""

_OWN = 256
"""What a process has open besides: files, sockets, workers, CUDA."""


def needed_descriptors(ranks: int, *, keeps_store: bool) -> int:
    """How many a rank of so many needs; one that ``keeps_store`` also has two connections of each rank."""
    return _OWN + (_CONNECTIONS + 2 * keeps_store) * ranks


def make_room(ranks: int, *, keeps_store: bool) -> None:
    """Raise this process's soft limit of open files, if so many ``ranks`` need more.

    Raises DeviceError if the hard limit is lower: gloo would fail in the middle of connecting.
    """
    needed = needed_descriptors(ranks, keeps_store=keeps_store)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        what = f"{ranks:,} ranks need {needed:,} open files in each process, and the limit is {hard:,}"
        raise DeviceError(what, hint="raise it (ulimit -Hn, LimitNOFILE)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
