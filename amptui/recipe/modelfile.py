"""From MODEL on the command line to an experiment: imports its module, finds the class, sets its fields.

A model file is imported as a module that DataLoader workers can import by the same name.
"""

import importlib
import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import get_type_hints

from amptui.base.errors import ExperimentError
from amptui.recipe.experiment import Experiment
from amptui.recipe.model_options import parse_options
from amptui.recipe.modelspec import ModelSpec

__path__: list[str] = []
"""Makes Python look for submodules of this module; the finder below provides them."""


def load_class(spec: ModelSpec) -> type[Experiment]:
    """The experiment class that ``spec`` names; runs the code of its module.

    Raises ExperimentError if there is no such class. Exceptions of the module pass through.
    """
    module = import_file(spec.path) if spec.path else _import_module(spec.module)
    if spec.class_name:
        experiment = getattr(module, spec.class_name, None)
        if not (isinstance(experiment, type) and issubclass(experiment, Experiment)):
            raise ExperimentError(
                f"{spec.text}: {spec.class_name} is not an Experiment", hint=_class_hint(module, spec)
            )
        return experiment
    experiments = _experiments_in(module)
    if len(experiments) != 1:
        what = "defines no Experiment" if not experiments else f"defines {len(experiments)} experiments"
        raise ExperimentError(f"{spec.text} {what}", hint=_class_hint(module, spec))
    return experiments[0]


def build_experiment(experiment_class: type[Experiment], settings: Mapping[str, str]) -> Experiment:
    """An experiment with the fields in ``settings`` parsed by their types.

    Raises UsageError for an unknown field, a value of the wrong type, and fewer than 1 epoch or sample per
    step.
    """
    hints = get_type_hints(experiment_class)
    types = {field.name: hints[field.name] for field in fields(experiment_class)}
    return experiment_class(**parse_options(experiment_class.__name__, types, settings))


def _import_module(name: str) -> ModuleType:
    # Find modules in the current folder, as `python -m` does.
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    return importlib.import_module(name)


def _experiments_in(module: ModuleType) -> list[type[Experiment]]:
    """The experiments that the module defines, not those it imports."""
    return [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Experiment)
        and value.__module__ == module.__name__
        and not value.__name__.startswith("_")
    ]


def _class_hint(module: ModuleType, spec: ModelSpec) -> str:
    names = [experiment.__name__ for experiment in _experiments_in(module)]
    if names:
        place = spec.text.partition(":")[0]
        return "choose " + " or ".join(f"{place}:{name}" for name in names)
    return "define a subclass of amptui.Experiment"


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
    return path.stem if _is_same(origin, path) else encoded


def _is_same(origin: str | None, path: Path) -> bool:
    try:
        return origin is not None and path.samefile(origin)
    except OSError:
        return False


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
