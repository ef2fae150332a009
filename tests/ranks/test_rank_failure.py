"""Errors of NCCL, gloo and torch's store, word for word: which may be a peer's fault, and what is said."""

import pytest
import torch.distributed as dist

from amptui.base.errors import ExperimentError
from amptui.ranks.ends.peer_ends import PeerEndedError
from amptui.ranks.failure import end_of, explain_rank_error, is_of_a_group, may_be_of_a_peer

_NCCL = "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, "

NO_SPACE = (
    "Error while creating shared memory segment /dev/shm/nccl-KzrVVx (size 33030528), error: "
    "No space left on device (28)"
)
TWICE = "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1a000"
OLD = "Cuda failure 35 'CUDA driver version is insufficient for CUDA runtime version'"

SHARED_MEMORY = (
    f"{_NCCL}unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.5\n"
    "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. \n"
    f"Last error:\n{NO_SPACE}"
)
DUPLICATE = (
    f"{_NCCL}invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.27.5\n"
    "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n"
    f"Last error:\n{TWICE}"
)
DRIVER = (
    f"{_NCCL}unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.5\n"
    "ncclUnhandledCudaError: Call to CUDA function failed.\n"
    f"Last error:\n{OLD}"
)
SYSTEM = (
    f"{_NCCL}unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.21.5\n"
    "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. "
)
SECOND_GROUP = (
    "Failed to initialize NCCL communicator: unhandled system error (run with NCCL_DEBUG=INFO for details)"
)
REDUCED = "NCCL AllReduce failed: unhandled cuda error (run with NCCL_DEBUG=INFO for details)"
REMOTE = (
    f"{_NCCL}remote process exited or there was a network error, NCCL version 2.27.5\n"
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting "
    "prematurely.\nLast error:\nsocketPollConnect: connect returned Connection reset by peer"
)
WATCHDOG = (
    "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE, "
    "NumelIn=1024, NumelOut=1024, Timeout(ms)=600000) ran for 600017 milliseconds before timing out."
)
ABORTED = "NCCL communicator was aborted on rank 1."
_GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/"
CLOSED = f"{_GLOO}pair.cc:538] Connection closed by peer [127.0.0.1]:41207"
RESET = f"{_GLOO}pair.cc:446] read [127.0.0.1]:41207: Connection reset by peer"
LATE = f"{_GLOO}unbound_buffer.cc:78] Timed out waiting 1800000ms for recv operation to complete"
PAIR = "Application timeout caused pair closure"
INTERFACE = f"{_GLOO}device.cc:84] ifa != nullptr. Unable to find address for: eth7"
STORE = "Broken pipe"


@pytest.mark.parametrize(
    ("error", "of_a_peer"),
    [
        (dist.DistBackendError(SHARED_MEMORY), False),
        (dist.DistBackendError(DUPLICATE), False),
        (dist.DistBackendError(DRIVER), False),
        (dist.DistBackendError(SYSTEM), False),
        (RuntimeError(SECOND_GROUP), False),
        (RuntimeError(REDUCED), False),
        (dist.DistBackendError(REMOTE), True),
        (dist.DistBackendError(WATCHDOG), True),
        (dist.DistBackendError(ABORTED), True),
        (RuntimeError(CLOSED), True),
        (RuntimeError(RESET), True),
        (RuntimeError(LATE), True),
        (RuntimeError(PAIR), True),
        (RuntimeError(INTERFACE), False),
        (dist.DistNetworkError(STORE), True),
        (PeerEndedError(1, "killed", "", "rank 1 was killed"), True),
    ],
)
def test_an_error_of_a_group_is_a_peer_s_only_if_a_connection_or_a_wait_ended(
    error: BaseException, of_a_peer: bool
) -> None:
    assert is_of_a_group(error)
    assert may_be_of_a_peer(error) == of_a_peer
    assert end_of(error) == ("cut off" if of_a_peer else "failed")


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("the gloo of my model is not nccl"),
        RuntimeError("no process group for this layer"),
        ValueError("connection closed by peer"),
        RuntimeError("CUDA error: device-side assert triggered"),
        TimeoutError("timed out"),
    ],
)
def test_what_a_model_raises_is_its_own(error: BaseException) -> None:
    assert not may_be_of_a_peer(error)
    assert explain_rank_error(error, "in step 3") is None


@pytest.mark.parametrize(
    ("error", "what", "hint"),
    [
        (
            dist.DistBackendError(SHARED_MEMORY),
            f"NCCL unhandled system error: {NO_SPACE}",
            "enlarge /dev/shm",
        ),
        (dist.DistBackendError(DUPLICATE), f"NCCL invalid usage: {TWICE}", "each rank needs a GPU"),
        (dist.DistBackendError(DRIVER), f"NCCL unhandled cuda error: {OLD}", "update the NVIDIA driver"),
        (
            dist.DistBackendError(SYSTEM),
            " ".join(SYSTEM.split()),
            "run again with NCCL_DEBUG=INFO",
        ),
        (
            RuntimeError(SECOND_GROUP),
            SECOND_GROUP,
            "run again with NCCL_DEBUG=INFO: NCCL then says which; often /dev/",
        ),
        (RuntimeError(REDUCED), REDUCED, "run again with NCCL_DEBUG=INFO"),
        (RuntimeError(INTERFACE), INTERFACE, "name the network interface"),
        (RuntimeError(CLOSED), CLOSED, ""),
    ],
)
def test_its_own_words_are_kept_and_a_known_one_has_a_hint(
    error: BaseException, what: str, hint: str
) -> None:
    explained = explain_rank_error(error, "in step 3")
    assert explained is not None
    assert explained.what == f"{what} (in step 3)"
    assert explained.hint.startswith(hint)
    assert bool(explained.hint) == bool(hint)


def test_an_error_of_ours_is_not_explained_again() -> None:
    assert explain_rank_error(ExperimentError("NCCL error in: my words"), "in step 3") is None
