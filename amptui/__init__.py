"""The package's version and its public names, loaded when they are first asked for.

Importing ``amptui`` imports neither torch nor textual: the screen must stand before either is there.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amptui.data.sources import Data, DataRequest
    from amptui.experiment import Experiment

__version__ = "0.1.0"
__all__ = ["Data", "DataRequest", "Experiment", "__version__"]

_HOMES = {
    "Data": "amptui.data.sources",
    "DataRequest": "amptui.data.sources",
    "Experiment": "amptui.experiment",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'amptui' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
