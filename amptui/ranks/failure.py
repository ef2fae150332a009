"""How ranks end early, as they tell each other, and which errors of a training come from another rank."""

import re
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

import torch.distributed as dist

from amptui.base.errors import AmptuiError, DeviceError, ExperimentError
from amptui.device.failure import is_out_of_memory
from amptui.ranks.agreement.board import Board
from amptui.ranks.world import World
from amptui.records.ranks import RankLost

if TYPE_CHECKING:
    from amptui.ranks.agreement.board import Place

End = Literal["stopped", "failed", "out of memory", "waited", "cut off", "left"]
"""How a rank ended early: asked to before the first step, by an error of its own, or because others did.

``cut off``: a connection to another one ended, and none is known to have ended. ``left``: a script's rank has
made all its steps, or is watched no more."""

PeerEnd = Literal["stopped", "failed", "out of memory", "waited", "killed", "hung"]
"""How another rank ended, as this one knows it."""

_ENDED = "ended"
"""Below it each rank that ends early says how."""

_FIRST_END = "first end"
"""The first rank that did not only wait for others: its number, how it ended, and what it said.

Of one that was killed another rank of its machine says so."""

_OF_A_PEER = re.compile(
    r"closed by peer|reset by peer|broken pipe|timed out|timeout|pair closure|communicator was aborted|"
    r"aborted communicator|ncclremoteerror|remote process exit|ncclinprogress|connection was likely closed",
    re.IGNORECASE,
)
"""A connection that closed, a wait that took too long, or an abort: gloo's ``transport/tcp/pair.cc`` and
``unbound_buffer.cc``, ``torch/csrc/distributed/c10d/NCCLUtils.cpp`` and ``TCPStoreBackend.cpp``."""

_OF_NCCL = re.compile(r"NCCL error in: .*?, (?P<kind>[^,(]+?)(?: \(run with| *, NCCL version)")
"""``NCCL error in: NCCLUtils.cpp:94, unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL
version 2.27.5``, then a line of explanation, and perhaps ``Last error:`` with one of NCCL's own."""

_OF_COMMUNICATION = re.compile(r"NCCL error in:|/gloo/|^NCCL [A-Z]\w+ failed|^Failed to [a-z ]+NCCL")
"""NCCL or gloo raised it themselves. The last two are of torch 2.15's ``ProcessGroupNCCL2``: ``NCCL AllReduce
failed``, ``Failed to initialize NCCL communicator: unhandled system error (run with NCCL_DEBUG=INFO ...``."""

_LAST_ERROR = "Last error:"

_MAX_CHARACTERS = 400

_UNUSED = "Expected to have finished reduction in the prior iteration"
"""How DDP tells that a gradient is missing (``torch/csrc/distributed/c10d/reducer.cpp``)."""

_MIXED = "got mixed torch.Tensor and DTensor"
"""How torch tells that weights are not gathered (``torch/distributed/tensor/_dispatch.py``)."""

_NO_STRATEGY = "does not have a sharding strategy registered"
"""How torch tells that an operator takes no DTensor, such as that of a fused SGD (there)."""

_HINTS = (
    (
        "shared memory|/dev/shm.*no space left|no space left.*/dev/shm",
        "enlarge /dev/shm (docker run --shm-size=8g, or --ipc=host), or set NCCL_SHM_DISABLE=1",
    ),
    (
        "duplicate gpu detected",
        "each rank needs a GPU of its own: start fewer ranks, or look at CUDA_VISIBLE_DEVICES",
    ),
    (
        "driver version is insufficient",
        "update the NVIDIA driver, or install a torch that is built for an older CUDA",
    ),
    (
        "no socket interface|unable to find address for|no route to host",
        "name the network interface between the machines: NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME",
    ),
    (
        "nccl.*unhandled system error",
        (
            "run again with NCCL_DEBUG=INFO: NCCL then says which; "
            "often /dev/shm is full (docker run --shm-size=8g)"
        ),
    ),
    (
        "nccl",
        "run again with NCCL_DEBUG=INFO: NCCL then says more in the output of each rank",
    ),
)
"""What a text says, and what to do about it; the first that fits counts."""


class PeerEndedError(DeviceError):
    """Another rank ended, so that this one cannot go on either."""

    def __init__(self, rank: int, how: PeerEnd, detail: str, text: str, hint: str = "") -> None:
        super().__init__(text, hint=hint)
        self.rank = rank
        self.how = how
        """``waited`` where none has failed; ``rank`` is -1 if none is known to have ended first."""
        self.detail = detail

    def record(self, step: int, hosts: Sequence[str]) -> RankLost:
        """The record of it; ``hosts`` are those of all ranks, if they have met."""
        host = hosts[self.rank] if hosts else ""
        assert self.how != "stopped", "none is lost then"
        cause = "failed" if self.how == "waited" else self.how
        return RankLost(
            time=time.time(), step=step, rank=self.rank, host=host, cause=cause, detail=self.detail
        )


