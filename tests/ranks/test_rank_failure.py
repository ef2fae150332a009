"""Errors of NCCL, gloo and torch's store, word for word: which may be a peer's fault, and what is said."""

import pytest
import torch.distributed as dist

from amptui.base.errors import ExperimentError
from amptui.ranks.failure import PeerEndedError, end_of, explain_rank_error, is_of_a_group

_NCCL = "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, "


def nccl(kind: str, name: str, last: str) -> dist.DistBackendError:
    """As of version 2.27.5, which tells its last error."""
    text = f"{kind} (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.5\n{name}: what it is. \n"
    return dist.DistBackendError(f"{_NCCL}{text}Last error:\n{last}")


NO_SPACE = (
    "Error while creating shared memory segment /dev/shm/nccl-KzrVVx (size 33030528), error: "
    "No space left on device (28)"
)
SHARED_MEMORY = nccl("unhandled system error", "ncclSystemError", NO_SPACE)
TWICE = "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1a000"
SYSTEM = (
    f"{_NCCL}unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.21.5\n"
    "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. "
)
SECOND_GROUP = (
    "Failed to initialize NCCL communicator: unhandled system error (run with NCCL_DEBUG=INFO for details)"
)
REMOTE = (
    f"{_NCCL}remote process exited or there was a network error, NCCL version 2.27.5\n"
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting "
    "prematurely.\nLast error:\nsocketPollConnect: connect returned Connection reset by peer"
)
WATCHDOG = (
    "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE, "
    "NumelIn=1024, NumelOut=1024, Timeout(ms)=600000) ran for 600017 milliseconds before timing out."
)
_GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/"
CLOSED = f"{_GLOO}pair.cc:538] Connection closed by peer [127.0.0.1]:41207"
INTERFACE = f"{_GLOO}device.cc:84] ifa != nullptr. Unable to find address for: eth7"


@pytest.mark.parametrize(
    ("error", "what", "hint"),
    [
        (SHARED_MEMORY, f"NCCL unhandled system error: {NO_SPACE}", "enlarge /dev/shm"),
        (
            nccl("invalid usage", "ncclInvalidUsage", TWICE),
            f"NCCL invalid usage: {TWICE}",
            "each rank needs a GPU",
        ),
        (dist.DistBackendError(SYSTEM), " ".join(SYSTEM.split()), "run again with NCCL_DEBUG=INFO"),
        (
            RuntimeError(SECOND_GROUP),
            SECOND_GROUP,
            "run again with NCCL_DEBUG=INFO: NCCL then says which; often /dev/",
        ),
        (RuntimeError(INTERFACE), INTERFACE, "name the network interface"),
    ],
)
def test_its_own_words_are_kept_and_have_a_hint_and_no_peer_is_blamed(
    error: BaseException, what: str, hint: str
) -> None:
    assert is_of_a_group(error)
    assert end_of(error) == "failed"
    explained = explain_rank_error(error, "in step 3")
    assert explained is not None
    assert explained.what == f"{what} (in step 3)"
    assert explained.hint.startswith(hint)


@pytest.mark.parametrize(
    ("error", "is_of_group", "end"),
    [
        # A connection or a wait ended: it may be a peer's.
        (dist.DistBackendError(REMOTE), True, "cut off"),
        (dist.DistBackendError(WATCHDOG), True, "cut off"),
        (dist.DistBackendError("NCCL communicator was aborted on rank 1."), True, "cut off"),
        (RuntimeError(CLOSED), True, "cut off"),
        (RuntimeError(f"{_GLOO}pair.cc:446] read [::1]:41207: Connection reset by peer"), True, "cut off"),
        (RuntimeError(f"{_GLOO}unbound_buffer.cc:78] Timed out waiting 1800000ms"), True, "cut off"),
        (RuntimeError("Application timeout caused pair closure"), True, "cut off"),
        (dist.DistNetworkError("Broken pipe"), True, "cut off"),
        (PeerEndedError(1, "killed", "", "rank 1 was killed"), True, "cut off"),
        # What a model raises is its own, whatever it mentions.
        (RuntimeError("the gloo of my model is not nccl"), True, "failed"),
        (RuntimeError("no process group for this layer"), True, "failed"),
        (ValueError("connection closed by peer"), False, "failed"),
        (RuntimeError("CUDA error: device-side assert triggered"), False, "failed"),
        (TimeoutError("timed out"), False, "failed"),
        (ExperimentError("NCCL error in: my words"), False, "failed"),
    ],
)
def test_where_a_connection_or_a_wait_ended_it_may_be_a_peer_s(
    error: BaseException, end: str, *, is_of_group: bool
) -> None:
    assert (is_of_a_group(error), end_of(error)) == (is_of_group, end)
    if end == "failed":
        assert explain_rank_error(error, "in step 3") is None


def test_an_error_of_a_peer_s_has_no_hint() -> None:
    explained = explain_rank_error(RuntimeError(CLOSED), "in step 3")
    assert explained is not None
    assert (explained.what, explained.hint) == (f"{CLOSED} (in step 3)", "")
