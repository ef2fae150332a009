"""Which rank this process is, as torchrun tells it, and what a run of several ranks cannot do yet."""

from collections.abc import Mapping
from dataclasses import dataclass

from amptui.errors import UsageError
from amptui.request import TrainRequest

NO_XRAY = "an X-ray needs the whole model, of which each rank has a part"
"""Why FSDP refuses one."""

_VARIABLES = ("TORCHELASTIC_RUN_ID", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun sets (torch.distributed.run, "Environment Variables")."""

_RESTARTS = ("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS")


@dataclass(frozen=True, slots=True)
class World:
    """One process of a run of several."""

    rank: int
    local_rank: int
    """Counted on this machine."""
    size: int
    """How many processes train together, on all machines."""
    restart: int = 0
    """How often the launcher has started the ranks again."""
    max_restarts: int = 0
    """How often it does so at most."""

    @property
    def starts_again(self) -> bool:
        """Whether the launcher starts the ranks again if one fails."""
        return self.restart < self.max_restarts

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which keeps the journal and takes requests."""
        return self.rank == 0


def world_of(environment: Mapping[str, str]) -> World | None:
    """The rank of a process that torchrun started with others; None for a process alone.

    Raises UsageError if a variable of torchrun's is not a number.
    """
    if any(name not in environment for name in _VARIABLES):
        return None
    try:
        rank, local_rank, size = (int(environment[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
        restart, max_restarts = (int(environment.get(name, "0")) for name in _RESTARTS)
    except ValueError as error:
        raise UsageError(f"torchrun's variables: {error}", hint="start again with torchrun") from error
    return World(rank, local_rank, size, restart, max_restarts) if size > 1 else None


def refuse_unsupported(request: TrainRequest, ranks: int) -> None:
    """Raise UsageError for an option that is not supported in a run of so many ``ranks``."""
    if request.fsdp:
        _refuse_with_fsdp(request, ranks)
    if ranks > 1 and request.device.startswith("cuda:"):
        what = f"--device with {ranks} ranks: each rank takes the GPU of its own number"
        raise UsageError(what, hint="use --device cuda")


def _refuse_with_fsdp(request: TrainRequest, ranks: int) -> None:
    if ranks == 1:
        hint = "add --nproc N, or start it with torchrun"
        raise UsageError("--fsdp with a single process: there is nothing to divide", hint=hint)
    reasons = {
        "--compile": request.compile_mode is not None and "a model cannot be compiled yet",
        "--channels-last": request.channels_last and "FSDP2 needs contiguous weights",
    }
    for option, reason in reasons.items():
        if reason:
            raise UsageError(f"{option} with --fsdp: {reason}", hint=f"leave out {option} or --fsdp")


def refused_requests(request: TrainRequest) -> dict[str, str]:
    """What nobody can ask a run of several ranks for, each with the reason."""
    return {"x-ray": NO_XRAY} if request.fsdp else {}
