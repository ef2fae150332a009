"""One process of several that train together, and what a run of several ranks cannot do yet."""

from dataclasses import dataclass

from amptui.base.errors import UsageError
from amptui.recipe.request import TrainRequest


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
    uncounted: int = 0
    """How many of these restarts are not the launcher's to count: a machine has joined or was replaced."""
    generation: int = 0
    """Which start of the ranks this is, by what they have told in the same store."""
    launcher: str = "torchrun"
    """Who started it, as a user calls it."""
    master: str = ""
    """Where rank 0 listens, ``host:port``, if the launcher is not torchrun, which sets variables for it."""

    @property
    def counted(self) -> int:
        """How many of the launcher's restarts are used up."""
        return self.restart - self.uncounted

    @property
    def starts_again(self) -> bool:
        """Whether the launcher starts the ranks again if one fails."""
        return self.counted < self.max_restarts

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which keeps the journal and takes requests."""
        return self.rank == 0


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
