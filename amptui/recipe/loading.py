"""From MODEL and --set on the command line to an experiment: its class, and the values of its fields."""

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from amptui.base.errors import ExperimentError, UsageError, did_you_mean
from amptui.recipe.experiment import Experiment
from amptui.recipe.request import ModelSpec

_BOOLEANS = dict(zip(("true", "false", "yes", "no", "on", "off", "1", "0"), (True, False) * 4, strict=True))

_TYPE_NAMES = {int: "a whole number", float: "a number", str: "a string", Path: "a path"}


def load_class(spec: ModelSpec) -> type[Experiment]:
    """The experiment class that ``spec`` names; runs the code of its module.

    Raises ExperimentError if there is no such class. Exceptions of the module pass through.
    """
    if spec.path:
        module = import_file(spec.path)
    else:
        # Find modules in the current folder, as `python -m` does.
        if "" not in sys.path and str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
        try:
            module = importlib.import_module(spec.module)
        except ModuleNotFoundError as error:
            if f"{spec.module}.".startswith(f"{error.name}."):  # else the module has begun, and lacks another
                hint = "install it, or start in the folder that has it"
                raise UsageError(f"no module {error.name}", hint=hint) from None
            raise
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


def import_file(path: Path) -> ModuleType:
    """Run the file as a fresh module; like a script, it may import its neighbours.

    It is named after the file, as if imported from its folder: a DataLoader's started workers can do that. If
    another module has that name, or it has a dot, only forked ones know it.
    """
    file = path.resolve()
    name = file.stem
    if sys.path[:1] != [str(file.parent)]:
        sys.path.insert(0, str(file.parent))
    importlib.invalidate_caches()  # a neighbour may be newer than the cached listing of the folder
    loaded = sys.modules.get(name)
    if "." in name or (loaded is not None and getattr(loaded, "__file__", None) != str(file)):
        name = f"model_file_{name.replace('.', '_')}"
    module_spec = importlib.util.spec_from_file_location(name, file)
    assert module_spec is not None, "the suffix is .py"
    assert module_spec.loader is not None, "as above"
    module = sys.modules[name] = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(module)
    return module


def build_experiment(experiment_class: type[Experiment], settings: Mapping[str, str]) -> Experiment:
    """An experiment with the fields in ``settings`` parsed by their types.

    Raises UsageError for an unknown field, a value of the wrong type, and fewer than 1 epoch or sample per
    step.
    """
    hints = get_type_hints(experiment_class)
    names = [field.name for field in fields(experiment_class)]
    values = {}
    for name, text in settings.items():
        if name not in names:
            hint = did_you_mean(name, names, f"its options are {', '.join(names)}")
            raise UsageError(f"{experiment_class.__name__} has no option {name!r}", hint=hint)
        try:
            values[name] = _parse(text, hints[name])
        except ValueError as error:
            raise UsageError(f"option {name}: {error}") from error
    for name in ("epochs", "batch_size"):
        if values.get(name, 1) < 1:
            raise UsageError(f"option {name}: {settings[name]!r} is not a whole number above 0")
    return experiment_class(**values)


def _parse(text: str, kind: Any) -> Any:
    """``text`` as a value of the annotated type; raises ValueError."""
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        if NoneType in get_args(kind) and text.lower() == "none":
            return None
        choices = [choice for choice in get_args(kind) if choice is not NoneType]
        return _parse(text, choices[0])
    if origin is Literal:
        return _choice(text, {str(choice): choice for choice in get_args(kind)})
    if kind is bool:
        return _choice(text.lower(), _BOOLEANS)
    if kind not in _TYPE_NAMES:
        raise ValueError(f"a {getattr(kind, '__name__', kind)} cannot be set on the command line")
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"{text!r} is not {_TYPE_NAMES[kind]}") from None


def _choice(text: str, values: Mapping[str, Any]) -> Any:
    if text not in values:
        raise ValueError(f"{text!r} is not one of {', '.join(values)}")
    return values[text]


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
