"""No name of torch's that we write down is one that the installed torch calls deprecated."""

import ast
import re
from contextlib import suppress
from functools import reduce
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from amptui.ranks.parallel.sharded import all_gather
from tests.checkout import ROOT

FILES = sorted(path for folder in ("amptui", "models") for path in (ROOT / folder).rglob("*.py"))


def deprecated(source: str) -> list[str]:
    """Names that carry the message of ``typing_extensions.deprecated``, which torch decorates with."""
    tree, bound, found = ast.parse(source), dict[str, Any](), set[str]()
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    for node in imports:
        if re.match(r"(from|import) torch\b", ast.unparse(node)):
            for alias in node.names:  # what the installed release lacks is left out
                with suppress(ImportError):
                    exec(ast.unparse(type(node)(**{**vars(node), "names": [alias]})), bound)  # noqa: S102 - ours
    names = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for name in (*bound, *names):
        first, *attributes = name.split(".")
        value = reduce(lambda owner, each: getattr(owner, each, None), attributes, bound.get(first))
        if isinstance(getattr(value, "__deprecated__", None), str):  # `torch.ops` has every attribute
            found.add(name)
    return sorted(found)


@pytest.mark.torch
def test_no_name_is_deprecated() -> None:
    source = "import torch.distributed as dist\ndist._all_gather_base(a, b)\ndist.all_reduce(a)"
    assert deprecated(source) == ["dist._all_gather_base"], "one that is"
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in FILES}
    files = {name: deprecated(text) for name, text in texts.items() if "torch" in text}
    assert files
    assert {file: names for file, names in files.items() if names} == {}


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
