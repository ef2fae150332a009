"""The stand-ins: the same for a seed, of every class, and hard enough to be worth a network's while."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from amptui.data.glyphs import FIELD_PIXELS, digit_fields, object_fields, object_outlines
from amptui.data.synthetic import digits, objects

DRAWS = [pytest.param(digits, (1, 28, 28), id="digits"), pytest.param(objects, (3, 32, 32), id="objects")]


@pytest.mark.parametrize(("draw", "shape"), DRAWS)
def test_images_and_labels_have_the_form_of_the_real_ones(draw: Any, shape: tuple[int, ...]) -> None:
    images, labels = draw(600, seed=0)
    assert images.shape == (600, *shape)
    assert images.dtype == torch.uint8
    assert labels.shape == (600,)
    assert labels.dtype == torch.int64


@pytest.mark.parametrize(("draw", "shape"), DRAWS)
def test_a_seed_always_draws_the_same(draw: Any, shape: tuple[int, ...]) -> None:
    del shape
    torch.manual_seed(1)
    first, first_labels = draw(600, seed=5)
    torch.manual_seed(2)
    again, again_labels = draw(600, seed=5)
    other, _ = draw(600, seed=6)
    assert torch.equal(first, again)
    assert torch.equal(first_labels, again_labels)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(("draw", "shape"), DRAWS)
def test_the_global_random_state_is_left_alone(draw: Any, shape: tuple[int, ...]) -> None:
    del shape
    before = torch.get_rng_state()
    draw(10, seed=0)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("draw", "shape"), DRAWS)
def test_classes_are_evenly_drawn(draw: Any, shape: tuple[int, ...]) -> None:
    del shape
    _, labels = draw(5000, seed=0)
    # 500 are expected of each, with a standard deviation of 21: 100 is almost five of them.
    assert (torch.bincount(labels, minlength=10) - 500).abs().max() < 100


@pytest.mark.parametrize("samples", [1, 1100])
def test_progress_climbs_to_the_number_of_samples(samples: int) -> None:
    told: list[int] = []
    images, _ = digits(samples, seed=0, progress=told.append)
    assert len(images) == samples
    assert told == sorted(set(told))
    assert told[-1] == samples


@pytest.mark.parametrize(("draw", "shape"), DRAWS)
def test_what_progress_raises_ends_the_drawing(draw: Any, shape: tuple[int, ...]) -> None:
    del shape
    told = []

    def stop(done: int) -> None:
        told.append(done)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        draw(100_000, seed=0, progress=stop)
    assert len(told) == 1


def test_digits_are_white_ink_on_black_away_from_the_edge() -> None:
    images, _ = digits(1000, seed=0)
    ink = images.squeeze(1).float()
    assert (ink.flatten(1).amax(dim=1) >= 150).all()
    edge = torch.ones(28, 28, dtype=torch.bool)
    edge[2:-2, 2:-2] = False
    assert ink[:, edge].mean() < 0.1 * ink[:, ~edge].mean()


def test_no_two_digits_are_alike() -> None:
    images, _ = digits(2000, seed=0)
    assert len(torch.unique(images.flatten(1), dim=0)) == 2000


def test_glyphs_bend_but_never_vanish() -> None:
    fields = digit_fields(7, torch.Generator().manual_seed(0))
    assert fields.shape == (10, 7, FIELD_PIXELS, FIELD_PIXELS)
    assert torch.isfinite(fields).all()
    assert (fields.amin(dim=(2, 3)) < 0.06).all()
    assert len(torch.unique(fields.flatten(0, 1).flatten(1), dim=0)) == 70


def test_outlines_have_an_inside_where_the_shape_is() -> None:
    fields = object_fields(3, torch.Generator().manual_seed(0))
    assert torch.isfinite(fields).all()
    inside = dict(zip(object_outlines(), (fields < 0).float().mean(dim=(1, 2, 3)).tolist(), strict=True))
    # Areas of the unbent outlines by the field's, 3.2 x 3.2.
    assert inside["disc"] == pytest.approx(torch.pi * 0.85**2 / 3.2**2, rel=0.15)
    assert inside["ring"] == pytest.approx(torch.pi * (0.95**2 - 0.5**2) / 3.2**2, rel=0.15)
    assert inside["square"] == pytest.approx(1.56**2 / 3.2**2, rel=0.15)
    assert inside["triangle"] == pytest.approx(0.95 * 1.7 / 3.2**2, rel=0.15)
    middle = FIELD_PIXELS // 2
    assert (fields[list(object_outlines()).index("ring"), :, middle, middle] > 0).all()


def test_neither_colour_nor_brightness_tells_an_object() -> None:
    images, labels = objects(4000, seed=0)
    means = images.float().mean(dim=(2, 3))
    of_class = torch.stack([means[labels == label].mean(dim=0) for label in range(10)])
    spread = means.std(dim=0) / (labels.bincount().min() ** 0.5)
    assert ((of_class - means.mean(dim=0)).abs() < 4.5 * spread).all()


def accuracy_after_training(
    model: nn.Module, data: tuple[Tensor, Tensor], unseen: tuple[Tensor, Tensor], *, epochs: int, lr: float
) -> float:
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


def test_digits_need_more_than_a_linear_model() -> None:
    data, unseen = digits(5000, seed=1), digits(1000, seed=2)
    torch.manual_seed(0)
    linear = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    linear_accuracy = accuracy_after_training(linear, data, unseen, epochs=15, lr=2e-3)
    cnn_accuracy = accuracy_after_training(small_cnn(1, 28), data, unseen, epochs=1, lr=1e-2)
    assert 0.6 < linear_accuracy < 0.9
    assert cnn_accuracy > 0.92


def test_objects_are_beyond_a_linear_model_and_within_a_networks_reach() -> None:
    data, unseen = objects(3000, seed=1), objects(500, seed=2)
    torch.manual_seed(0)
    linear = nn.Sequential(nn.Flatten(), nn.Linear(3072, 10))
    assert accuracy_after_training(linear, data, unseen, epochs=8, lr=1e-3) < 0.2
    assert accuracy_after_training(small_cnn(3, 32), data, unseen, epochs=2, lr=1e-2) > 0.35
