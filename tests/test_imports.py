"""Imports run downward, and nothing heavy is loaded before it is needed."""

import json
import subprocess
import sys
import tomllib

import pytest

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
        ("import amptui.reports.compare", {"numpy"}),
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
print(prepared.precisions["fp8"].reason_not_to_enter())
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
        *("Experiment", "Data", "DataRequest", "Arrays", "ExperimentError", "__version__"),
        *("AmpMonitor", "Monitor", "observe", "watch", "warmup_cosine", "weight_decay_groups"),
        *("cifar10", "image_folder", "mnist", "read_text", "text_data"),
    } == set(amptui.__all__)
    assert all(getattr(amptui, name) is not None for name in amptui.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'Trainer'"):
        _ = amptui.Trainer
