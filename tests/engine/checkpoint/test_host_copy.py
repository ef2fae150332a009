"""Copies of states: equal, apart from the originals, and readable without running code."""

import io
from enum import IntEnum
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from amptui.engine.checkpoint.host_copy import HostCopy, NotPlainError

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


def copied(state: object) -> Any:
    copy = HostCopy((state,))
    copies = copy.of(state, "it")
    copy.wait()
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
    again = [*copies["list"], copies["tuple"][0], copies["tuple"][1][1]]
    for there, was in zip(again, [*parts, parts[0], parts[-1]], strict=True):
        assert (there.dtype, there.shape) == (was.dtype, was.shape)
        assert torch.equal(there, was)
    copies = copied(state)
    before = [part.clone() for part in parts]
    for part in parts:
        part.fill_(1)
    assert all(map(torch.equal, copies["list"], before))


def test_tied_weights_stay_tied_and_others_separate() -> None:
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    copies = copied(model.state_dict())
    assert copies["0.weight"] is copies["1.weight"]
    rows = torch.rand(2, 8)
    first, whole = copied([rows[0], rows])
    assert torch.equal(first, rows[0])
    assert torch.equal(whole, rows)


def test_plain_values_are_unchanged() -> None:
    state = {
        "none": None,
        "numbers": (True, 3, -(2**70), 1.5, float("inf"), 1j),
        "texts": ["a\nb", "\udc80", b"\x00\xff"],
        "torch": {torch.float16, torch.device("cpu"), torch.Size([1, 2])},
        7: [],
    }
    assert through_a_file(copied(state)) == state
    copies = copied({"lr": np.float64(0.5), "n": np.int32(3)})
    assert copies == {"lr": 0.5, "n": 3}
    assert [type(value) for value in copies.values()] == [float, int], "numpy's scalars become Python's"
    sparse = torch.eye(3).to_sparse()
    assert torch.equal(copied({"sparse": sparse})["sparse"].to_dense(), torch.eye(3))


class Colour(IntEnum):
    RED = 1


class Labelled(Tensor):
    """A tensor with more to it than numbers."""


@pytest.mark.parametrize(
    "value",
    [object(), len, np.zeros(2), Colour.RED, torch.zeros(1).as_subclass(Labelled)],
    ids=["object", "function", "array", "enum", "subclass"],
)
def test_what_no_file_can_store_is_named(value: object) -> None:
    kind = type(value).__name__
    with pytest.raises(NotPlainError) as raised:
        copied({"groups": [{"lr": 1.0}, {"hook": value}]})
    assert str(raised.value) == f"it['groups'][1]['hook'] is a {kind}, which a checkpoint cannot store"
