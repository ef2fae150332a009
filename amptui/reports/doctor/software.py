"""The software that training needs: what is installed, whether it is new enough, whether torch imports."""

import importlib
import platform
import re
from importlib import metadata

from amptui.base.version import __version__
from amptui.reports.doctor.check import Check, broken, fine, one_line

NEEDED = {
    "torch": (2, 9),
    "torchvision": (0, 24),
    "pillow": (10,),
    "numpy": (1, 26),
    "orjson": (3, 10),
    "textual": (8,),
    "psutil": (6,),
    "nvidia-ml-py": (12, 560),
}
"""The packages amptui depends on and the oldest version of each that it supports, as in pyproject.toml."""


def software_checks() -> list[Check]:
    """One line with all versions, each package that is missing or too old, and a real import of torch."""
    versions = {name: installed(name) for name in NEEDED}
    python = platform.python_version()
    packages = (f"{name} {version}" for name, version in versions.items() if version)
    text = ", ".join([f"amptui {__version__}", f"Python {python}", *packages])
    own = fine("amptui", text, amptui=__version__, python=python, **versions)
    checks = (check_package(name, versions[name], least) for name, least in NEEDED.items())
    return [own, *filter(None, checks), check_torch_loads()]


def check_package(name: str, version: str | None, least: tuple[int, ...]) -> Check | None:
    """The problem with package ``name``, installed in ``version``; None if that is ``least`` or newer."""
    if version is not None and release(version) >= least:
        return None
    text = f"{name} is not installed" if version is None else f"{name} {version} is too old"
    return broken(name, text, f"pip install '{name}>={'.'.join(map(str, least))}'", version=version)


def check_torch_loads() -> Check:
    """Whether ``import torch`` works: only that finds a wheel for another system or a missing library."""
    try:
        torch = importlib.import_module("torch")
        versions = {"CUDA": torch.version.cuda, "ROCm": torch.version.hip}
        built = next((f"built for {name} {number}" for name, number in versions.items() if number), "")
        built = built or "built without CUDA"
        text = f"torch {torch.__version__} imports, {built}"
    except Exception as error:  # noqa: BLE001 - a package that is broken raises what it likes
        why = f"{type(error).__name__}: {one_line(error)}"
        return broken("torch-loads", f"cannot import torch: {why}", "reinstall torch in this environment")
    return fine("torch-loads", text)


def compile_checks() -> list[Check]:
    """Whether ``--compile`` finds its compiler; training does not need one."""
    from amptui.engine.compilation import missing_for_compile
    from amptui.engine.setup import choose_device

    missing = missing_for_compile(choose_device("auto"))
    if missing is None:
        return [fine("compile", "torch.compile finds its compiler", usable=True)]
    text = f"--compile does not work here: {missing.what}"
    return [Check(name="compile", severity="info", text=text, hint=missing.hint, facts={"usable": False})]


def installed(name: str) -> str | None:
    """The version of a package; None if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def release(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: ``2.15.0+cu132`` is (2, 15, 0)."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()
