"""Imports model files as modules that DataLoader workers can import by the same name.

It imports the standard library alone: a worker loads it before torch, with the file's folder on the path.
"""

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

__path__: list[str] = []
"""Makes Python look for submodules of this module; the finder below provides them."""


def import_file(path: Path) -> ModuleType:
    """Run the file as a fresh module; like a script, it may import its neighbours.

    It is named after the file, as if imported from its folder. If another module has that name, it becomes a
    submodule of this one whose name encodes the path, which every process with amptui can import.
    """
    folder = str(path.resolve().parent)
    if sys.path[:1] != [folder]:
        sys.path.insert(0, folder)
    importlib.invalidate_caches()  # the file may be newer than the cached listing of its folder
    name = _name(path)
    sys.modules.pop(name, None)
    return importlib.import_module(name)


def _name(path: Path) -> str:
    encoded = f"{__name__}.{os.fsencode(path.resolve()).hex()}"
    if "." in path.stem or path.stem == "__main__":
        return encoded
    loaded = sys.modules.get(path.stem)
    if loaded is not None:
        origin = getattr(loaded, "__file__", None)
    else:
        module_spec = importlib.util.find_spec(path.stem)
        origin = module_spec.origin if module_spec is not None else None
    try:
        return path.stem if origin is not None and path.samefile(origin) else encoded
    except OSError:
        return encoded


class _PathFinder:
    """Finds a module whose name encodes the path of its file."""

    @staticmethod
    def find_spec(
        name: str,
        path: Sequence[str] | None = None,  # noqa: ARG004 - the protocol's
        target: ModuleType | None = None,  # noqa: ARG004 - the protocol's
    ) -> ModuleSpec | None:
        """The spec of ``amptui.recipe.modelfile.2f746d70...``; None for any other name."""
        parent, _, last = name.rpartition(".")
        if parent != __name__:
            return None
        try:
            file = os.fsdecode(bytes.fromhex(last))
        except ValueError:
            return None
        return importlib.util.spec_from_file_location(name, file)


sys.meta_path.append(_PathFinder)  # in every process that imports a submodule of this one
