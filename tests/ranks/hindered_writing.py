"""What hinders a rank that writes its part of a checkpoint, and what counts the collectives it begins."""

import os
import resource
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from amptui.engine.checkpoint.shards import Part, ShardFile, write_part
from amptui.ranks.parallel import sharded_checkpoints

COUNTED: dict[str, list[int]] = {}
"""How many collectives began in each call of a function."""


class Collectives(TorchDispatchMode):
    """Counts the operations of all ranks that begin inside."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(each, DTensor) for each in types):
            return NotImplemented  # its own operations come here
        self.count += "c10d" in func.namespace
        return func(*args, **(kwargs or {}))


def count_collectives(owner: type[Any], name: str) -> None:
    """Count those of each call of a method, in ``COUNTED``."""
    called = getattr(owner, name)

    def counting(*given: Any) -> Any:
        with Collectives() as collectives:
            result = called(*given)
        COUNTED.setdefault(name, []).append(collectives.count)
        return result

    setattr(owner, name, counting)


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
