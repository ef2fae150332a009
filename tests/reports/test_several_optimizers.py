"""The list of runs counts the steps of one optimizer."""

from pathlib import Path

from amptui.runs.kept_run import look_at
from amptui.runs.rundir import RunDir
from tests.builders import make_started, make_step, make_steps, write_journal
from tests.gan_journal import DISCRIMINATOR, gan_records

GAN = tuple(gan_records(60))


def test_the_list_of_runs_counts_the_steps_of_the_first_or_of_what_makes_steps(tmp_path: Path) -> None:
    late = make_steps(119, 150, optimizer=DISCRIMINATOR, precision="fp16")
    summary = look_at(RunDir(write_journal(tmp_path / "gan", [*GAN[:-1], *late])))
    assert (summary.step, summary.precision) == (60, "bf16")
    second_phase = make_steps(1, 3000, optimizer="second phase", precision="fp16")
    phases = write_journal(tmp_path / "phases", [make_started(), make_step(1), *second_phase])
    summary = look_at(RunDir(phases))
    assert (summary.step, summary.precision) == (3000, "fp16")
