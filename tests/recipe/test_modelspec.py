"""What MODEL means: told without running any of the model's code."""

from pathlib import Path

import pytest

from amptui.base.errors import UsageError
from amptui.models import CATALOGUE
from amptui.recipe.modelspec import ModelSpec, parse_model


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_name_of_the_catalogue(name: str) -> None:
    assert parse_model(name) == ModelSpec(name, name, module=CATALOGUE[name][0])


@pytest.fixture
def model_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "my_net.py"
    path.write_text("raise RuntimeError('nobody may run this yet')\n")
    monkeypatch.chdir(tmp_path)
    return path


@pytest.mark.parametrize("class_name", ["", "Wide"])
def test_a_file_with_or_without_a_class(class_name: str, model_file: Path) -> None:
    for place in ("my_net.py", "./my_net.py", str(model_file)):
        text = f"{place}:{class_name}" if class_name else place
        assert parse_model(text) == ModelSpec(text, "my_net", path=Path(place), class_name=class_name)


def test_a_tilde_is_the_home_folder(model_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(model_file.parent))
    assert parse_model("~/my_net.py").path == model_file


def test_a_class_of_a_module_is_called_by_its_own_name() -> None:
    spec = parse_model("no.such.package:Net")
    assert spec == ModelSpec("no.such.package:Net", "Net", module="no.such.package", class_name="Net")


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
