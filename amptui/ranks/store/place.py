"""Where a rank runs, as the ranks tell each other, and whether its process is still there."""

import os
import signal
import socket
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch

from amptui.base.errors import DeviceError
from amptui.device.accelerator import default_device, device_count, properties
from amptui.ranks.world import World
from amptui.records.ranks import RankPlace


class Machine(NamedTuple):
    """What a process number belongs to: two containers on one machine number theirs from 1 each."""

    boot_id: str
    pid_namespace: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a rank runs."""

    host: str
    pid: int
    device: str
    device_name: str
    gpu_uuid: str | None
    memory_total_bytes: int | None
    boot_id: str = ""
    pid_namespace: int = 0
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

    def is_near(self, machine: Machine | None) -> bool:
        """Whether its process number means the same process on ``machine``."""
        return machine is not None and (self.boot_id, self.pid_namespace) == machine

    def is_gone(self, machine: Machine | None) -> bool:
        """Whether its process has ended, as one on ``machine`` sees it; False if that cannot be known."""
        return self.is_near(machine) and started_ticks(self.pid) != self.started_ticks

    def kill(self, machine: Machine | None) -> None:
        """Kill its process, if it is on ``machine`` and no other has its number by now."""
        if self.is_near(machine) and started_ticks(self.pid) == self.started_ticks and self.pid > 0:
            with suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)


def place_of(device: torch.device, device_name: str, gpu_uuid: str | None) -> Place:
    """Where this process runs."""
    machine = here()
    return Place(
        host=socket.gethostname(),
        pid=os.getpid(),
        device=str(device),
        device_name=device_name,
        gpu_uuid=gpu_uuid,
        memory_total_bytes=properties(device).memory_bytes,
        boot_id=machine.boot_id if machine is not None else "",
        pid_namespace=machine.pid_namespace if machine is not None else 0,
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
def here() -> Machine | None:
    """Where this process runs; None if the system does not say.

    Nor does it if ``/proc`` is that of another PID namespace, whose numbers mean other processes.
    """
    try:
        if Path("/proc/self").readlink().name != str(os.getpid()):
            return None
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return Machine(boot_id, Path("/proc/self/ns/pid").stat().st_ino)
    except OSError:
        return None


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