def is_of_a_group(error: BaseException) -> bool:
    """Whether an operation of several ranks failed: gloo and NCCL raise plain RuntimeErrors."""
    if isinstance(error, PeerEndedError | dist.DistError):
        return True
    text = str(error).lower() if isinstance(error, RuntimeError) else ""
    return _OF_A_PEER.search(text) is not None or any(
        sign in text for sign in ("gloo", "nccl", "process group")
    )


def may_be_of_a_peer(error: BaseException) -> bool:
    """Whether another rank's end can be the cause: a connection closed, a wait was too long, or an abort."""
    if isinstance(error, PeerEndedError):
        return True
    return is_of_a_group(error) and _OF_A_PEER.search(str(error)) is not None


def end_of(error: BaseException) -> End:
    """How a rank ends by ``error``, if no other is known to have ended before it."""
    if may_be_of_a_peer(error):
        return "cut off"
    return "out of memory" if is_out_of_memory(error) else "failed"


def explain_rank_error(error: BaseException, doing: str) -> AmptuiError | None:
    """What NCCL, gloo, DDP or FSDP2 says, in one line with a hint; None for any other error.

    ``doing`` is what failed: ``"in step 500"``.
    """
    text = str(error)
    if (unfit := _unfit_model(text, doing)) is not None:
        return unfit
    # NCCL or gloo raised it themselves; a model may raise what only mentions them.
    is_theirs = isinstance(error, RuntimeError) and _OF_COMMUNICATION.search(text) is not None
    if isinstance(error, AmptuiError) or not (is_theirs or isinstance(error, dist.DistError)):
        return None
    hint = next((hint for sign, hint in _HINTS if re.search(sign, text, re.IGNORECASE)), "")
    return DeviceError(f"{_words(text)} ({doing})", hint=hint)


def _words(text: str) -> str:
    """NCCL's or gloo's own words in one line: ``NCCL unhandled system error: ... No space left``."""
    error = _OF_NCCL.search(text)
    last = text.partition(_LAST_ERROR)[2].strip()
    words = " ".join((last or text).split())[:_MAX_CHARACTERS]
    return f"NCCL {error['kind'].strip()}: {words}" if error and last else words


def _unfit_model(text: str, doing: str) -> ExperimentError | None:
    """The error whose ``text`` torch gave while ``doing`` something, if it is about the model."""
    if _UNUSED in text:
        what = f"a parameter of the model took no part in loss() ({doing})"
        return ExperimentError(what, hint="remove it, or set its requires_grad to False")
    if _MIXED in text:
        what = f"loss() used the weights of a block outside its forward() ({doing})"
        return ExperimentError(what, hint="call the block itself, or train without --fsdp")
    if _NO_STRATEGY in text:
        operator = text.partition(_NO_STRATEGY)[0].removeprefix("Operator ").strip()
        what = f"{operator} does not work on sharded weights ({doing})"
        unfused = "build the optimizer without fused=True, or " if "_fused_" in operator else ""
        return ExperimentError(what, hint=f"{unfused}train without --fsdp")
    return None


class RankEnds:
    """What is known of the ends of ranks, on a ``board`` that should outlive them."""

    def __init__(self, board: Board, world: World) -> None:
        self._board = board
        self._world = world
        self.places: Sequence[Place] = ()
        """Where each rank runs, once they have met."""

    def tell(self, how: End, text: str) -> None:
        """Tell the others that this rank ends early and why; without the store nobody is left to tell."""
        with suppress(RuntimeError):
            self._board.post(f"{_ENDED}/{self._world.rank}", how)
            if how != "waited":
                self._board.decide(_FIRST_END, [self._world.rank, how, text])

    def first(self) -> PeerEndedError | None:
        """The other rank that told of its end first, or whose process is gone without a word."""
        first: Any = None
        for rank, place in enumerate(self.places):
            if place.is_gone and not self._has_told(rank):
                first = rank, "killed", f"pid {place.pid} is gone"
                break
        with suppress(RuntimeError):
            # Ranks on other machines cannot see it.
            first = self._board.look(_FIRST_END) if first is None else self._board.decide(_FIRST_END, first)
        if first is None or first[0] == self._world.rank:
            return None
        rank, how, text = first
        if how == "cut off":  # it is not to blame, and nobody knows who is
            return PeerEndedError(-1, "waited", "", f"rank {rank} lost the others: {text}")
        if how == "left":
            return PeerEndedError(rank, "waited", "", f"rank {rank} {text}")
        who = f"rank {rank} was killed" if how == "killed" else f"rank {rank}"
        return PeerEndedError(rank, how, text, f"{who}: {text}")

    def _has_told(self, rank: int) -> bool:
        """Whether that rank has told of its end."""
        with suppress(RuntimeError):
            return self._board.look(f"{_ENDED}/{rank}") is not None
        return False
