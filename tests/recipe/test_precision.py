"""Each precision does what its name says, checked against torch's own words."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from amptui.base.errors import UsageError
from amptui.loops.setup import prepare_precisions
from amptui.recipe.float8 import why_no_float8
from amptui.recipe.precision import Tf32Flags, check_supported, unsupported_precisions

CPU = torch.device("cpu")
# torch sets these attributes when it is imported; its types do not know them.
BACKENDS: Any = torch.backends
CONVOLUTION, RNN = BACKENDS.cudnn.conv, BACKENDS.cudnn.rnn
MATMUL, HOST_MATMUL = BACKENDS.cuda.matmul, BACKENDS.mkldnn.matmul


@pytest.fixture(autouse=True)
def _restore_flags() -> Iterator[None]:
    before = Tf32Flags.current()
    yield
    BACKENDS.fp32_precision = "none"
    before.apply()


OLDER_AGREES: dict[str, Callable[[], object]] = {
    "as torch comes": lambda: None,
    "older, off": lambda: setattr(torch.backends.cudnn, "allow_tf32", False),
    "older, on": lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True),
    "medium": lambda: torch.set_float32_matmul_precision("medium"),
}
CHOICES: dict[str, Callable[[], object]] = {
    **OLDER_AGREES,
    "newer, everywhere": lambda: setattr(BACKENDS, "fp32_precision", "tf32"),
    "newer, products": lambda: setattr(MATMUL, "fp32_precision", "tf32"),
    "newer, convolutions": lambda: setattr(CONVOLUTION, "fp32_precision", "ieee"),
    "both": lambda: (CHOICES["older, off"](), CHOICES["newer, products"]()),
}


def older_flags() -> tuple[object, ...]:
    """What torch says of its older flags; it raises where the newer ones say otherwise."""
    on_gpus = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    return *on_gpus, torch.get_float32_matmul_precision()


@pytest.mark.torch
@pytest.mark.parametrize("choose", CHOICES)
def test_every_way_to_choose_tf32_is_kept_and_both_sets_of_flags_agree(choose: str) -> None:
    CHOICES[choose]()
    chosen = Tf32Flags.current()
    before = older_flags() if choose in OLDER_AGREES else None
    _, precisions = prepare_precisions(CPU)
    for name, allowed in (("ieee", False), ("tf32", True), ("ieee", False)):
        precisions[name].enter()
        words = [CONVOLUTION.fp32_precision, MATMUL.fp32_precision, RNN.fp32_precision]
        assert [word == "tf32" for word in words] == [allowed] * 3
        assert older_flags()[:2] == (allowed, allowed)
    assert HOST_MATMUL.fp32_precision == "ieee"
    precisions["fp32"].enter()
    assert Tf32Flags.current() == chosen
    if before is not None:
        assert older_flags() == before


def test_a_cpu_runs_everything_but_tf32_and_what_needs_torchao() -> None:
    unsupported = unsupported_precisions(CPU)
    assert unsupported == {"tf32": "TF32 needs an NVIDIA GPU", **why_no_float8(CPU)}
    check_supported("bf16", unsupported)
    with pytest.raises(UsageError, match="use one of fp32, ieee, fp16, bf16"):
        check_supported("tf32", unsupported)
    with pytest.raises(UsageError, match="where that is supported"):
        check_supported("tf32", {"tf32": "no"}, resumes=True)
