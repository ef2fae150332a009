"""From MODEL and ``--set`` to an experiment: which class is found, and how its fields are read."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, Optional, Union

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from amptui import Experiment
from amptui.base.errors import ExperimentError, UsageError
from amptui.recipe.loading import build_experiment, load_class
from amptui.recipe.modelspec import parse_model
from tests.tiny import Tiny

BODY = """
from amptui import Experiment
from torch import nn

class {name}(Experiment):
    width: int = 3

    def build_model(self):
        return nn.Linear(self.width, 1)
"""


@pytest.fixture(autouse=True)
def _no_trace_of_imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Modules and folders that a test imports from are unknown to the next."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def load(text: str) -> type[Experiment]:
    return load_class(parse_model(text))


def test_a_file_s_one_experiment_is_found(tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text(BODY.format(name="Net"))
    experiment_class = load(str(path))
    assert experiment_class.__name__ == "Net"
    assert isinstance(build_experiment(experiment_class, {"width": "5"}).build_model(), nn.Linear)


def test_experiments_that_a_file_only_imports_or_hides_are_not_its_own(tmp_path: Path) -> None:
    (tmp_path / "base.py").write_text(BODY.format(name="Base"))
    path = tmp_path / "derived.py"
    path.write_text("from base import Base\nclass Derived(Base): ...\nclass _Hidden(Base): ...\n")
    assert load(str(path)).__name__ == "Derived"


def test_a_file_imports_its_neighbours_as_a_script_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "neighbour_of_net.py").write_text("WIDTH = 7\n")
    (folder / "net.py").write_text(
        "from neighbour_of_net import WIDTH\n" + BODY.format(name="Net").replace("= 3", "= WIDTH")
    )
    monkeypatch.chdir(tmp_path)
    experiment_class = build_experiment(load("elsewhere/net.py"), {})
    assert getattr(experiment_class, "width", None) == 7


@pytest.fixture
def two(tmp_path: Path) -> Path:
    path = tmp_path / "two.py"
    path.write_text(BODY.format(name="Narrow") + BODY.format(name="Wide"))
    return path


def test_of_two_experiments_one_must_be_chosen(two: Path) -> None:
    with pytest.raises(ExperimentError) as refused:
        load(str(two))
    assert str(refused.value) == f"{two} defines 2 experiments; choose {two}:Narrow or {two}:Wide"
    assert load(f"{two}:Wide").__name__ == "Wide"


@pytest.mark.parametrize("name", ["Wider", "nn", "__name__"])
def test_a_class_that_is_no_experiment_is_refused(name: str, two: Path) -> None:
    with pytest.raises(ExperimentError) as refused:
        load(f"{two}:{name}")
    assert str(refused.value) == (
        f"{two}:{name}: {name} is not an Experiment; choose {two}:Narrow or {two}:Wide"
    )


def test_a_module_in_the_shell_s_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "my_package"
    package.mkdir()
    (package / "nets.py").write_text(BODY.format(name="Net"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    assert load("my_package.nets:Net").__module__ == "my_package.nets"
    with pytest.raises(ExperimentError, match=r"choose my_package\.nets:Net"):
        load("my_package.nets:Other")


def test_what_a_module_raises_passes_through() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        load("no_such_package.nets:Net")


# ------------------------------------------------------------------------------------ settings


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


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("YES", True), ("on", True), ("1", True), ("False", False), ("no", False), ("0", False)],
)
def test_a_flag_is_written_in_many_ways(text: str, *, value: bool) -> None:
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


def test_annotations_may_be_written_as_text(tmp_path: Path) -> None:
    path = tmp_path / "late.py"
    path.write_text("from __future__ import annotations\n" + BODY.format(name="Late"))
    assert getattr(build_experiment(load(str(path)), {"width": "4"}), "width", None) == 4


def test_what_is_not_set_keeps_its_default() -> None:
    assert build_experiment(Tiny, {"width": "3"}) == Tiny(width=3)
