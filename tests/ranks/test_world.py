"""What ranks cannot do."""

from typing import Any

import pytest

from amptui.base.errors import UsageError
from amptui.ranks.world import refuse_unsupported
from amptui.recipe.request import TrainRequest


@pytest.mark.parametrize(
    ("options", "ranks", "what"),
    [
        ({"device": "cuda:1"}, 2, "--device with 2 ranks: "),
        ({"fsdp": True, "channels_last": True}, 2, "--channels-last with --fsdp: "),
        ({"fsdp": True, "compile_mode": "default"}, 2, "--compile with --fsdp: "),
        ({"fsdp": True}, 1, "--fsdp with a single process"),
    ],
)
def test_what_ranks_cannot_do_is_refused(options: dict[str, Any], ranks: int, what: str) -> None:
    with pytest.raises(UsageError, match=f"^{what}"):
        refuse_unsupported(TrainRequest(model="mine.py", **options), ranks)


def test_a_single_process_may_do_anything() -> None:
    refuse_unsupported(TrainRequest(model="mine.py", resume=True, accumulate=2, device="cuda:1"), 1)


def test_everything_else_is_not() -> None:
    refuse_unsupported(TrainRequest(model="mine.py", device="cuda", accumulate=2, compile_mode="default"), 2)
    refuse_unsupported(TrainRequest(model="mine.py", device="cuda", clip_norm=1.0, validate_every=5), 2)
    refuse_unsupported(TrainRequest(model="mine.py", fsdp=True, accumulate=2, save_weights="/w.pt"), 2)
