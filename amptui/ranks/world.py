"""One process of several that train together, and what a run of several ranks cannot do yet."""

from dataclasses import dataclass

from amptui.base.errors import UsageError
from amptui.recipe.request import TrainRequest

NO_SHARDED_XRAY = "an X-ray needs the whole model, of which each rank has a part"
"""Why FSDP refuses one."""

NO_SCRIPT_XRAY = "rank 0 would wait for the others in its forward pass"
"""Why the ranks of a script refuse one."""


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
