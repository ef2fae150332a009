"""Where a rank runs, as the ranks tell each other."""

import os
import socket
from dataclasses import dataclass
from pathlib import Path

import torch

from amptui.engine.distributed.world import World
from amptui.errors import DeviceError
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

    @classmethod
    def of_process(cls, host: str, pid: int) -> "Place":
        """A process of which no more is known."""
        return cls(host=host, pid=pid, device="", device_name="", gpu_uuid=None, memory_total_bytes=None)

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


def device_of(world: World, wanted: str) -> str:
    """The GPU of this rank's number on its machine, or the CPU; ``wanted`` is "cpu", "cuda" or "auto".

    Raises DeviceError if there is no GPU of that number.
    """
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return "cpu"
    count, local = torch.cuda.device_count(), world.local_rank
    if count == 1 and world.launcher != "torchrun":
        return "cuda:0"  # srun and mpirun may show each task the GPU that it is given
    if 0 < count <= local:
        what = f"each rank needs a GPU of its own: this machine has {count:,}"
        raise DeviceError(what, hint=f"start {count:,} ranks here, or use --device cpu")
    return f"cuda:{local}"


def is_alive(pid: int) -> bool:
    """Whether a process of this machine runs; a dead one that nobody has waited for does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"
