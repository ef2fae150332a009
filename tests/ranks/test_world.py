"""What ranks cannot do."""

import pytest

from amptui.base.errors import UsageError
from amptui.ranks.world import refuse_unsupported
from amptui.recipe.request import TrainRequest


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
