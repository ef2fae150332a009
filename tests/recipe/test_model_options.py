"""Options told from a model's source: what its class says when imported, or nothing."""

from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from amptui.base.errors import UsageError
from amptui.models import CATALOGUE
from amptui.recipe.loading import load_class
from amptui.recipe.model_options import UNKNOWN_TYPE, check_settings, declared_options
from amptui.recipe.modelspec import parse_model
from tests.checkout import ROOT


@pytest.mark.parametrize("model", [*CATALOGUE, str(ROOT / "tests" / "recipes" / "knobs.py")])
def test_the_source_says_what_the_class_says(model: str) -> None:
    spec = parse_model(model)
    chosen = load_class(spec)
    hints = get_type_hints(chosen)
    types = {field.name: hints[field.name] for field in fields(chosen)}
    assert declared_options(spec) == (chosen.__name__, types)


HEAD = "import amptui\nfrom amptui import Experiment\nfrom torch import nn\n"


@pytest.mark.parametrize(
    ("source", "own"),
    [
        ("class A(Experiment):\n    size: 'int' = 1\n    limit: ClassVar[int] = 2\n", {"size": int}),
        ("class A(amptui.Experiment):\n    size: Strange = 1\n", {"size": UNKNOWN_TYPE}),
        ("class A(Experiment):\n    size: print('no') = 1\n", {"size": UNKNOWN_TYPE}),
        (
            "class _B(Experiment):\n    one: int = 1\nclass A(_B):\n    two: bool = 1\n",
            {"one": int, "two": bool},
        ),
        ("class A(Experiment):\n    def build_model(self):\n        x: int = 1\n", {}),
        ("class N(nn.Module): pass\nclass M(N): pass\nclass A(Experiment): pass\n", {}),
    ],
)
def test_options_of_a_class_in_one_file(source: str, own: dict[str, Any], tmp_path: Path) -> None:
    options_declared = declared(source, tmp_path)
    assert options_declared is not None
    name, types = options_declared
    assert name == "A"
    assert {option: kind for option, kind in types.items() if option not in BASE} == own
    assert list(types)[: len(BASE)] == BASE


BASE = ["epochs", "batch_size", "learning_rate", "weight_decay", "label_smoothing"]


@pytest.mark.parametrize(
    "source",
    [
        "from elsewhere import Base\nclass A(Base): pass\n",
        "from elsewhere import Base\nclass B(Base): pass\nclass A(Experiment): pass\n",
        "class A(Experiment): pass\nclass B(Experiment): pass\n",
        "class Experiment: pass\nclass A(Experiment): pass\n",
        "@change\nclass A(Experiment): pass\n",
        "class A(Experiment, metaclass=Meta): pass\n",
        "class A(make()): pass\n",
        "class A(B): pass\nclass B(A): pass\n",
        "def f(:\n",
        "x = 1\n",
        "class A(Experiment):\n    if True:\n        foo: int = 1\n",
    ],
)
def test_what_only_the_run_can_know_is_left_to_it(source: str, tmp_path: Path) -> None:
    assert declared(source, tmp_path) is None
    (tmp_path / "model.py").write_text(HEAD + source)
    check_settings(parse_model(str(tmp_path / "model.py")), {"foo": "1"})


def declared(source: str, folder: Path) -> tuple[str, dict[str, Any]] | None:
    model = folder / "model.py"
    model.write_text(HEAD + source)
    return declared_options(parse_model(str(model)))


def test_nothing_is_imported_to_refuse_an_option(tmp_path: Path) -> None:
    model = tmp_path / "model.py"
    model.write_text(
        "raise SystemExit\nfrom amptui import Experiment\nclass A(Experiment):\n    width: int = 1\n"
    )
    with pytest.raises(UsageError, match="A has no option 'widht'; did you mean width"):
        check_settings(parse_model(str(model)), {"widht": "3"})
    check_settings(parse_model(str(model)), {"width": "3"})
