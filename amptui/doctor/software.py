"""The software that training needs: what is installed, whether it is new enough, whether torch loads."""

import importlib
import platform
import re
from importlib import metadata

from amptui import __version__
from amptui.doctor.check import Check, broken, fine, one_line

NEEDED = {
    "torch": (2, 9),
    "torchvision": (0, 24),
    "pillow": (10,),
    "numpy": (1, 26),
    "textual": (8,),
    "psutil": (6,),
    "nvidia-ml-py": (12, 560),
}
"""The packages amptui depends on and the oldest version of each that will do, as in pyproject.toml."""


def software_checks() -> list[Check]:
    """Python and amptui, each needed package, and one real import of torch."""
    python = platform.python_version()
    own = fine("amptui", f"amptui {__version__} on Python {python}", amptui=__version__, python=python)
    return [own, *(check_package(name, least) for name, least in NEEDED.items()), check_torch_loads()]


def check_package(name: str, least: tuple[int, ...]) -> Check:
    """Whether the package ``name`` is installed in version ``least`` or newer."""
    needed = f"{name}>={'.'.join(map(str, least))}"
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return broken(name, f"{name} is not installed", f"pip install '{needed}'", version=None)
    if release(version) < least:
        return broken(name, f"{name} {version} is too old", f"pip install '{needed}'", version=version)
    return fine(name, f"{name} {version}", version=version)


def check_torch_loads() -> Check:
    """Whether ``import torch`` works: a wheel for another system or a missing library shows only there."""
    try:
        torch = importlib.import_module("torch")
        built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
        text = f"torch {torch.__version__} loads, {built}"
    except Exception as error:  # noqa: BLE001 - a package that is broken raises what it likes
        why = f"{type(error).__name__}: {one_line(error)}"
        return broken("torch-loads", f"torch does not load: {why}", "install torch again in this environment")
    return fine("torch-loads", text)


def release(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: ``2.15.0+cu132`` is (2, 15, 0)."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()
