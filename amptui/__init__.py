"""The package's version and its public names, loaded when they are first asked for.

Importing ``amptui`` imports neither torch nor textual: the screen must stand before either is there.
"""

from typing import TYPE_CHECKING

from amptui.base.version import __version__

if TYPE_CHECKING:
    from amptui.base.errors import ExperimentError
    from amptui.data.folder import image_folder
    from amptui.data.sources import Arrays, Data, DataRequest
    from amptui.data.text_corpus import read_text, text_data
    from amptui.data.vision import cifar10, mnist
    from amptui.guest.amp_monitor import AmpMonitor, watch
    from amptui.guest.monitor import Monitor, observe
    from amptui.recipe.experiment import Experiment, warmup_cosine, weight_decay_groups

__all__ = [
    "AmpMonitor",
    "Arrays",
    "Data",
    "DataRequest",
    "Experiment",
    "ExperimentError",
    "Monitor",
    "__version__",
    "cifar10",
    "image_folder",
    "mnist",
    "observe",
    "read_text",
    "text_data",
    "warmup_cosine",
    "watch",
    "weight_decay_groups",
]

_HOMES = {
    "amptui.base.errors": ("ExperimentError",),
    "amptui.data.folder": ("image_folder",),
    "amptui.data.sources": ("Arrays", "Data", "DataRequest"),
    "amptui.data.text_corpus": ("read_text", "text_data"),
    "amptui.data.vision": ("cifar10", "mnist"),
    "amptui.guest.amp_monitor": ("AmpMonitor", "watch"),
    "amptui.guest.monitor": ("Monitor", "observe"),
    "amptui.recipe.experiment": ("Experiment", "warmup_cosine", "weight_decay_groups"),
}

_FRAMEWORKS = ("accelerate", "fabric", "huggingface", "lightning")
"""Modules for packages that amptui does not require."""


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name in _FRAMEWORKS:
        return import_module(f"amptui.{name}")
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'amptui' has no attribute {name!r}")
