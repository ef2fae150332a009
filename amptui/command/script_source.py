"""Tells a script that trains from a model file, by their source alone."""

import ast
from pathlib import Path

_MONITORS = frozenset({"watch", "observe", "PrecisionMonitor", "Precision"})
"""The names by which a script has itself watched."""


def is_script(text: str) -> bool:
    """Whether ``text`` names a Python file that is no model file: it defines no experiment, or is watched.

    A file that is missing is none.
    """
    path = Path(text)
    try:
        if path.suffix != ".py" or not path.is_file():
            return False
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return _is_watched(tree) or not _may_define_experiment(tree)


def _is_watched(tree: ast.Module) -> bool:
    """Whether it takes one of ``_MONITORS`` from amptui, and calls it at the top or in a function."""
    modules = {"amptui"}
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {
                alias.asname or alias.name.partition(".")[0]
                for alias in node.names
                if alias.name.partition(".")[0] == "amptui"
            }
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "amptui":
            names |= {alias.asname or alias.name for alias in node.names if alias.name in _MONITORS}
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return any(_is_monitor(called, modules, names) for called in calls)


def _is_monitor(called: ast.expr, modules: set[str], names: set[str]) -> bool:
    if isinstance(called, ast.Name):
        return called.id in names
    if not isinstance(called, ast.Attribute) or called.attr not in _MONITORS:
        return False
    root = called.value
    while isinstance(root, ast.Attribute):
        root = root.value
    return isinstance(root, ast.Name) and root.id in modules


def _may_define_experiment(tree: ast.Module) -> bool:
    """Whether a class at the top has bases: one of another file may be an experiment's."""
    return any(isinstance(node, ast.ClassDef) and node.bases for node in tree.body)
