"""Which data a run gets: the real ones where they are to be had, else a stand-in, as the request says."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from amptui.data.sources import Data, DataRequest
from amptui.errors import DataError


@dataclass(frozen=True, slots=True)
class Named:
    """Data that were not loaded yet."""

    name: str
    load: Callable[[], Data]


def real_or_stand_in(request: DataRequest, real: Named, stand_in: Named) -> Data:
    """``real`` or ``stand_in``.

    ``real`` raises ``DataError`` when the files are damaged or not to be had; ``auto`` then warns and
    falls back to the stand-in. Every kind raises ``DataError`` when ``request.stopping()``.
    """
    with torch.device("cpu"):  # a model file may have made another the default
        return _chosen(request, real, stand_in)


def _chosen(request: DataRequest, real: Named, stand_in: Named) -> Data:
    if request.kind == "synthetic":
        return stand_in.load()
    try:
        return _load(request, real)
    except DataError as error:
        request.raise_if_stopping()
        if request.kind == "real":
            raise DataError(error.what, mend=f"{error.mend}, or use --data synthetic") from error
        request.warn(f"training on {stand_in.name} instead of {real.name}: {error}")
        return stand_in.load()


def _load(request: DataRequest, real: Named) -> Data:
    """The real data; a folder that cannot be used is a trouble with them like any other."""
    try:
        return real.load()
    except OSError as error:
        what = f"{error.filename or request.data_dir} cannot be used ({error.strerror or error})"
        raise DataError(what, mend="choose another folder with --data-dir") from error
