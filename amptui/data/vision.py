"""The two image data sets, MNIST and CIFAR-10: the real one if available, else a synthetic one."""

from amptui.data.cifar import read_cifar10
from amptui.data.mnist import read_mnist
from amptui.data.sources import Arrays, Data, DataRequest, Named, Progress, real_or_stand_in
from amptui.data.synthetic import synthetic_images

_VALIDATION_SAMPLES = 10_000
"""Of both sets."""


def mnist(request: DataRequest) -> Data:
    """MNIST's 60,000 and 10,000 digits, uint8 [N, 1, 28, 28], or as many synthetic ones.

    For ``real``, raises ``DataError`` if the files are corrupt or unavailable; ``auto`` warns instead and
    falls back to ``synthetic``. Every kind raises ``DataError`` if ``request.stopping()``.
    """
    real = Named("MNIST", lambda: Data("MNIST", True, *read_mnist(request)))
    return real_or_stand_in(request, real, _stand_in(request, 60_000, (1, 28, 28), inverted=False))


def cifar10(request: DataRequest) -> Data:
    """CIFAR-10's 50,000 and 10,000 images, uint8 [N, 3, 32, 32], or as many synthetic ones.

    Kinds and errors are as for :func:`mnist`.
    """
    real = Named("CIFAR-10", lambda: Data("CIFAR-10", True, *read_cifar10(request)))
    return real_or_stand_in(request, real, _stand_in(request, 50_000, (3, 32, 32), inverted=True))


def _stand_in(
    request: DataRequest, train_samples: int, shape: tuple[int, int, int], *, inverted: bool
) -> Named:
    """Synthetic images, the same for every seed of the run, so that runs can be compared."""
    name = "synthetic images"

    def drawn(samples: int, seed: int) -> Arrays:
        def progress(finished: int) -> None:
            request.raise_if_stopping()
            request.report(Progress(f"generating {name}", finished, samples, "samples"))

        return Arrays(*synthetic_images(samples, shape, seed=seed, inverted=inverted, progress=progress))

    return Named(name, lambda: Data(name, False, drawn(train_samples, 0), drawn(_VALIDATION_SAMPLES, 1)))
