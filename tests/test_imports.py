"""Imports run downward, nothing heavy is loaded before it is needed, and no name of torch's is deprecated."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from contextlib import suppress
from functools import reduce
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from amptui.ranks.parallel.sharded import all_gather
from tests.checkout import ROOT

HEAVY = (
    *("torch", "torchvision", "torchao", "textual", "numpy"),
    *("pynvml", "psutil", "accelerate", "transformers"),
)


def loaded_by(statement: str) -> set[str]:
    """The heavy packages that ``statement`` brings in, in a process of its own."""
    program = f"{statement}\nimport json, sys\nprint(json.dumps([m for m in {HEAVY!r} if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("statement", "allowed"),
    [
        ("import amptui", set()),
        ("import amptui.cli, amptui.reports.runs_table, amptui.runs.find", set()),
        ("import amptui.records.run, amptui.records.control, amptui.base.errors, amptui.base.units", set()),
        ("import amptui.recipe.request", set()),
        ("import amptui.records.codec", set()),
        ("import amptui.telemetry.session", {"numpy"}),
        ("import amptui.process.plain_lines, amptui.diagnosis.summary", {"numpy"}),
        ("import amptui.reports.compare.following, amptui.reports.compare.tables", {"numpy"}),
        ("import amptui.loops.worker", set()),
        ("import amptui.process.launch", {"numpy", "psutil"}),
        ("import amptui.tui.run_screen", {"numpy", "textual"}),
    ],
)
def test_an_import_brings_in_no_more_than_it_needs(statement: str, allowed: set[str]) -> None:
    assert loaded_by(statement) <= allowed


_TRAINS_ALONE = """
import json, sys
import torch, torch._dynamo, torch.utils.data, torch.nn.parallel, torch.compiler
def of_several(): return {name for name in sys.modules if "distributed" in name or "amptui.ranks" in name}
before = of_several()
from tests.tiny import Log, Tiny, prepare, train
train(prepare(Tiny(epochs=1)), Log())
print(json.dumps(sorted(of_several() - before)))
"""


@pytest.mark.ci
def test_a_single_process_imports_nothing_that_connects_to_others() -> None:
    """Torch imports what it will by itself."""
    done = subprocess.run([sys.executable, "-c", _TRAINS_ALONE], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


_FLOAT8 = """
import sys
from tests.tiny import Log, Tiny, prepare, train
prepared = prepare(Tiny(epochs=1))
train(prepared, Log())
print("torchao" in sys.modules)
print(prepared.precisions["fp8-emulated"].reason_not_to_enter())
print("torchao" in sys.modules)
"""


@pytest.mark.ci
@pytest.mark.usefixtures("usable_torchao")
def test_torchao_is_imported_once_fp8_is_entered_and_says_nothing_on_the_way() -> None:
    """It would speak among the output of the script, or on a terminal that shows a screen."""
    done = subprocess.run([sys.executable, "-c", _FLOAT8], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["False", "", "True"]
    assert done.stderr == ""


@pytest.mark.ci
def test_the_contracts_between_the_packages_are_kept() -> None:
    program = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = subprocess.run(
        [sys.executable, "-c", program, "--no-cache"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    assert " 0 broken" in done.stdout


def test_an_installation_has_every_package() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {file.parent.relative_to(ROOT) for file in (ROOT / "amptui").rglob("__init__.py")}
    assert set(listed) == {"amptui.models", *(".".join(folder.parts) for folder in folders)}


def test_public_names_are_what_a_model_file_needs() -> None:
    import amptui

    assert {
        *("Experiment", "Data", "DataRequest", "Arrays", "ExperimentError", "__version__", "ImageBatches"),
        *("AmpMonitor", "Monitor", "observe", "watch", "warmup_cosine", "weight_decay_groups"),
        *("cifar10", "image_folder", "mnist", "read_text", "text_data"),
    } == set(amptui.__all__)
    assert all(getattr(amptui, name) is not None for name in amptui.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'Trainer'"):
        _ = amptui.Trainer


# --------------------------------------------------------------------------------- names of torch's


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
