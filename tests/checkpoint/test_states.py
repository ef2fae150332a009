"""Copies of states: equal, apart from the originals, and readable without running code."""

import io
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from amptui.checkpoint.states import host_copy

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


def copied(state: object) -> Any:
    copies, wait = host_copy(state)
    wait()
    return copies


def through_a_file(state: object) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Tensors of any type, shape and order of strides, with gaps between their numbers too."""
    shape = draw(st.lists(st.integers(0, 5), max_size=4))
    whole = torch.randint(0, 100, shape).to(draw(st.sampled_from(DTYPES)))
    whole = whole.permute(draw(st.permutations(range(len(shape)))))
    return whole[..., :: draw(st.integers(1, 2))] if shape else whole


@given(parts=st.lists(tensors(), min_size=1, max_size=5))
def test_a_copy_is_equal_and_separate_and_survives_a_file(parts: list[Tensor]) -> None:
    state = {"list": parts, "tuple": (parts[0], {1: parts[-1]})}
    copies = through_a_file(copied(state))
    assert copies["tuple"][0].data_ptr() == copies["list"][0].data_ptr()  # what was tied stays tied
    again = [*copies["list"], copies["tuple"][0], copies["tuple"][1][1]]
    for there, was in zip(again, [*parts, parts[0], parts[-1]], strict=True):
        assert (there.dtype, there.shape) == (was.dtype, was.shape)
        assert torch.equal(there, was)
    copies = copied(state)
    before = [part.clone() for part in parts]
    for part in parts:
        part.fill_(1)
    assert all(map(torch.equal, copies["list"], before))
