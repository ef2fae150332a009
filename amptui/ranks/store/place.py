"""Where a rank runs, as the ranks tell each other, and whether its process is still there."""

import os
import signal
import socket
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from amptui.base.errors import DeviceError
from amptui.device.accelerator import default_device, device_count, properties
from amptui.ranks.world import World
from amptui.records.ranks import RankPlace


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a rank runs."""

    host: str
    pid: int
    device: str
    device_name: str
    gpu_uuid: str | None
    memory_total_bytes: int | None
    machine: str = ""
    """What its process number belongs to, see :func:`here`."""
    started_ticks: int = 0
    """When its process began, in clock ticks since the boot: another process of its number began later."""

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

    @property
    def is_gone(self) -> bool:
        """Whether its process has ended; False if this one cannot know that."""
        return self.machine == here() != "" and started_ticks(self.pid) != self.started_ticks

    def kill(self) -> None:
        """Kill its process, if this one can and no other has its number by now."""
        if self.machine == here() != "" and started_ticks(self.pid) == self.started_ticks and self.pid > 0:
            with suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)


def place_of(device: torch.device, device_name: str, gpu_uuid: str | None) -> Place:
    """Where this process runs."""
    return Place(
        host=socket.gethostname(),
        pid=os.getpid(),
        device=str(device),
        device_name=device_name,
        gpu_uuid=gpu_uuid,
        memory_total_bytes=properties(device).memory_bytes,
        machine=here(),
        started_ticks=started_ticks(os.getpid()) or 0,
    )


def device_of(world: World, name: str) -> str:
    """The GPU of this rank's number on its machine, or the CPU; ``name`` is "auto" or a type of device.

    Raises DeviceError if there is no GPU of that number.
    """
    kind = default_device().type if name == "auto" else name.partition(":")[0]
    if kind == "mps":  # no backend of torch.distributed moves its tensors
        if name == "auto":
            return "cpu"
        raise DeviceError("ranks cannot train together on MPS", hint="start one process, or use --device cpu")
    if kind == "cpu":
        return "cpu"
    count, local = device_count(kind), world.local_rank
    if count == 1 and world.launcher != "torchrun":
        return f"{kind}:0"  # srun and mpirun may show each task the GPU that it is given
    if 0 < count <= local:
        what = f"each rank needs a GPU of its own: this machine has {count:,}"
        raise DeviceError(what, hint=f"start {count:,} ranks here, or use --device cpu")
    return f"{kind}:{local}"


@cache
def here() -> str:
    """What this process's number belongs to; "" if the system does not say.

    A boot and a PID namespace: two containers on one machine number their processes from 1 each. Nor does it
    say if ``/proc`` is that of another namespace.
    """
    try:
        if Path("/proc/self").readlink().name != str(os.getpid()):
            return ""
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot_id}/{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return ""


def started_ticks(pid: int) -> int | None:
    """When the process ``pid`` began (proc(5), field 22 of ``stat``); None if it has ended.

    A dead one that nobody has waited for has ended.
    """
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = status.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])
