"""Where a rank runs, as the ranks tell each other."""

import os
import socket
from dataclasses import dataclass
from pathlib import Path

import torch

from amptui.ranks import RankPlace


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a rank runs."""

    host: str
    pid: int
    device: str
    device_name: str
    gpu_uuid: str | None
    memory_total_bytes: int | None

    def of_rank(self, rank: int) -> RankPlace:
        """The same as a record tells it."""
        return RankPlace(
            rank=rank,
            host=self.host,
            device=self.device,
            device_name=self.device_name,
            gpu_uuid=self.gpu_uuid,
            memory_total_bytes=self.memory_total_bytes,
        )


def place_of(device: torch.device, device_name: str, gpu_uuid: str | None) -> Place:
    """Where this process runs."""
    total = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else None
    return Place(
        host=socket.gethostname(),
        pid=os.getpid(),
        device=str(device),
        device_name=device_name,
        gpu_uuid=gpu_uuid,
        memory_total_bytes=total,
    )


def is_alive(pid: int) -> bool:
    """Whether a process of this machine runs; a dead one that nobody has waited for does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"
