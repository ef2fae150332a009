"""Model files as modules that every process finds by name: workers import what is sent to them."""

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

__path__: list[str] = []
"""Makes this module a package in name: what is imported as a part of it, a finder below looks for."""


def import_file(path: Path) -> ModuleType:
    """Run the file as a module, anew; it may import its neighbours, as a script may.

    Its name is its own, as if it were imported from its folder. Where that means another module it is a
    part of this one that spells the path, which every process with amptui can import.
    """
    folder = str(path.resolve().parent)
    if sys.path[:1] != [folder]:
        sys.path.insert(0, folder)
    importlib.invalidate_caches()  # it may be newer than the last look at its folder
    name = _name(path)
    sys.modules.pop(name, None)
    return importlib.import_module(name)


def _name(path: Path) -> str:
    spelled = f"{__name__}.{os.fsencode(path.resolve()).hex()}"
    if "." in path.stem or path.stem == "__main__":
        return spelled
    loaded = sys.modules.get(path.stem)
    if loaded is not None:
        origin = getattr(loaded, "__file__", None)
    else:
        found = importlib.util.find_spec(path.stem)
        origin = found.origin if found is not None else None
    return path.stem if _is_same(origin, path) else spelled


def _is_same(origin: str | None, path: Path) -> bool:
    try:
        return origin is not None and path.samefile(origin)
    except OSError:
        return False


class _Spelled:
    """Finds a module whose name spells the path of its file."""

    @staticmethod
    def find_spec(
        name: str,
        path: Sequence[str] | None = None,  # noqa: ARG004 - the protocol's
        target: ModuleType | None = None,  # noqa: ARG004 - the protocol's
    ) -> ModuleSpec | None:
        """Of ``amptui.modelfile.2f746d70...``; None for any other."""
        parent, _, last = name.rpartition(".")
        if parent != __name__:
            return None
        try:
            file = os.fsdecode(bytes.fromhex(last))
        except ValueError:
            return None
        return importlib.util.spec_from_file_location(name, file)


sys.meta_path.append(_Spelled)  # in every process that imports a part of this module
