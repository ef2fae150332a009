"""Hashes of the weights: what they notice, and when ranks compute them."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from amptui.ranks.numbers.weights_check import (
    MIN_HASH_SECONDS,
    HashNumbers,
    WeightsCheck,
    WeightsHash,
)

BITS = {4: torch.int32, 2: torch.int16, 8: torch.int64}


def weights(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Of several rows, of less than one, two of the same shape, and one in another memory format."""
    drawn = torch.Generator().manual_seed(1)
    shapes = ((90, 70), (33,), (33,), (), (0,))
    made = [torch.randn(shape, generator=drawn, dtype=torch.float64).to(dtype) for shape in shapes]
    image = torch.randn((4, 6, 3, 3), generator=drawn, dtype=torch.float64).to(dtype)
    return [*made, image.to(memory_format=torch.channels_last)]


def hash_of(tensors: list[Tensor]) -> int:
    return int(WeightsHash(tensors).compute().item())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_one_bit_anywhere_changes_the_hash(dtype: torch.dtype) -> None:
    made = weights(dtype)
    same = hash_of(made)
    assert hash_of(weights(dtype)) == same
    for tensor in made:
        bits = tensor.view(BITS[tensor.itemsize])
        for place in [index for index in (0, 1, 5000) if index < tensor.numel()]:
            at = tuple(int(each) for each in torch.unravel_index(torch.tensor(place), bits.shape))
            for bit in (0, 1, 8 * tensor.itemsize - 2):
                bits[at] ^= 1 << bit
                assert hash_of(made) != same
                bits[at] ^= 1 << bit
            tensor[at] = -tensor[at]  # the highest bit
            assert hash_of(made) != same
            tensor[at] = -tensor[at]
    assert hash_of(made) == same


def swap_neighbours(made: list[Tensor]) -> None:
    made[0].view(-1)[[40, 41]] = made[0].view(-1)[[41, 40]]


def swap_in_a_column(made: list[Tensor]) -> None:
    made[0].view(-1)[[7, 7 + 2048]] = made[0].view(-1)[[7 + 2048, 7]]


def shift(made: list[Tensor]) -> None:
    made[0].copy_(made[0].flatten().roll(1).view_as(made[0]))


def shift_by_a_row(made: list[Tensor]) -> None:
    made[0].copy_(made[0].flatten().roll(2048).view_as(made[0]))


def swap_tensors(made: list[Tensor]) -> None:
    made[1], made[2] = made[2], made[1]


@pytest.mark.parametrize("change", [swap_neighbours, swap_in_a_column, shift, shift_by_a_row, swap_tensors])
def test_the_same_values_in_other_places_have_another_hash(change: Callable[[list[Tensor]], None]) -> None:
    """A plain sum over all bit patterns is equal for all of them."""
    made = weights()
    same = hash_of(made)
    change(made)
    assert hash_of(made) != same


def test_values_that_are_not_dense_or_not_aligned_have_the_hash_of_a_copy() -> None:
    room = torch.randn(200, 40)
    for view in (room[:, ::2], room.t(), room.view(-1)[1:]):
        assert hash_of([view]) == hash_of([view.clone(memory_format=torch.preserve_format)])


def test_a_model_without_parameters_has_a_hash() -> None:
    assert hash_of([]) == 0


class Ranks:
    """Two ranks with the same weights, at a clock of their own."""

    def __init__(self) -> None:
        self.now = 0.0
        cpu = torch.device("cpu")
        self.made = [weights(), weights()]
        self.checks = [
            WeightsCheck(made, cpu, leads=rank == 0, clock=lambda: self.now)
            for rank, made in enumerate(self.made)
        ]

    def told(self) -> list[HashNumbers]:
        """What each rank tells."""
        return [check.numbers() for check in self.checks]

    def hash(self, step: int) -> None:
        """What all do after ``step``."""
        for check in self.checks:
            check.hash(step)


def test_ranks_hash_after_the_same_step_when_rank_0_asks() -> None:
    ranks = Ranks()
    first = ranks.told()
    assert [each.asks for each in first] == [True, False]
    assert all(each.step == -1 and math.isnan(each.value) for each in first)
    assert not ranks.told()[0].asks  # it has
    ranks.hash(9)
    second = ranks.told()
    assert [each.step for each in second] == [9, 9]
    assert second[0].value == second[1].value == int(second[0].value)
    assert not second[0].asks  # a second has to pass
    ranks.now = MIN_HASH_SECONDS
    ranks.made[1][1][5] += 1
    assert ranks.told()[0].asks
    ranks.hash(21)
    third = ranks.told()
    assert [each.step for each in third] == [21, 21]
    assert third[0].value == second[0].value != third[1].value


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
def test_on_a_gpu_the_hash_arrives_later_and_is_that_of_the_cpu() -> None:
    device = torch.device("cuda", 0)
    made = [each.to(device) for each in weights()]
    assert int(WeightsHash(made).compute()) == hash_of(weights())
    check = WeightsCheck(made, device, leads=True)
    torch.cuda.set_sync_debug_mode("error")
    try:
        assert check.numbers().asks
        check.hash(2)
        found = check.numbers()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    while found.step < 0:
        found = check.numbers()
    assert found.step == 2
    assert found.value >= 0
