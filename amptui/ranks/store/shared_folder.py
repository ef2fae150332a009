"""Finds out before the first step whether all ranks see the run's folder: a machine may have its own."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from amptui.base.errors import RunFolderError
from amptui.base.runfiles import open_file
from amptui.ranks.group import RankGroup

_PATIENCE_SECONDS = 5.0
"""A file of another machine may take a moment to be seen: NFS keeps what a folder held for seconds."""

_LOOK_SECONDS = 0.25

_SIGN = "folder"


def check_folder(group: RankGroup, run_dir: Path, *, all_write: bool, warn: Callable[[str], object]) -> None:
    """Let rank 0 put a file into ``run_dir`` and the others look for it.

    If one does not see it, ``warn``; raises RunFolderError where ``all_write`` there.
    """
    sign = _put_sign(run_dir) if group.world.leads else None
    if group.world.leads:
        group.tell(_SIGN, "" if sign is None else sign.name)
    sees = _sees(run_dir, group.hear(_SIGN))
    blind = [rank for rank, seen in enumerate(group.gather(sees)) if not seen]
    if sign is not None:
        sign.unlink(missing_ok=True)
    if not blind:
        return
    who = f"rank {blind[0]}" + (f" and {len(blind) - 1:,} more ranks" if len(blind) > 1 else "")
    what = f"{who}, on {group.places[blind[0]].host}, {'do' if len(blind) > 1 else 'does'} not see {run_dir}"
    hint = "use a folder that all machines share (--run-dir)"
    if all_write:
        raise RunFolderError(f"{what}: with --fsdp each writes its part of a checkpoint there", hint=hint)
    warn(f"{what}: only a run whose ranks all see it can be resumed or started again; {hint}")


def _put_sign(run_dir: Path) -> Path | None:
    """A file that no other machine has; None where it cannot be written, which is told elsewhere."""
    sign = run_dir / f".ranks-{os.urandom(8).hex()}"
    with suppress(OSError):
        os.close(open_file(sign, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        return sign
    return None


def _sees(run_dir: Path, name: str) -> bool:
    limit = time.monotonic() + _PATIENCE_SECONDS
    while name and not (run_dir / name).exists():
        if time.monotonic() > limit:
            return False
        time.sleep(_LOOK_SECONDS)
    return True
