"""What hinders a rank that writes its part of a checkpoint."""

import os
import resource
import signal
from collections.abc import Sequence
from pathlib import Path

from amptui.engine.checkpoint.shards import Part, ShardFile, write_part
from amptui.ranks.parallel import sharded_checkpoints


def fill_disk() -> None:
    """Let this process write no file of more than a kilobyte."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def empty_disk() -> None:
    """Let it write again."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


def die_at_second_part() -> None:
    """Kill this process when it has written half of its part of the second checkpoint."""
    written: list[ShardFile] = []

    def write_half(folder: Path, rank: int, parts: Sequence[Part]) -> ShardFile:
        written.append(write_part(folder, rank, parts[: len(parts) // 2] if written else parts))
        if len(written) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return written[0]

    sharded_checkpoints.write_part = write_half  # type: ignore[attr-defined]
