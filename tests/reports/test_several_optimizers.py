"""What leaves a run with several optimizers in lines: each says of which optimizer a number is."""

from pathlib import Path

from amptui.diagnosis.summary import summary_lines
from amptui.process.plain_lines import status_line
from amptui.reports.compare import sentences
from amptui.reports.compare.contrasts import compared
from amptui.runs.kept_run import look_at
from amptui.runs.rundir import RunDir
from tests.builders import make_started, make_step, make_steps, view_of, write_journal
from tests.gan_journal import DISCRIMINATOR, gan_records
from tests.golden import Goldens
from tests.reports.compare.compared_runs import figures
from tests.telemetry.whole_runs import session_of

GAN = tuple(gan_records(60))


def test_a_status_line_and_a_summary_have_all_of_them(goldens: Goldens) -> None:
    session = session_of(GAN)
    scaled = view_of(make_started(), *make_steps(1, 5, loss=None, loss_form="scaled"))
    lines = [
        status_line(session.view()),
        status_line(session.view(DISCRIMINATOR)),
        status_line(scaled),
        *summary_lines(session.view()),
    ]
    goldens.check("reports/several optimizers", "\n".join(lines))
    one = summary_lines(view_of(make_started(), *make_steps(1, 30)))
    assert not any(text.startswith("optimizer") for text in one)


def test_a_comparison_is_of_the_first_and_says_so() -> None:
    several = figures(GAN, name="gan")
    alone = figures([record for record in GAN if getattr(record, "optimizer", "") in ("", "generator")])
    assert several.view.step == alone.view.step == 60
    assert several.final_training == alone.final_training
    assert (several.samples, several.seconds) == (alone.samples, alone.seconds)
    sentence = "of several optimizers only the first is compared: generator of gan"
    assert sentence in sentences.how_measured(compared([several, alone]))
    assert sentence not in sentences.how_measured(compared([alone, alone]))


def test_the_list_of_runs_counts_the_steps_of_the_first_or_of_what_makes_steps(tmp_path: Path) -> None:
    late = make_steps(119, 150, optimizer=DISCRIMINATOR, precision="fp16")
    summary = look_at(RunDir(write_journal(tmp_path / "gan", [*GAN[:-1], *late])))
    assert (summary.step, summary.precision) == (60, "bf16")
    second_phase = make_steps(1, 3000, optimizer="second phase", precision="fp16")
    phases = write_journal(tmp_path / "phases", [make_started(), make_step(1), *second_phase])
    summary = look_at(RunDir(phases))
    assert (summary.step, summary.precision) == (3000, "fp16")
