"""What an experiment asks of its data and what it gets: the request and the data themselves."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from amptui.errors import DataError

DataKind = Literal["auto", "real", "synthetic"]


@dataclass(frozen=True, slots=True, eq=False)
class Arrays:
    """A whole data set in two tensors, kept on the training device where it fits.

    ``inputs`` [N, ...] of uint8 is converted per batch to float32 in [0, 1]; any other dtype is passed
    on as it is. ``targets`` [N, ...] is passed on as it is.
    """

    inputs: Tensor
    targets: Tensor

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.targets):
            raise ValueError(f"{len(self.inputs)} inputs but {len(self.targets)} targets")

    def __len__(self) -> int:
        return len(self.inputs)


Source = Arrays | Dataset[Any] | DataLoader[Any]
"""What can be trained on: two tensors, or whatever torch's own data tools read."""


@dataclass(frozen=True, slots=True)
class Data:
    """What an experiment trains on and is validated with."""

    name: str
    """As a person knows it: ``MNIST``."""
    real: bool
    """False for a synthetic stand-in; the screen says so for as long as the run lasts."""
    train: Source
    validation: Source | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far some work is: ``Progress("downloading ...", 3, 9, "bytes")``; None where it is not known."""

    detail: str
    done: int | None = None
    total: int | None = None
    unit: Literal["bytes", "samples"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRequest:
    """How the run wants its data."""

    data_dir: Path
    """Where data sets are looked for and downloaded to."""
    kind: DataKind = "auto"
    seed: int = 0
    report: Callable[[Progress], object] = lambda _progress: None
    """Told what is being done and how far it is."""
    stopping: Callable[[], bool] = lambda: False
    """Asked now and then during long work; true means: raise ``DataError`` and leave."""
    warn: Callable[[str], object] = lambda _text: None
    """Told what a person should know of the choice: why ``auto`` fell back to synthetic data, say."""

    def raise_if_stopping(self) -> None:
        """Leave long work with ``DataError`` if the run is to end."""
        if self.stopping():
            raise DataError("the run was stopped while its data was being prepared")
