"""An experiment's options on the command line: their values by their types, and what its source declares."""

import ast
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Optional, Union, get_args, get_origin

from amptui.base.errors import UsageError
from amptui.models import CATALOGUE
from amptui.recipe.modelspec import ModelSpec

UNKNOWN_TYPE = object()
"""The type of an option whose values only the class itself can check."""

_BOOLEANS = {
    "true": True,
    "false": False,
    "yes": True,
    "no": False,
    "on": True,
    "off": False,
    "1": True,
    "0": False,
}

_TYPE_NAMES = {int: "a whole number", float: "a number", str: "a string", Path: "a path"}

_ANNOTATIONS: dict[str, Any] = {
    "int": int,
    "float": float,
    "bool": bool,
    "str": str,
    "Path": Path,
    "Literal": Literal,
    "Optional": Optional,
    "Union": Union,
}
"""The names in annotations that mean the same in every file worth reading."""

_PLAIN_NODES = (
    *(ast.Expression, ast.Name, ast.Load, ast.Constant, ast.Subscript, ast.Tuple),
    *(ast.BinOp, ast.BitOr, ast.UnaryOp, ast.USub),
)

_USUAL_NODES = (
    ast.AnnAssign,
    ast.Assign,
    ast.Expr,
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Pass,
)
"""Of the body of a class whose fields are those that are annotated in it."""

_EXPERIMENT = "Experiment"

_OTHER_BASES = {"Module", "Dataset", "IterableDataset", "Protocol", "NamedTuple", "Enum", "ABC", "Function"}
"""Of classes in model files that are no experiments."""


def parse_options(owner: str, types: Mapping[str, Any], settings: Mapping[str, str]) -> dict[str, Any]:
    """The values of ``settings`` by the ``types`` of the options of ``owner``.

    Raises UsageError for an unknown option, a value of the wrong type, and fewer than 1 epoch or sample per
    step.
    """
    values = {}
    for name, text in settings.items():
        if name not in types:
            near = get_close_matches(name, types, n=1)
            hint = f"did you mean {near[0]}?" if near else f"its options are {', '.join(types)}"
            raise UsageError(f"{owner} has no option {name!r}", hint=hint)
        if types[name] is UNKNOWN_TYPE:
            continue
        try:
            values[name] = _parse(text, types[name])
        except ValueError as error:
            raise UsageError(f"option {name}: {error}") from error
    for name in ("epochs", "batch_size"):
        if values.get(name, 1) < 1:
            raise UsageError(f"option {name}: {settings[name]!r} is not a whole number above 0")
    return values


def check_settings(spec: ModelSpec, settings: Mapping[str, str]) -> None:
    """Refuse, before torch is imported, what the class of ``spec`` would refuse, as far as its source tells.

    Runs no code of the model's. Raises UsageError.
    """
    declared = declared_options(spec) if settings else None
    if declared is not None:
        parse_options(*declared, settings)


def declared_options(spec: ModelSpec) -> tuple[str, dict[str, Any]] | None:
    """The name of the class of ``spec`` and the types of its options; None if its source leaves them open.

    That is the case for a class whose bases come from files other than ours, and for anything unusual.
    """
    source = _source(spec)
    classes = _classes(source) if source is not None else {}
    names = [spec.class_name] if spec.class_name else [name for name in classes if not name.startswith("_")]
    kinds = {name: _kind(name, classes) for name in names}
    experiments = [name for name, kind in kinds.items() if kind == "experiment"]
    if "unknown" in kinds.values() or len(experiments) != 1:
        return None
    base = _classes(Path(__file__).with_name("experiment.py"))[_EXPERIMENT]
    types: dict[str, Any] = {}
    for definition in (base, *_lineage(experiments[0], classes)):
        types |= dict(_fields(definition))
    return experiments[0], types


def _source(spec: ModelSpec) -> Path | None:
    """The file of ``spec``; None for a module that cannot be found without running its package."""
    if spec.path is not None:
        return spec.path
    if spec.module not in {module for module, _ in CATALOGUE.values()}:
        return None
    module_spec = find_spec(spec.module)
    return Path(module_spec.origin) if module_spec is not None and module_spec.origin else None


def _classes(source: Path) -> dict[str, ast.ClassDef]:
    """The classes at the top of a file, by name."""
    try:
        tree = ast.parse(source.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def _kind(name: str, classes: Mapping[str, ast.ClassDef]) -> Literal["experiment", "other", "unknown"]:
    """What the class of that name is, as far as the file says."""
    if name == _EXPERIMENT or name in _OTHER_BASES:
        return "unknown" if name in classes else "experiment" if name == _EXPERIMENT else "other"
    definition = classes.get(name)
    if definition is None:
        return "unknown"
    others = {each: classes[each] for each in classes if each != name}  # nobody is their own base
    kinds = {_kind(base, others) for base in _base_names(definition)}
    if kinds == {"experiment"} and len(definition.bases) == 1:
        is_usual = all(isinstance(node, _USUAL_NODES) for node in definition.body)
        return (
            "experiment" if is_usual and not (definition.decorator_list or definition.keywords) else "unknown"
        )
    return "other" if kinds <= {"other"} else "unknown"


def _lineage(name: str, classes: Mapping[str, ast.ClassDef]) -> list[ast.ClassDef]:
    """The classes from below ``Experiment`` down to the experiment of that name."""
    lineage: list[ast.ClassDef] = []
    while name != _EXPERIMENT:
        lineage.insert(0, classes[name])
        (name,) = _base_names(classes[name])
    return lineage


def _base_names(definition: ast.ClassDef) -> list[str]:
    """The last part of each base's name; empty for what is no name."""
    return [
        base.id if isinstance(base, ast.Name) else base.attr if isinstance(base, ast.Attribute) else ""
        for base in definition.bases
    ]


def _fields(definition: ast.ClassDef) -> Iterator[tuple[str, Any]]:
    for node in definition.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            annotation = ast.unparse(node.annotation)
            if "ClassVar" not in annotation:
                yield node.target.id, _type_of(annotation)


def _type_of(annotation: str) -> Any:
    """What ``annotation`` means where it is built of well-known names; runs nothing else."""
    try:
        tree = ast.parse(annotation, mode="eval")
        if isinstance(tree.body, ast.Constant) and isinstance(tree.body.value, str):
            return _type_of(tree.body.value)
        for node in ast.walk(tree):
            is_foreign = isinstance(node, ast.Name) and node.id not in _ANNOTATIONS
            if is_foreign or not isinstance(node, _PLAIN_NODES):
                return UNKNOWN_TYPE
        return eval(compile(tree, "<annotation>", "eval"), {"__builtins__": {}}, _ANNOTATIONS)  # noqa: S307
    except Exception:  # noqa: BLE001 - whatever is wrong with it, the class says it better
        return UNKNOWN_TYPE


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
