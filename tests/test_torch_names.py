"""No name of torch's that we write down is one that the installed torch calls deprecated."""

import ast
import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from amptui.ranks.parallel.sharded import all_gather
from tests.checkout import ROOT

FILES = sorted(path for folder in ("amptui", "models") for path in (ROOT / folder).rglob("*.py"))


def torch_names(tree: ast.AST) -> dict[str, Any]:
    """Every dotted name in ``tree`` that leads to something of torch's, and what it leads to."""
    imported = dict(_imported(tree))
    objects = dict(imported)
    for node in ast.walk(tree):
        first, *attributes = _dotted(node)
        reached = imported.get(first)
        for attribute in attributes:
            reached = getattr(reached, attribute, None)
        if reached is not None:
            objects[".".join((first, *attributes))] = reached
    return objects


def _dotted(node: ast.AST) -> list[str]:
    """The parts of a name with dots; of anything else one that is no name."""
    attributes: list[str] = []
    while isinstance(node, ast.Attribute):
        attributes.append(node.attr)
        node = node.value
    return [node.id if isinstance(node, ast.Name) else "", *reversed(attributes)]


def _imported(tree: ast.AST) -> Iterator[tuple[str, Any]]:
    """What the imports of torch in ``tree`` bind; what the installed release lacks is left out."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "torch":
                    yield (
                        (alias.asname or "torch"),
                        importlib.import_module(alias.name if alias.asname else "torch"),
                    )
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            module = importlib.import_module(node.module or "torch")
            for alias in node.names:
                if hasattr(module, alias.name):
                    yield (alias.asname or alias.name), getattr(module, alias.name)


def deprecated(source: str) -> list[str]:
    """Names that carry the message of ``typing_extensions.deprecated``, which torch decorates with."""
    objects = torch_names(ast.parse(source))
    # `torch.ops` has every attribute: each is a namespace.
    return sorted(
        name for name, value in objects.items() if isinstance(getattr(value, "__deprecated__", None), str)
    )


@pytest.mark.torch
def test_no_name_is_deprecated() -> None:
    source = "import torch.distributed as dist\ndist._all_gather_base(a, b)\ndist.all_reduce(a)"
    assert deprecated(source) == ["dist._all_gather_base"], "one that is"
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in FILES}
    files = {name: deprecated(text) for name, text in texts.items() if "torch" in text}
    assert files
    assert {file: names for file, names in files.items() if names} == {}


@pytest.mark.torch
def test_a_private_name_that_float8_windows_need_is_there() -> None:
    """Without it they would change the gradients of selective checkpointing."""
    with torch.utils._python_dispatch._disable_current_modes() as modes:
        assert modes == []


def test_rows_are_gathered_under_the_newest_name(monkeypatch: pytest.MonkeyPatch) -> None:
    if not hasattr(dist, "all_gather_single"):
        pytest.skip(f"torch {torch.__version__} has one name for it")
    monkeypatch.delattr(dist, "all_gather_into_tensor")
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        row, rows = torch.tensor([1.0, 2.0]), torch.zeros(2)
        all_gather(rows, row)
        assert rows.tolist() == [1.0, 2.0]
    finally:
        dist.destroy_process_group()
