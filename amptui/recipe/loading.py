"""From MODEL on the command line to an experiment: the class that it names and the values of its fields."""

import importlib
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import get_type_hints

from amptui.base.errors import ExperimentError
from amptui.recipe.experiment import Experiment
from amptui.recipe.model_options import parse_options
from amptui.recipe.modelfile import import_file
from amptui.recipe.modelspec import ModelSpec


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
