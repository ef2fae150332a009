"""The README and the pages of the guide say what the code does."""

import argparse
import re
import shlex
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import torch
from torch import Tensor, nn

import amptui
from amptui.checkpoint.file import MAX_CHECKPOINTS
from amptui.cli import build_parser
from amptui.diagnosis.labels import GLOSSARY
from amptui.models import CATALOGUE
from amptui.models.unstable import Unstable
from amptui.monitor.ab_test import BLOCK_STEPS
from amptui.monitor.divergence_guard import MIN_LOSS_SCALE
from amptui.monitor.warm_up import MAX_STEPS, MIN_STEPS
from amptui.probes.probe import GRADIENTS_BUDGET, WINDOW_BUDGET
from amptui.records.run import COLLAPSE_SKIPS, EpochFinished, RunFinished, Validated
from amptui.telemetry.comparison import MIN_ENERGY_SECONDS
from amptui.telemetry.health import XRAY_SAFE_COSINE
from amptui.tui.keys import KEYS
from amptui.tui.run_list.frame import KEYS as LIST_KEYS
from tests.builders import StepRow, of
from tests.builders import recorded as records
from tests.checkout import ROOT
from tests.loops.working import Worker

README = ROOT / "README.md"
GUIDE = sorted((ROOT / "demo" / "guide").glob("*.md"))
PAGES = [README, ROOT / "models" / "README.md", ROOT / "demo" / "README.md", *GUIDE]

CODE = re.compile(r"^```sh\n(.*?)^```|^ {4,}(\S[^\n]*)$|`([^`\n]+)`", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^(?:\.venv/bin/)?amptui +(.+)$", re.MULTILINE)


def page(name: str) -> str:
    return (ROOT / "demo" / "guide" / name).read_text()


def section(title: str) -> str:
    return README.read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]


def commands() -> dict[str, argparse.ArgumentParser]:
    (parsers,) = (a.choices for a in build_parser()._actions if isinstance(a.choices, dict))
    return parsers


def command_lines(text: str) -> list[list[str]]:
    """The words after ``amptui`` of each command that stands in ``text`` as code."""
    code = "\n".join("".join(found) for found in CODE.findall(text))
    return [shlex.split(line, comments=True) for line in COMMAND.findall(code)]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_that_a_page_names_can_be_typed(path: Path) -> None:
    for words in command_lines(path.read_text()):
        if len(words) > 1:  # a command may be named without its arguments
            build_parser().parse_args(words)


def test_the_pages_name_every_command_and_none_besides() -> None:
    text = "\n".join(path.read_text() for path in PAGES)
    assert {words[0] for words in command_lines(text) if not words[0].endswith((":", "--help"))} == set(
        commands()
    )


def test_every_option_that_a_page_names_is_one_and_is_explained_by_help() -> None:
    actions = [action for parser in commands().values() for action in parser._actions]
    assert [action.dest for action in actions if not action.help] == []
    offered = {option for action in actions for option in action.option_strings}
    named = set(re.findall(r"`(--[a-z0-9-]+)", "\n".join(path.read_text() for path in [README, *GUIDE])))
    assert named
    assert named <= offered | {"--help", "--update-goldens"}  # the last is pytest's


def test_every_key_that_a_page_names_is_one() -> None:
    key_labels = {label for key in (*KEYS, *LIST_KEYS) for label in key.label.split()}
    labels = re.findall(r"^\| `(.+)` \| .+ \|$", section("Five keys"), re.MULTILINE)
    assert len(labels) == 5
    text = "\n".join([README.read_text(), page("numbers.md"), page("runs.md")])
    assert {*labels, *re.findall(r"`(\w|\?|tab|space|esc)`", text)} <= key_labels


