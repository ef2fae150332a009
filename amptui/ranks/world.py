"""One process of several that train together: which rank it is by variables of torchrun, srun or mpirun.

And what a run of several ranks cannot do yet.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from amptui.base.errors import UsageError
from amptui.recipe.request import TrainRequest

_TORCHRUN = ("TORCHELASTIC_RUN_ID", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun sets (torch.distributed.run, "Environment Variables")."""

_RESTARTS = ("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS")

_SPECIAL_STEPS = 0xFFFFFFF0
"""Slurm's steps from here on are no ``srun``: the batch script, salloc's shell (slurm.h, MAX_NORMAL_STEP)."""

LAUNCHER_GONE = "launcher gone"
"""Why a rank stops whose launcher has ended: all do."""


@dataclass(frozen=True, slots=True)
class World:
    """One process of a run of several."""

    rank: int
    local_rank: int
    """Counted on this machine."""
    size: int
    """How many processes train together, on all machines."""
    restart: int = 0
    """How often the ranks have been started again."""
    max_restarts: int = 0
    """How often the launcher does so at most."""
    meeting: str = ""
    """Where the ranks of this start meet, ``host:port/number``; known once they have."""
    cause: str = ""
    """Why the ranks before these have ended, as rank 0 knows it."""
    launcher: str = "torchrun"
    """Who started it, as a user calls it."""
    master: str = ""
    """Where rank 0 listens, ``host:port``, if the launcher is not torchrun, which sets variables for it."""

    @property
    def starts_again(self) -> bool:
        """Whether the launcher starts the ranks again if one fails."""
        return self.restart < self.max_restarts

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which keeps the journal and takes requests."""
        return self.rank == 0


def refuse_unsupported(request: TrainRequest, ranks: int) -> None:
    """Raise UsageError for an option that is not supported in a run of so many ``ranks``."""
    if request.fsdp and ranks == 1:
        hint = "add --nproc N, or start it with torchrun"
        raise UsageError("--fsdp with a single process: there is nothing to divide", hint=hint)
    reasons = {
        "--compile": request.compile_mode is not None and "a model cannot be compiled yet",
        "--channels-last": request.channels_last and "FSDP2 needs contiguous weights",
    }
    for option, reason in reasons.items():
        if request.fsdp and reason:
            raise UsageError(f"{option} with --fsdp: {reason}", hint=f"leave out {option} or --fsdp")
    if ranks > 1 and request.device.startswith("cuda:"):
        what = f"--device with {ranks} ranks: each rank takes the GPU of its own number"
        raise UsageError(what, hint="use --device cuda")


class _Launcher(NamedTuple):
    """How one launcher names a process's place."""

    name: str
    rank: str
    size: str
    local_rank: str


_PLAIN = _Launcher("another launcher", "RANK", "WORLD_SIZE", "LOCAL_RANK")

_OPEN_MPI = _Launcher("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK")

_MPICH = _Launcher("mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID")

_SLURM = _Launcher("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")


def world_of(environment: Mapping[str, str]) -> World | None:
    """The rank of a process that a launcher started with others; None for a process alone.

    Raises UsageError for one of several whose variables do not tell all that the others need: it would train
    alone, beside them.
    """
    if "TORCHELASTIC_RUN_ID" in environment:
        if any(name not in environment for name in _TORCHRUN):
            return None
        try:
            rank, local_rank, size = (int(environment[name]) for name in _TORCHRUN[1:4])
            restart, max_restarts = (int(environment.get(name, "0")) for name in _RESTARTS)
        except ValueError as error:
            raise UsageError(f"torchrun's variables: {error}", hint="start again with torchrun") from error
        return World(rank, local_rank, size, restart, max_restarts) if size > 1 else None
    launcher = _launcher_of(environment)
    if launcher is None:
        return None
    size = _number(environment, launcher.size, launcher)
    if size <= 1:
        return None
    rank = _number(environment, launcher.rank, launcher)
    local_rank = _number(environment, launcher.local_rank, launcher)
    if not 0 <= rank < size:
        raise UsageError(f"{launcher.rank}={rank} of {launcher.size}={size}", hint="count ranks from 0")
    return World(rank, local_rank, size, launcher=launcher.name, master=_master(environment, launcher))


def world_of_variables(environment: Mapping[str, str]) -> World | None:
    """As :func:`world_of`, of somebody else's script: only of variables by which it must train with others.

    What srun or mpirun starts may as well be scripts that know nothing of each other.
    """
    if "TORCHELASTIC_RUN_ID" not in environment and any(name not in environment for name in _TORCHRUN[1:]):
        return None
    return world_of(environment)


def variables_of(world: World) -> dict[str, str]:
    """What torchrun would have set, for a model that reads it."""
    host, _, port = world.master.rpartition(":")
    names = {"RANK": world.rank, "LOCAL_RANK": world.local_rank, "WORLD_SIZE": world.size}
    return {name: str(value) for name, value in names.items()} | {"MASTER_ADDR": host, "MASTER_PORT": port}


def _launcher_of(environment: Mapping[str, str]) -> _Launcher | None:
    """Who started this process as one of several: the innermost, as all inherit those of an allocation."""
    if "WORLD_SIZE" in environment or environment.get("RANK", "0") != "0":
        return _PLAIN
    if _OPEN_MPI.size in environment:
        return _OPEN_MPI
    if _MPICH.size in environment and _MPICH.local_rank in environment:
        return _MPICH
    # Not a batch script or a shell, which have some of srun's variables too.
    rank, step = environment.get(_SLURM.rank, ""), environment.get("SLURM_STEP_ID", "")
    if not rank or not step.isdecimal() or int(step) >= _SPECIAL_STEPS:
        return None
    # `srun --pty bash`: the shell is task 0, and the others have no terminal.
    return None if "SLURM_PTY_PORT" in environment and rank == "0" else _SLURM


def _number(environment: Mapping[str, str], name: str, launcher: _Launcher) -> int:
    value = environment.get(name, "")
    if value.isdecimal():
        return int(value)
    what = f"{name} is {value!r}, which is no number" if value else f"{name} is not set"
    present = launcher.size if name != launcher.size else launcher.rank
    start = f"started by {launcher.name}" if launcher is not _PLAIN else f"{present} is set"
    hint = f"set {launcher.rank}, {launcher.size} and {launcher.local_rank}, or none of them to train alone"
    raise UsageError(f"{start}, but {what}: its place among the ranks is not known", hint=hint)


def _master(environment: Mapping[str, str], launcher: _Launcher) -> str:
    """Where rank 0 listens, ``host:port``. Raises UsageError if nothing tells."""
    host, port = environment.get("MASTER_ADDR", ""), environment.get("MASTER_PORT", "")
    missing = [name for name, value in (("MASTER_ADDR", host), ("MASTER_PORT", port)) if not value]
    if missing:
        rank, size = environment[launcher.rank], environment[launcher.size]
        what = f"this is rank {rank} of {size} by {launcher.rank}, but {' and '.join(missing)} "
        what += f"{'is' if len(missing) == 1 else 'are'} not set: the ranks cannot find each other"
        raise UsageError(what, hint=f"set {' and '.join(missing)} to rank 0's host and a free port there")
    if not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise UsageError(
            f"MASTER_PORT is {port!r}, which is no port", hint="set a free port of rank 0's host"
        )
    return f"{host}:{int(port)}"
