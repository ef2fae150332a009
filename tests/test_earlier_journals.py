"""Journals with a line for each step, as earlier versions wrote them, mean what they meant."""

import json
from pathlib import Path

import pytest

from amptui.records import codec
from amptui.records.run import RunResumed, StepSkipped
from amptui.records.steps import StepRecord, Steps
from amptui.reports.export import export
from amptui.runs.kept_run import look_at
from amptui.runs.reader import JournalReader
from amptui.runs.repair import cut_after
from amptui.runs.rundir import RunDir
from amptui.telemetry.session import Session
from tests.living import records_of, steps_of, train_arguments
from tests.single_steps import one_by_one
from tests.terminal import KNOBS
from tests.warm import WarmSource

JOURNAL = Path(__file__).parent / "earlier_journal.jsonl"
"""40 steps in fp16, the last five skipped, as the last version with a line for each step wrote them."""

TABLE = JOURNAL.with_suffix(".csv")
"""What that version exported of it."""


def test_its_steps_are_blocks_of_one() -> None:
    blocks = [record for record in JournalReader(JOURNAL) if isinstance(record, Steps)]
    assert [(block.first_step, block.count) for block in blocks] == [(step, 1) for step in range(1, 41)]


def test_it_plays_back_as_before() -> None:
    session = Session()
    session.fold(JournalReader(JOURNAL))
    view = session.view()
    assert (view.state, view.step, view.precision, view.unmeasured_steps) == ("finished", 40, "fp16", 0)
    assert (view.smoothed_loss, view.best_loss_step) == (1.3081375472112529, 33)
    assert (view.step_seconds, view.elapsed_seconds) == (0.099292836999978, 4.47316575050354)
    assert view.scaler is not None
    assert (view.scaler.scale, view.scaler.applied, view.scaler.skipped) == (2048.0, 35, 5)
    (row,) = view.comparison.rows
    assert (row.steps, row.median_step_seconds) == (22, 0.044728445000146166)


def test_it_is_exported_as_before(tmp_path: Path) -> None:
    assert export(JOURNAL, csv=tmp_path / "a.csv").steps == 40
    assert (tmp_path / "a.csv").read_text() == TABLE.read_text()


def test_it_is_listed_with_its_newest_step(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").write_bytes(JOURNAL.read_bytes())
    kept = look_at(RunDir(tmp_path))
    assert (kept.state, kept.step, kept.total_steps) == ("finished", 40, 40)


def test_it_is_cut_where_a_run_goes_on(tmp_path: Path) -> None:
    path, lines = tmp_path / "journal.jsonl", JOURNAL.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines))
    assert cut_after(path, 20) == 20
    kept = path.read_bytes().splitlines(keepends=True)
    assert kept == lines[: len(kept)]
    steps = [record for record in JournalReader(path) if isinstance(record, Steps)]
    assert steps[-1].last_step == 20


@pytest.mark.ci
def test_a_run_that_an_earlier_version_began_goes_on_in_its_journal(warm: WarmSource, tmp_path: Path) -> None:
    options = ("--headless", "--checkpoint-every", "10", "--precision", "fp16")
    knobs = ("--set", "trouble=nan", "--set", "at=15")
    assert warm.run(*train_arguments(tmp_path, "--steps", "30", *options, *knobs)).returncode == 0
    path = tmp_path / "journal.jsonl"
    earlier = [codec.dumps(record) for record in one_by_one(JournalReader(path))]
    assert sum(json.loads(line)["type"] == "StepRecord" for line in earlier) == 30
    path.write_text("".join(f"{line}\n" for line in earlier))
    done = warm.run(
        "train", KNOBS, "--resume", str(tmp_path), "--steps", "50", "--device", "cpu", "--headless"
    )
    assert done.returncode == 0, done.stderr
    records = records_of(tmp_path)
    assert [step.step for step in steps_of(tmp_path)] == list(range(1, 51))
    assert [record.step for record in records if isinstance(record, RunResumed)] == [30]
    skipped = {record.step for record in records if isinstance(record, StepSkipped)}
    assert skipped == {record.step for record in steps_of(tmp_path) if record.skipped}
    types = [json.loads(line)["type"] for line in path.read_text().splitlines()]
    assert types.count("StepRecord") == 30
    assert 1 <= types.count("Steps") <= 20
    assert not any(isinstance(record, StepRecord) for record in JournalReader(path))
