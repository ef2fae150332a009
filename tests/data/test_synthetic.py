"""The stand-ins: the same for a seed, of every class, and hard enough to be worth a network's while."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from amptui.data.synthetic import synthetic_images

SAMPLES = 5000


SEED, OTHER_SEED = 1, 2

LIKE_MNIST, LIKE_CIFAR10 = (1, 28, 28), (3, 32, 32)

Shape = tuple[int, int, int]
Drawn = tuple[Tensor, Tensor]


def drawn(shape: Shape, seed: int, samples: int = SAMPLES) -> Drawn:
    return synthetic_images(samples, shape, seed=seed, inverted=shape == LIKE_CIFAR10)


@pytest.fixture(scope="module", params=[LIKE_MNIST, LIKE_CIFAR10], ids=["mnist", "cifar10"])
def shape(request: pytest.FixtureRequest) -> Shape:
    image_shape: Shape = request.param
    return image_shape


@pytest.fixture(scope="module")
def sample(shape: Shape) -> Drawn:
    return drawn(shape, SEED)


@pytest.fixture(scope="module")
def other(shape: Shape) -> Drawn:
    return drawn(shape, OTHER_SEED)


def test_images_and_labels_have_the_form_of_the_real_ones(shape: Shape, sample: Drawn) -> None:
    images, labels = sample
    assert images.shape == (SAMPLES, *shape)
    assert images.dtype == torch.uint8
    assert labels.shape == (SAMPLES,)
    assert labels.dtype == torch.int64


def test_a_seed_always_draws_the_same_and_leaves_the_global_random_state_alone(
    shape: Shape, sample: Drawn, other: Drawn
) -> None:
    torch.manual_seed(2)
    before = torch.get_rng_state()
    images, labels = drawn(shape, SEED)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(sample[0], images)
    assert torch.equal(sample[1], labels)
    assert not torch.equal(other[0], images)
    assert not torch.equal(other[1], labels)


def test_classes_are_evenly_drawn(sample: Drawn) -> None:
    # 500 are expected of each, with a standard deviation of 21: 100 is almost five of them.
    assert (torch.bincount(sample[1], minlength=10) - SAMPLES // 10).abs().max() < 100


@pytest.mark.parametrize("samples", [1, 4100])
def test_progress_climbs_to_the_number_of_samples(samples: int) -> None:
    told: list[int] = []
    images, _ = synthetic_images(samples, LIKE_MNIST, seed=0, progress=told.append)
    assert len(images) == samples
    assert told == sorted(set(told))
    assert told[-1] == samples


def test_what_progress_raises_ends_the_drawing() -> None:
    told = []

    def stop(finished: int) -> None:
        told.append(finished)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        synthetic_images(100_000, LIKE_MNIST, seed=0, progress=stop)
    assert len(told) == 1


def test_no_two_images_are_alike_not_even_across_seeds(sample: Drawn, other: Drawn) -> None:
    images = torch.cat([sample[0], other[0]])
    assert len(torch.unique(images.flatten(1), dim=0)) == 2 * SAMPLES


def accuracy_after_training(model: nn.Module, data: Drawn, unseen: Drawn, *, epochs: int, lr: float) -> float:
    """On ``unseen``, after Adam with a one-cycle schedule and batches of 50."""
    generator = torch.Generator().manual_seed(0)
    images, labels = data[0].float().div(255).sub(0.2), data[1]
    steps = epochs * (len(images) // 50)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps)
    for _ in range(epochs):
        for batch in torch.randperm(len(images), generator=generator).view(-1, 50):
            optimizer.zero_grad()
            functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
            schedule.step()
    model.eval()
    with torch.no_grad():
        predicted = model(unseen[0].float().div(255).sub(0.2)).argmax(dim=1)
    return float((predicted == unseen[1]).float().mean())


def first(samples: int, data: Drawn) -> Drawn:
    return data[0][:samples], data[1][:samples]


def half(data: Drawn) -> Drawn:
    """In half of the pixels either way: a quarter of a network's time."""
    return functional.avg_pool2d(data[0].float(), 2), data[1]


def small_cnn(channels: int, pixels: int) -> nn.Module:
    """Three convolutions, pooled after each, and one linear layer."""
    layers: list[nn.Module] = []
    for width in (16, 32, 64):
        layers += [
            nn.Conv2d(channels, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
        channels, pixels = width, pixels // 2
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * pixels**2, 10))


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("shape_drawn", "linear_between", "cnn_at_least"),
    [(LIKE_MNIST, (0.4, 0.9), 0.92), (LIKE_CIFAR10, (0.0, 0.3), 0.8)],
    ids=["mnist", "cifar10"],
)
def test_images_need_more_than_a_linear_model_and_are_within_a_networks_reach(
    shape_drawn: Shape, linear_between: tuple[float, float], cnn_at_least: float
) -> None:
    """The negatives among those like CIFAR-10's are beyond a linear model."""
    data, unseen = drawn(shape_drawn, SEED), first(1000, drawn(shape_drawn, OTHER_SEED))
    channels, pixels, _ = shape_drawn
    torch.manual_seed(0)
    linear = nn.Sequential(nn.Flatten(), nn.Linear(channels * pixels**2, 10))
    linear_accuracy = accuracy_after_training(
        linear, data, unseen, epochs=6, lr=4e-3 if channels == 1 else 1e-3
    )
    cnn = small_cnn(channels, pixels // 2)
    cnn_accuracy = accuracy_after_training(cnn, half(data), half(unseen), epochs=channels, lr=1e-2)
    assert linear_between[0] <= linear_accuracy < linear_between[1]
    assert cnn_accuracy > cnn_at_least
