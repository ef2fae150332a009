"""The README says what the code does."""

import re
from pathlib import Path

import pytest

import amptui
from amptui.options import build_parser
from amptui.tui.keys import KEYS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def section(title: str) -> str:
    return README.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_the_key_table_is_the_key_table() -> None:
    rows = re.findall(r"^\| `(.+)` \| (.+) \|$", section("Keys"), re.MULTILINE)
    assert rows == [(key.label, key.meaning) for key in KEYS]


@pytest.mark.parametrize(
    ("title", "commands"),
    [
        ("`amptui train`", ("train",)),
        ("`amptui bench`", ("bench",)),
        (
            "`amptui attach`, `runs`, `replay`, `export` and `doctor`",
            ("attach", "runs", "replay", "export", "doctor"),
        ),
    ],
)
def test_every_option_is_described_and_none_besides(title: str, commands: tuple[str, ...]) -> None:
    (parsers,) = (a.choices for a in build_parser()._actions if isinstance(a.choices, dict))
    actions = [action for command in commands for action in parsers[command]._actions]
    offered = {option for a in actions for option in a.option_strings} - {"-h", "--help"}
    described = set(re.findall(r"`(--[a-z-]+)`", section(f"Options of {title}")))
    assert described == offered


def test_every_command_has_its_options_described() -> None:
    (parsers,) = (a.choices for a in build_parser()._actions if isinstance(a.choices, dict))
    titles = " ".join(re.findall(r"^## Options of (.+)$", README, re.MULTILINE))
    assert all(command in titles for command in parsers if command != "models")


def test_every_file_linked_to_is_there() -> None:
    for readme in (ROOT / "README.md", ROOT / "models" / "README.md", ROOT / "demo" / "README.md"):
        for target in re.findall(r"\]\(([^)#:]+)\)", readme.read_text()):
            assert (readme.parent / target).exists(), f"{readme}: {target}"


def test_the_example_model_trains(few_digits: None, tmp_path: Path) -> None:
    from amptui.engine.loading import build_experiment, load_class
    from amptui.modelspec import parse_model
    from amptui.records import StepRecord
    from tests.tiny import Log, prepare, train

    (code,) = re.findall(r"```python\n# mine\.py\n(.*?)```", README, re.DOTALL)
    path = tmp_path / "mine.py"
    path.write_text(code)
    experiment = build_experiment(load_class(parse_model(str(path))), {"width": "8"})
    log = Log()
    train(prepare(experiment, steps=2, data="synthetic"), log)
    assert len(log.of(StepRecord)) == 2


def test_the_changelog_knows_this_version() -> None:
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == amptui.__version__


def test_the_models_readme_lists_the_catalogue() -> None:
    from amptui.models import CATALOGUE

    rows = re.findall(r"^\| `([a-z0-9-]+)` \|", (ROOT / "models" / "README.md").read_text(), re.MULTILINE)
    assert rows == list(CATALOGUE)


def test_ci_runs_the_test_command_of_this_file() -> None:
    (command,) = re.findall(r"```sh\n(.*?)```", section("Tests"), re.DOTALL)
    assert command.strip().endswith(".venv/bin/python -m pytest -n 2")
    assert "README.md" in (ROOT / ".ci" / "run").read_text()
