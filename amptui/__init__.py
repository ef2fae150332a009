"""The package's version and its public names, loaded when they are first asked for.

Importing ``amptui`` imports neither torch nor textual: the screen must stand before either is there.
"""

from typing import TYPE_CHECKING

from amptui.base.version import __version__

if TYPE_CHECKING:
    from amptui.base.errors import ExperimentError
    from amptui.data.folder import ImageBatches, image_folder
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
    "ImageBatches",
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
    "AmpMonitor": "amptui.guest.amp_monitor",
    "watch": "amptui.guest.amp_monitor",
    "Data": "amptui.data.sources",
    "DataRequest": "amptui.data.sources",
    "Experiment": "amptui.recipe.experiment",
    "ExperimentError": "amptui.base.errors",
    "Arrays": "amptui.data.sources",
    "ImageBatches": "amptui.data.folder",
    "Monitor": "amptui.guest.monitor",
    "cifar10": "amptui.data.vision",
    "image_folder": "amptui.data.folder",
    "mnist": "amptui.data.vision",
    "observe": "amptui.guest.monitor",
    "read_text": "amptui.data.text_corpus",
    "text_data": "amptui.data.text_corpus",
    "warmup_cosine": "amptui.recipe.experiment",
    "weight_decay_groups": "amptui.recipe.experiment",
}


_FRAMEWORKS = ("accelerate", "fabric", "huggingface", "lightning")
"""Modules for packages that amptui does not require."""


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name in _FRAMEWORKS:
        return import_module(f"amptui.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'amptui' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
