"""Which errors of a training of several ranks come from another rank, and what to do about the others."""

import re
from typing import NamedTuple

import torch.distributed as dist

from amptui.base.errors import AmptuiError, DeviceError
from amptui.engine.failure import is_out_of_memory
from amptui.ranks.ends.peer_ends import End, PeerEndedError

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


class _Hint(NamedTuple):
    sign: re.Pattern[str]
    hint: str


_HINTS = (
    _Hint(
        re.compile(r"shared memory|/dev/shm.*no space left|no space left.*/dev/shm", re.IGNORECASE),
        "enlarge /dev/shm (docker run --shm-size=8g, or --ipc=host), or set NCCL_SHM_DISABLE=1",
    ),
    _Hint(
        re.compile("duplicate gpu detected", re.IGNORECASE),
        "each rank needs a GPU of its own: start fewer ranks, or look at CUDA_VISIBLE_DEVICES",
    ),
    _Hint(
        re.compile("driver version is insufficient", re.IGNORECASE),
        "update the NVIDIA driver, or install a torch that is built for an older CUDA",
    ),
    _Hint(
        re.compile("no socket interface|unable to find address for|no route to host", re.IGNORECASE),
        "name the network interface between the machines: NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME",
    ),
    _Hint(
        re.compile("nccl.*unhandled system error", re.IGNORECASE),
        "run again with NCCL_DEBUG=INFO: NCCL then says which; often /dev/shm is full "
        "(docker run --shm-size=8g)",
    ),
    _Hint(
        re.compile("nccl", re.IGNORECASE),
        "run again with NCCL_DEBUG=INFO: NCCL then says more in the output of each rank",
    ),
)
"""The first that fits counts."""


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
    """An error of NCCL's or gloo's in one line, with a hint; None for any other.

    ``doing`` is what failed: ``"in step 500"``.
    """
    text = str(error)
    if isinstance(error, AmptuiError) or not _is_communication(error):
        return None
    hint = next((cause.hint for cause in _HINTS if cause.sign.search(text)), "")
    return DeviceError(f"{_words(text)} ({doing})", hint=hint)


def _is_communication(error: BaseException) -> bool:
    """Whether NCCL or gloo raised it themselves; a model may raise what only mentions them."""
    if isinstance(error, dist.DistError):
        return True
    return isinstance(error, RuntimeError) and _OF_COMMUNICATION.search(str(error)) is not None


def _words(text: str) -> str:
    """NCCL's or gloo's own words in one line: ``NCCL unhandled system error: ... No space left``."""
    error = _OF_NCCL.search(text)
    last = text.partition(_LAST_ERROR)[2].strip()
    words = " ".join((last or text).split())[:_MAX_CHARACTERS]
    return f"NCCL {error['kind'].strip()}: {words}" if error and last else words
