"""Which rank a process is, and what ranks cannot do."""

import pytest

from amptui.engine.distributed.launchers import world_of
from amptui.engine.distributed.world import World, refuse_unsupported
from amptui.errors import UsageError
from amptui.request import TrainRequest

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500",
}


def test_torchrun_s_variables_say_which_rank_this_is() -> None:
    assert world_of(TORCHRUN) == World(rank=3, local_rank=1, size=4)
    assert not World(3, 1, 4).leads
    assert World(0, 0, 4).leads


@pytest.mark.parametrize("missing", TORCHRUN)
def test_a_process_without_one_of_them_trains_alone(missing: str) -> None:
    assert world_of({name: value for name, value in TORCHRUN.items() if name != missing}) is None


def test_one_process_of_torchrun_s_trains_alone() -> None:
    assert world_of({**TORCHRUN, "RANK": "0", "WORLD_SIZE": "1"}) is None


def test_a_variable_that_is_no_number_is_refused() -> None:
    with pytest.raises(UsageError):
        world_of({**TORCHRUN, "RANK": "first"})


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"device": "cuda:1"}, "--device"),
    ],
)
def test_what_ranks_cannot_do_is_refused(options: dict[str, object], named: str) -> None:
    with pytest.raises(UsageError, match=f"^{named} with 2 ranks: "):
        refuse_unsupported(TrainRequest(model="mine.py", **options), 2)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"channels_last": True}, "--channels-last"),
        ({"compile_mode": "default"}, "--compile"),
    ],
)
def test_what_fsdp_cannot_do_is_refused(options: dict[str, object], named: str) -> None:
    request = TrainRequest(model="mine.py", fsdp=True, **options)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=f"^{named} with --fsdp: "):
        refuse_unsupported(request, 2)


def test_fsdp_needs_several_processes() -> None:
    with pytest.raises(UsageError, match="--fsdp with a single process"):
        refuse_unsupported(TrainRequest(model="mine.py", fsdp=True), 1)


def test_a_single_process_may_do_anything() -> None:
    refuse_unsupported(TrainRequest(model="mine.py", resume=True, accumulate=2, device="cuda:1"), 1)


def test_everything_else_is_not() -> None:
    refuse_unsupported(TrainRequest(model="mine.py", device="cuda", accumulate=2, compile_mode="default"), 2)
    refuse_unsupported(TrainRequest(model="mine.py", device="cuda", clip_norm=1.0, validate_every=5), 2)
    refuse_unsupported(TrainRequest(model="mine.py", fsdp=True, accumulate=2, save_weights="/w.pt"), 2)
