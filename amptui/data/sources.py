"""What an experiment asks for and what it gets: the data request, the data, real or synthetic."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from amptui.base.errors import DataError

DataKind = Literal["auto", "real", "synthetic"]


@dataclass(frozen=True, slots=True, eq=False)
class Arrays:
    """A whole data set in two tensors, kept on the training device if it fits.

    ``inputs`` [N, ...] of uint8 are converted to float32 in [0, 1] batch by batch; other dtypes and
    ``targets`` [N, ...] stay as they are.
    """

    inputs: Tensor
    targets: Tensor

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.targets):
            raise ValueError(f"{len(self.inputs)} inputs but {len(self.targets)} targets")

    def __len__(self) -> int:
        return len(self.inputs)


Source = Arrays | Dataset[Any] | DataLoader[Any]
"""What a model can train on: two tensors, or a torch Dataset or DataLoader."""


@dataclass(frozen=True, slots=True)
class Data:
    """What an experiment trains on and validates with."""

    name: str
    """The name on the screen: ``MNIST``."""
    real: bool
    """False for synthetic data; the screen says so during the whole run."""
    train: Source
    validation: Source | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRequest:
    """Which data the run asks for."""

    data_dir: Path
    """The folder of data sets, also for downloads."""
    kind: DataKind = "auto"
    seed: int = 0
    workers: int | None = None
    """Processes that shall load samples, for a DataLoader of one's own; None leaves it to the experiment."""
    report: Callable[..., object] = lambda *_progress: None
    """Called with the progress of long work: ``report("downloading ...", 3, 9, "bytes")``, of which all but
    the first may be left out, and None is unknown."""
    stopping: Callable[[], bool] = lambda: False
    """Called now and then during long work; if it returns True, raise ``DataError``."""
    warn: Callable[[str], object] = lambda _text: None
    """Called with what the user should know, such as why ``auto`` fell back to synthetic data."""

    def raise_if_stopping(self) -> None:
        """Raise ``DataError`` if the run should stop."""
        if self.stopping():
            raise DataError("the run was stopped while its data was being prepared")


def real_or_stand_in(
    request: DataRequest,
    name: str,
    load: Callable[[], Data],
    stand_in: str,
    load_stand_in: Callable[[], Data],
) -> Data:
    """The data of that ``name``, or of the ``stand_in``'s.

    For ``real``, raises ``DataError`` if the files are corrupt or unavailable; ``auto`` warns instead and
    falls back to the stand-in. Every kind raises ``DataError`` if ``request.stopping()``.
    """
    with torch.device("cpu"):  # a model file may have changed the default device
        if request.kind == "synthetic":
            return load_stand_in()
        try:
            return load()
        except OSError as error:
            what = f"cannot use {error.filename or request.data_dir} ({error.strerror or error})"
            problem = DataError(what, hint="choose another folder with --data-dir")
        except DataError as error:
            problem = error
        request.raise_if_stopping()
        if request.kind == "real":
            raise DataError(problem.what, hint=f"{problem.hint}, or use --data synthetic") from problem
        request.warn(f"training on {stand_in} instead of {name}: {problem}")
        return load_stand_in()