def anchors(path: Path) -> set[str]:
    """The names that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_file_and_heading_linked_to_is_there_and_the_whole_guide_is_linked_to() -> None:
    linked = set()
    for path in PAGES:
        for target, anchor in re.findall(r"\]\(([^)#:]*)(#[^)]+)?\)", path.read_text()):
            file = path.parent / target if target else path
            assert file.exists(), f"{path}: {target}"
            assert not anchor or anchor[1:] in anchors(file), f"{path}: {target}{anchor}"
            if path == README:
                linked.add(file.resolve())
    assert set(GUIDE) <= linked


def test_the_documents_are_short_and_each_page_of_the_guide_starts_with_a_command() -> None:
    assert len(README.read_text().split()) <= 900
    assert len((ROOT / "CHANGELOG.md").read_text().split()) <= 600
    assert sum(len(path.read_text().split()) for path in GUIDE) <= 9000
    for path in GUIDE:
        start = path.read_text().split("\n## ")[0]
        assert len(start.split()) <= 300, path
        assert command_lines(start), path


def test_the_numbers_of_the_guide_are_the_code_s() -> None:
    numbers = " ".join(page("numbers.md").split())
    assert f"lasts {MIN_STEPS} to {MAX_STEPS} steps" in numbers
    assert f"blocks of {BLOCK_STEPS} steps" in numbers
    assert f"shown after {MIN_ENERGY_SECONDS:g} s" in numbers
    assert f"takes {GRADIENTS_BUDGET:.2%} of the time" in numbers
    assert f"takes {WINDOW_BUDGET:.1%} of the time" in numbers
    assert f"| {XRAY_SAFE_COSINE} or more | agree |" in numbers
    assert (COLLAPSE_SKIPS, "five skipped steps in a row, or a scale below 1" in numbers) == (5, True)
    assert (MAX_CHECKPOINTS, "the newest three" in page("runs.md")) == (3, True)
    assert (MIN_LOSS_SCALE, "a scale of 2^-24" in page("trouble.md")) == (2.0**-24, True)


def test_the_glossary_of_the_guide_is_the_help_s() -> None:
    rows = page("numbers.md").split("| word | meaning |\n| --- | --- |\n")[1].split("\n\n")[0]
    assert rows.splitlines() == [f"| {word} | {meaning} |" for word, meaning in GLOSSARY.items()]


def test_the_advice_that_is_quoted_was_printed_on_the_gpu_that_is_named() -> None:
    (quoted,) = re.findall(r"On that H100 the answer is (.*?), gradients", README.read_text(), re.DOTALL)
    printed = (ROOT / "demo" / "gpu" / "advise.txt").read_text()
    assert f"Use {quoted}, gradients agree".replace("\n", " ") in printed.replace("\n", " ")
    (lines,) = re.findall(r"```text\n(.*?)```", page("advise.md"), re.DOTALL)
    assert lines.strip() in printed


def test_the_walk_through_has_every_trouble() -> None:
    troubles = set(get_args(get_type_hints(Unstable)["trouble"]))
    assert set(re.findall(r"trouble=([a-z]+)", page("trouble.md"))) == troubles - {"none"}


def test_the_changelog_knows_this_version() -> None:
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == amptui.__version__


def test_the_models_readme_lists_the_catalogue() -> None:
    rows = re.findall(r"^\| `([a-z0-9-]+)` \|", (ROOT / "models" / "README.md").read_text(), re.MULTILINE)
    assert rows == list(CATALOGUE)


def test_ci_runs_the_test_command_of_this_file() -> None:
    (command,) = re.findall(r"```sh\n(.*?)```", section("Tests"), re.DOTALL)
    assert command.strip().endswith(".venv/bin/python -m pytest -n 2")
    assert "README.md" in (ROOT / ".ci" / "run").read_text()


@pytest.mark.usefixtures("no_trace_of_imports")
def test_the_example_model_trains(few_images: None, tmp_path: Path) -> None:
    worker = trained(README.read_text(), tmp_path, settings={"width": "8"}, steps=2)
    assert [record.step for record in worker.log.of(StepRow)] == [1, 2]


@pytest.mark.ci
def test_the_recipe_of_the_guide_trains(tmp_path: Path) -> None:
    worker = trained(page("recipes.md"), tmp_path, steps=3, accumulate=2, batch_size=8, data_dir=tmp_path)
    steps = worker.log.of(StepRow)
    assert [record.samples for record in steps] == [16] * 3
    assert [record.lr for record in steps] == pytest.approx([3e-4 * step / 201 for step in (1, 2, 3)])


def trained(text: str, folder: Path, **options: Any) -> Worker:
    (code,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (folder / "mine.py").write_text(code)
    worker = Worker(str(folder / "mine.py"), data="synthetic", **options)
    assert isinstance(worker.end(), RunFinished)
    return worker


# ------------------------------------------------------- the guide to one's own loop, as it stands there

BLOCKS = re.findall(r"```python\n(.*?)```", page("own_loop.md"), flags=re.DOTALL)


@pytest.fixture
def names() -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)

    def evaluate(_model: nn.Module) -> Tensor:
        return torch.tensor(0.5)

    inputs, labels = torch.randn(3, 4), torch.tensor([0, 1, 0])
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "criterion": nn.CrossEntropyLoss(),
        "loader": [(inputs, labels)] * 4,
        "inputs": inputs,
        "labels": labels,
        "evaluate": evaluate,
        "scaler": None,
    }


def block(part: str) -> str:
    (found,) = [each for each in BLOCKS if part in each]
    return str(found)


def test_the_loop_of_the_guide_trains(names: dict[str, Any], runs: Path) -> None:
    exec(block("monitor.epochs(10)"), names)  # noqa: S102 - our own page
    exec(block("monitor.train_step("), names)  # noqa: S102
    names["monitor"].close()
    found = records(runs)
    assert len(of(StepRow, found)) == 41
    assert [record.step for record in of(EpochFinished, found)] == list(range(4, 41, 4))
    assert len(of(Validated, found)) == 10


def test_the_amp_loop_and_the_observed_loop_of_the_guide_train(names: dict[str, Any], runs: Path) -> None:
    made, _, steps = block("scaler = monitor.scaler").partition("...\n")
    program = f"import amptui\n{made}for _ in range(3):\n{steps}"
    exec(program, names)  # noqa: S102
    assert names["monitor"].scaler.state_dict()["_growth_tracker"] == 3
    names["monitor"].close()
    names["scaler"] = None
    exec(block("amptui.observe("), names)  # noqa: S102
    names["monitor"].close()
    assert len(list(runs.iterdir())) == 2


def test_the_gan_of_the_guide_trains(runs: Path) -> None:
    torch.manual_seed(0)
    generator, critic = nn.Linear(4, 3), nn.Linear(3, 1)
    names: dict[str, Any] = {
        "generator": generator,
        "critic": critic,
        "g_optimizer": torch.optim.SGD(generator.parameters(), lr=0.1),
        "c_optimizer": torch.optim.SGD(critic.parameters(), lr=0.1),
        "pairs": [(torch.randn(5, 3), torch.randn(5, 4))] * 3,
    }
    exec("import amptui\n" + block('monitor.step("critic")'), names)  # noqa: S102 - our own page
    names["monitor"].close()
    steps = of(StepRow, records(runs))
    assert sorted((step.optimizer, step.step) for step in steps) == [
        (name, step) for name in ("", "critic") for step in (1, 2, 3)
    ]
    assert {step.loss_form for step in steps} == {""}
