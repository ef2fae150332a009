"""Chooses a run's data: the real data if available, else synthetic data, as the request says."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from amptui.data.sources import Data, DataRequest
from amptui.errors import DataError


@dataclass(frozen=True, slots=True)
class Named:
    """Data that is not loaded yet."""

    name: str
    load: Callable[[], Data]


def real_or_stand_in(request: DataRequest, real: Named, stand_in: Named) -> Data:
    """``real`` or ``stand_in``.

    For ``real``, raises ``DataError`` if the files are corrupt or unavailable; ``auto`` warns instead and
    falls back to the stand-in. Every kind raises ``DataError`` if ``request.stopping()``.
    """
    with torch.device("cpu"):  # a model file may have changed the default device
        return _chosen(request, real, stand_in)


def _chosen(request: DataRequest, real: Named, stand_in: Named) -> Data:
    if request.kind == "synthetic":
        return stand_in.load()
    try:
        return _load(request, real)
    except DataError as error:
        request.raise_if_stopping()
        if request.kind == "real":
            raise DataError(error.what, hint=f"{error.hint}, or use --data synthetic") from error
        request.warn(f"training on {stand_in.name} instead of {real.name}: {error}")
        return stand_in.load()


def _load(request: DataRequest, real: Named) -> Data:
    """The real data; an unusable folder raises DataError like any other problem with it."""
    try:
        return real.load()
    except OSError as error:
        what = f"cannot use {error.filename or request.data_dir} ({error.strerror or error})"
        raise DataError(what, hint="choose another folder with --data-dir") from error
