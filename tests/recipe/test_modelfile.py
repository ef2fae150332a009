"""From MODEL and ``--set`` to an experiment: what is named, which class is found, how its fields are read."""

import sys
from pathlib import Path
from typing import Literal, Optional, Union

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui import Experiment
from amptui.base.errors import ExperimentError, UsageError
from amptui.models import CATALOGUE
from amptui.recipe.loading import build_experiment, load_class
from amptui.recipe.request import ModelSpec, parse_model

BODY = """
from amptui import Experiment
from torch import nn

class {name}(Experiment):
    width: int = 3

    def build_model(self):
        return nn.Linear(self.width, 1)
"""


pytestmark = pytest.mark.usefixtures("no_trace_of_imports")


def load(text: str) -> type[Experiment]:
    return load_class(parse_model(text))


def test_a_file_imports_its_neighbours_as_a_script_does_and_only_what_it_defines_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "base_of_net.py").write_text(BODY.format(name="Base"))
    (folder / "derived.py").write_text(
        "from __future__ import annotations\nfrom base_of_net import Base\n"
        "class Derived(Base):\n    depth: int = 1\nclass _Hidden(Base): ...\n"
    )
    (tmp_path / "link.py").symlink_to(folder / "derived.py")
    monkeypatch.chdir(tmp_path)
    assert load("link.py").__name__ == "Derived"
    derived = load("elsewhere/derived.py")
    assert derived.__name__ == "Derived"
    assert vars(build_experiment(derived, {"depth": "4"})).get("depth") == 4


@pytest.fixture
def two(tmp_path: Path) -> Path:
    path = tmp_path / "two.py"
    path.write_text(BODY.format(name="Narrow") + BODY.format(name="Wide"))
    return path


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "{two} defines 2 experiments"),
        (":Wider", "{two}:Wider: Wider is not an Experiment"),
        (":nn", "{two}:nn: nn is not an Experiment"),
    ],
)
def test_of_two_experiments_one_must_be_chosen(name: str, said: str, two: Path) -> None:
    with pytest.raises(ExperimentError) as refused:
        load(f"{two}{name}")
    assert str(refused.value) == f"{said.format(two=two)}; choose {two}:Narrow or {two}:Wide"
    wide = load(f"{two}:Wide")
    assert wide.__name__ == "Wide"
    assert build_experiment(wide, {"width": "5"}).build_model().in_features == 5


def test_a_module_in_the_shell_s_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "my_package"
    package.mkdir()
    (package / "nets.py").write_text(BODY.format(name="Net"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    assert load("my_package.nets:Net").__module__ == "my_package.nets"
    with pytest.raises(ExperimentError, match=r"choose my_package\.nets:Net"):
        load("my_package.nets:Other")
    with pytest.raises(UsageError, match="no module no_such_package; install it"):
        load("no_such_package.nets:Net")


# What MODEL means: told without running any of the model's code.


def test_a_name_of_the_catalogue_and_a_class_of_a_module() -> None:
    for name in CATALOGUE:
        assert parse_model(name) == ModelSpec(name, name, module=CATALOGUE[name][0])
    spec = parse_model("no.such.package:Net")
    assert spec == ModelSpec("no.such.package:Net", "Net", module="no.such.package", class_name="Net")


@pytest.fixture
def model_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "my_net.py"
    path.write_text("raise RuntimeError('nobody may run this yet')\n")
    monkeypatch.chdir(tmp_path)
    return path


@pytest.mark.parametrize("class_name", ["", "Wide"])
def test_a_file_with_or_without_a_class(
    class_name: str, model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("my_net.py", "./my_net.py", str(model_file)):
        text = f"{place}:{class_name}" if class_name else place
        assert parse_model(text) == ModelSpec(text, "my_net", path=Path(place), class_name=class_name)
    monkeypatch.setenv("HOME", str(model_file.parent))
    assert parse_model("~/my_net.py").path == model_file


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("simple_cnn", "no model named 'simple_cnn'; did you mean simple-cnn?"),
        ("", f"no model named ''; there are {', '.join(CATALOGUE)}, or give a path"),
        ("models/", "no model file models/; check the path, or see `amptui models` for names"),
        ("gone.py:Net", "no model file gone.py; check the path"),
        ("./notes.txt", "./notes.txt is not a Python file; a model file ends in .py"),
        ("package.module", "no model named 'package.module'; there are"),
    ],
)
def test_what_is_no_model_is_told_with_the_mend(text: str, said: str, model_file: Path) -> None:
    model_file.with_name("notes.txt").touch()
    with pytest.raises(UsageError) as refused:
        parse_model(text)
    assert str(refused.value).startswith(said)


# How fields are read.


class Options(Experiment):
    whole: int = 1
    real: float = 1.0
    text: str = ""
    flag: bool = False
    place: Path = Path()
    word: Literal["relu", "gelu"] = "relu"
    size: Literal[1, 2] = 1
    maybe_whole: int | None = 3
    maybe_text: Optional[str] = None  # noqa: UP045 - people write it
    maybe_word: Union[Literal["a", "b"], None] = None  # noqa: UP007 - this too
    layers: tuple[int, ...] = (1,)


FIELDS = {
    "whole": st.integers(),
    "real": st.floats(allow_nan=False),
    "text": st.text(),
    "flag": st.booleans(),
    "place": st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1).map(Path),
    "word": st.sampled_from(["relu", "gelu"]),
    "size": st.sampled_from([1, 2]),
    "maybe_whole": st.none() | st.integers(),
    "maybe_text": st.none() | st.text().filter(lambda text: text.lower() != "none"),
    "maybe_word": st.none() | st.sampled_from(["a", "b"]),
}


@given(st.fixed_dictionaries({}, optional=FIELDS))
def test_what_a_field_prints_as_is_what_it_reads(values: dict[str, object]) -> None:
    experiment = build_experiment(Options, {name: str(value) for name, value in values.items()})
    assert {name: getattr(experiment, name) for name in values} == values
    assert all(type(getattr(experiment, name)) is type(value) for name, value in values.items())
    for texts, value in ((("true", "YES", "on", "1"), True), (("False", "no", "off", "0"), False)):
        for text in texts:
            assert build_experiment(Options, {"flag": text}).flag is value  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("whole", "1.5", "option whole: '1.5' is not a whole number"),
        ("real", "fast", "option real: 'fast' is not a number"),
        ("flag", "maybe", "option flag: 'maybe' is not one of true, false, yes, no, on, off, 1, 0"),
        ("word", "tanh", "option word: 'tanh' is not one of relu, gelu"),
        ("size", "3", "option size: '3' is not one of 1, 2"),
        ("maybe_whole", "x", "option maybe_whole: 'x' is not a whole number"),
        ("layers", "1,2", "option layers: a tuple cannot be set on the command line"),
        ("wohle", "1", "Options has no option 'wohle'; did you mean whole?"),
        (
            "zzz",
            "1",
            "Options has no option 'zzz'; its options are epochs, batch_size, learning_rate, weight_decay",
        ),
        ("cpu_batch_size", "1", "Options has no option 'cpu_batch_size'"),
        ("epochs", "0", "option epochs: '0' is not a whole number above 0"),
        ("batch_size", "-3", "option batch_size: '-3' is not a whole number above 0"),
    ],
)
def test_a_value_of_the_wrong_kind_is_a_usage_error(name: str, text: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        build_experiment(Options, {name: text})
    assert str(refused.value).startswith(said)
