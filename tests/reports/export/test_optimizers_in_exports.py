"""What leaves a run with several optimizers: every file, list and line says of which one a number is."""

import csv
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from amptui.diagnosis.summary import summary_lines
from amptui.process.plain_lines import status_line
from amptui.records.steps import StepRecord
from amptui.reports.compare import sentences
from amptui.reports.compare.contrasts import compared
from amptui.reports.export import export
from amptui.reports.export.recorded_run import RecordedRun
from amptui.runs.kept_run import look_at
from amptui.runs.rundir import RunDir
from tests.gan_journal import DISCRIMINATOR, gan_records
from tests.reports.compare.compared_runs import figures
from tests.reports.export.recorded import write
from tests.single_steps import in_blocks
from tests.telemetry.record_samples import run, step, steps
from tests.telemetry.whole_runs import session_of

if TYPE_CHECKING:
    from amptui.records.run import Record

GAN = tuple(gan_records(60))
STEPS = [record for record in GAN if isinstance(record, StepRecord)]


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_table_of_steps_has_a_column_of_optimizers(tmp_path: Path) -> None:
    export(write(tmp_path / "gan", GAN), csv=tmp_path / "steps.csv")
    table_rows = rows(tmp_path / "steps.csv")
    assert [row["optimizer"] for row in table_rows] == [record.optimizer or "generator" for record in STEPS]
    assert [row["loss_form"] for row in table_rows] == [record.loss_form for record in STEPS]
    assert [int(row["step"]) for row in table_rows] == [record.step for record in STEPS]


@pytest.mark.ci
def test_a_second_optimizer_may_come_late(tmp_path: Path) -> None:
    late: list[Record] = [run(), *steps(1, 9000), *steps(1, 10, optimizer="second")]
    export(write(tmp_path / "late", late), csv=tmp_path / "steps.csv")
    assert [row["optimizer"] for row in rows(tmp_path / "steps.csv")] == ["first"] * 9000 + ["second"] * 10


def test_a_page_has_a_card_with_the_charts_of_each_other_optimizer(tmp_path: Path) -> None:
    export(write(tmp_path / "gan", GAN), html=tmp_path / "run.html")
    page = (tmp_path / "run.html").read_text()
    assert "<h2>optimizers</h2>" in page
    assert f"<h2>{DISCRIMINATOR}</h2>" in page
    axes = re.findall(r'data-first="(\d+)" data-last="(\d+)"', page)
    assert axes == [("1", "60"), ("1", "118")]
    assert "sum of 2 backward passes" in page


def test_a_page_of_one_optimizer_has_no_such_card(tmp_path: Path) -> None:
    export(write(tmp_path / "run", [run(), *steps(1, 30)]), html=tmp_path / "run.html")
    page = (tmp_path / "run.html").read_text()
    assert "<h2>optimizers</h2>" not in page
    assert page.count("data-first=") == 1


def test_curves_are_of_each_optimizer_s_own_steps() -> None:
    recording = RecordedRun("gan", "runs/gan")
    recording.add(in_blocks(GAN))
    assert recording.view.front == ""
    assert [view.front for view in recording.other_views] == [DISCRIMINATOR]
    assert recording.step_curve("lr").recent.tolist() == [2e-4] * 60
    assert recording.step_curve("lr", DISCRIMINATOR).recent.tolist() == [4e-4] * 118
    assert recording.step_curve("lr", "no such optimizer").count == 0


def test_tensorboard_has_tags_for_each_optimizer(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs amptui[tensorboard]")
    from tests.reports.export.test_tensorboard import curve, read

    export(write(tmp_path / "gan", GAN), tensorboard=tmp_path / "tb")
    events = read(tmp_path / "tb" / "gan")
    for tag, optimizer in (("loss", ""), (f"{DISCRIMINATOR}/loss", DISCRIMINATOR)):
        own = [record for record in STEPS if record.optimizer == optimizer]
        assert [number for number, _ in curve(events, tag)] == [record.step for record in own]
        assert [value for _, value in curve(events, tag)] == pytest.approx([record.loss for record in own])
    for tag, last in (("learning_rate", (60, 2e-4)), (f"{DISCRIMINATOR}/learning_rate", (118, 4e-4))):
        assert curve(events, tag)[-1] == pytest.approx(last)


def test_a_status_line_has_all_of_them() -> None:
    text = status_line(session_of(GAN).view())
    first, other = text.split("  | ")
    assert first.startswith("generator:  step 60  ")
    assert other.startswith(f"{DISCRIMINATOR}: step 118  AMP fp16  loss ")
    assert "lr 0.000400" in other


def test_a_status_line_tells_what_its_loss_is() -> None:
    assert "(sum of 2 backward passes)" in status_line(session_of(GAN).view(DISCRIMINATOR))
    unknown = session_of([run(), *steps(1, 5, loss=None, loss_form="scaled")]).view()
    assert "no loss: scaled by the script" in status_line(unknown)


def test_the_summary_has_a_row_for_each() -> None:
    lines = summary_lines(session_of(GAN).view())
    head = next(place for place, text in enumerate(lines) if text.startswith("optimizer"))
    assert [text.split()[:2] for text in lines[head + 1 : head + 3]] == [
        ["generator", "60"],
        [DISCRIMINATOR, "118"],
    ]
    assert lines[head + 3] == "all other numbers are of generator"
    assert not any(text.startswith("optimizer") for text in summary_lines(session_of(steps(1, 30)).view()))


def test_a_comparison_is_of_the_first_and_says_so() -> None:
    several = figures(GAN, name="gan")
    alone = figures([record for record in GAN if getattr(record, "optimizer", "") in ("", "generator")])
    assert several.view.step == alone.view.step == 60
    assert several.final_training == alone.final_training
    assert (several.samples, several.seconds) == (alone.samples, alone.seconds)
    sentence = "of several optimizers only the first is compared: generator of gan"
    assert sentence in sentences.how_measured(compared([several, alone]))
    assert sentence not in sentences.how_measured(compared([alone, alone]))


def test_the_list_of_runs_counts_the_steps_of_the_first(tmp_path: Path) -> None:
    folder = write(tmp_path / "gan", [*GAN[:-1], *steps(119, 150, optimizer=DISCRIMINATOR, precision="fp16")])
    summary = look_at(RunDir(folder))
    assert (summary.step, summary.precision) == (60, "bf16")


def test_the_list_of_runs_falls_back_to_what_makes_steps(tmp_path: Path) -> None:
    second_phase = steps(1, 3000, optimizer="second phase", precision="fp16")
    summary = look_at(RunDir(write(tmp_path / "phases", [run(), step(1), *second_phase])))
    assert (summary.step, summary.precision) == (3000, "fp16")
