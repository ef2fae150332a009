"""The stand-ins: the same for a seed, of every class, and hard enough to be worth a network's while."""

from functools import cache

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from amptui.data.synthetic import synthetic_images

SAMPLES = 5000
SEED, OTHER_SEED = 1, 2

LIKE_MNIST, LIKE_CIFAR10 = (1, 28, 28), (3, 32, 32)
BOTH = pytest.mark.parametrize("shape", [LIKE_MNIST, LIKE_CIFAR10], ids=["mnist", "cifar10"])

Shape = tuple[int, int, int]


@cache
def drawn(shape: Shape, seed: int, samples: int = SAMPLES) -> tuple[Tensor, Tensor]:
    return synthetic_images(samples, shape, seed=seed, inverted=shape == LIKE_CIFAR10)


@BOTH
def test_a_seed_always_draws_the_same_and_leaves_the_global_random_state_alone(shape: Shape) -> None:
    torch.manual_seed(2)
    before = torch.get_rng_state()
    images, labels = drawn.__wrapped__(shape, SEED)
    assert torch.equal(torch.get_rng_state(), before)
    assert (images.shape, images.dtype) == ((SAMPLES, *shape), torch.uint8)
    assert (labels.shape, labels.dtype) == ((SAMPLES,), torch.int64)
    assert all(map(torch.equal, drawn(shape, SEED), (images, labels)))
    assert not any(map(torch.equal, drawn(shape, OTHER_SEED), (images, labels)))


@pytest.mark.parametrize("samples", [1, 4100])
def test_progress_climbs_to_the_number_of_samples(samples: int) -> None:
    told: list[int] = []
    images, _ = synthetic_images(samples, LIKE_MNIST, seed=0, progress=told.append)
    assert len(images) == samples
    assert told == sorted(set(told))
    assert told[-1] == samples


@BOTH
def test_no_two_images_are_alike_not_even_across_seeds(shape: Shape) -> None:
    images = torch.cat([drawn(shape, seed)[0] for seed in (SEED, OTHER_SEED)])
    assert len(torch.unique(images.flatten(1), dim=0)) == 2 * SAMPLES


def test_white_on_black_or_on_grey_half_of_it_negative() -> None:
    """Of negatives a linear model learns little: each class has as many channels of either sign."""
    black, _ = drawn(LIKE_MNIST, SEED)
    grey, labels = drawn(LIKE_CIFAR10, SEED)
    assert black.eq(0).float().mean() > 0.4
    assert abs(grey.float().mean() - 127.5) < 2
    for images in (grey[labels == label].float() for label in range(10)):
        # The mean image of a class is nearly plain, though each image has a pattern.
        assert images.mean(0).std() < 0.2 * images.std()


def test_a_class_has_patterns_of_its_own_that_every_seed_draws() -> None:
    """The nearest of the first images is one of the same class far more often than one in ten."""
    (images, labels), (unseen, their_labels) = drawn(LIKE_MNIST, SEED), drawn(LIKE_MNIST, OTHER_SEED, 200)
    coarse, unseen_coarse = (
        functional.normalize(functional.avg_pool2d(each.float(), 4).flatten(1)) for each in (images, unseen)
    )
    nearest = (unseen_coarse @ coarse.T).argmax(1)
    assert (labels[nearest] == their_labels).float().mean() > 0.6
