"""Hashes of the weights: what they notice, and when ranks compute them."""

import pytest
import torch
from torch import Tensor

from amptui.ranks.numbers.weights_check import WeightsCheck, WeightsHash

BITS = {4: torch.int32, 2: torch.int16, 8: torch.int64}


def weights(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Of several rows, of less than one, two of the same shape, and one in another memory format."""
    drawn = torch.Generator().manual_seed(1)
    shapes = ((90, 70), (33,), (33,), (), (0,))
    tensors = [torch.randn(shape, generator=drawn, dtype=torch.float64).to(dtype) for shape in shapes]
    image = torch.randn((4, 6, 3, 3), generator=drawn, dtype=torch.float64).to(dtype)
    return [*tensors, image.to(memory_format=torch.channels_last)]


def hash_of(tensors: list[Tensor]) -> int:
    return int(WeightsHash(tensors).compute().item())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_one_bit_anywhere_changes_the_hash(dtype: torch.dtype) -> None:
    tensors = weights(dtype)
    same = hash_of(tensors)
    assert hash_of(weights(dtype)) == same
    for tensor in tensors:
        bits = tensor.view(BITS[tensor.itemsize])
        for place in [index for index in (0, 1, 5000) if index < tensor.numel()]:
            at = tuple(int(index) for index in torch.unravel_index(torch.tensor(place), bits.shape))
            for bit in (0, 1, 8 * tensor.itemsize - 2):
                bits[at] ^= 1 << bit
                assert hash_of(tensors) != same
                bits[at] ^= 1 << bit
            tensor[at] = -tensor[at]  # the highest bit
            assert hash_of(tensors) != same
            tensor[at] = -tensor[at]
    assert hash_of(tensors) == same


@pytest.mark.parametrize("moved", ["swapped", "a row apart", "by one", "by a row", "between tensors"])
def test_the_same_values_in_other_places_have_another_hash(moved: str) -> None:
    """A plain sum over all bit patterns is equal for all of them."""
    first, second, third, *more = weights()
    flat = first.flatten()
    if moved in ("swapped", "a row apart"):
        here, there = (40, 41) if moved == "swapped" else (7, 7 + 2048)
        flat[[here, there]] = flat[[there, here]]
    elif moved != "between tensors":
        flat = flat.roll(1 if moved == "by one" else 2048)
    else:
        second, third = third, second
    assert hash_of([flat.view_as(first), second, third, *more]) != hash_of(weights())


def test_values_that_are_not_dense_or_not_aligned_have_the_hash_of_a_copy() -> None:
    room = torch.randn(200, 40)
    for view in (room[:, ::2], room.t(), room.view(-1)[1:]):
        assert hash_of([view]) == hash_of([view.clone(memory_format=torch.preserve_format)])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
def test_on_a_gpu_the_hash_arrives_later_and_is_that_of_the_cpu() -> None:
    device = torch.device("cuda", 0)
    tensors = [tensor.to(device) for tensor in weights()]
    assert int(WeightsHash(tensors).compute()) == hash_of(weights())
    check = WeightsCheck(tensors, device, leads=True)
    torch.cuda.set_sync_debug_mode("error")
    try:
        assert check.is_due()
        check.hash(2)
        step, value = check.newest()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    while step < 0:
        step, value = check.newest()
    assert step == 2
    assert value >= 0
