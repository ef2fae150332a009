"""The two image data sets, MNIST and CIFAR-10: the real one where it is to be had, else a stand-in."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from amptui.data.choice import Named, real_or_stand_in
from amptui.data.cifar import read_cifar10
from amptui.data.mnist import read_mnist
from amptui.data.sources import Arrays, Data, DataRequest, Progress
from amptui.data.synthetic import TellDone, digits, objects


def mnist(request: DataRequest) -> Data:
    """MNIST's 60,000 and 10,000 digits, uint8 [N, 1, 28, 28], or as many synthetic ones.

    ``real`` raises ``DataError`` when the files are damaged or not to be had; ``auto`` then warns and
    falls back to ``synthetic``. Every kind raises ``DataError`` when ``request.stopping()``.
    """
    stand_in = _StandIn("synthetic digits", digits, 60_000, 10_000)
    return _real_or_drawn(request, "MNIST", read_mnist, stand_in)


def cifar10(request: DataRequest) -> Data:
    """CIFAR-10's 50,000 and 10,000 images, uint8 [N, 3, 32, 32], or as many synthetic ones.

    Kinds and errors are those of :func:`mnist`.
    """
    stand_in = _StandIn("synthetic objects", objects, 50_000, 10_000)
    return _real_or_drawn(request, "CIFAR-10", read_cifar10, stand_in)


class _Draw(Protocol):
    def __call__(self, samples: int, *, seed: int, progress: TellDone) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True, slots=True)
class _StandIn:
    """What is drawn where there are no real images."""

    name: str
    draw: _Draw
    train_samples: int
    validation_samples: int


def _real_or_drawn(
    request: DataRequest,
    name: str,
    read: Callable[[DataRequest], tuple[Arrays, Arrays]],
    stand_in: _StandIn,
) -> Data:
    return real_or_stand_in(
        request,
        Named(name, lambda: Data(name, True, *read(request))),
        Named(stand_in.name, lambda: _drawn(request, stand_in)),
    )


def _drawn(request: DataRequest, stand_in: _StandIn) -> Data:
    """The stand-in: the same images whatever the run's seed, as MNIST's are, so that runs can be compared."""
    train = _draw(request, stand_in, stand_in.train_samples, seed=0)
    validation = _draw(request, stand_in, stand_in.validation_samples, seed=1)
    return Data(stand_in.name, False, train, validation)


def _draw(request: DataRequest, stand_in: _StandIn, samples: int, *, seed: int) -> Arrays:
    def progress(done: int) -> None:
        request.raise_if_stopping()
        request.report(Progress(f"drawing {stand_in.name}", done, samples, "samples"))

    return Arrays(*stand_in.draw(samples, seed=seed, progress=progress))
