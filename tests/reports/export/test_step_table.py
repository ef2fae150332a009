"""The table: every field of every step, and nothing that was not measured."""

import csv
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from amptui.records.ranks import RanksSampled
from amptui.records.run import Record
from amptui.records.steps import StepRecord
from amptui.reports.export import export
from amptui.reports.export.table import number_texts
from tests.gan_journal import gan_records
from tests.golden import Goldens
from tests.reports.export.recorded import write
from tests.telemetry import record_samples
from tests.telemetry.record_samples import step, steps
from tests.telemetry.simulated_ranks import SimulatedRanks, run_of


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def table(folder: Path, *records: Record) -> list[dict[str, str]]:
    export(write(folder / "run", records), csv=folder / "steps.csv")
    return rows(folder / "steps.csv")


def test_a_run_has_a_row_per_step_and_a_column_per_field(
    run: Path, records: list[Record], tmp_path: Path
) -> None:
    trained = [record for record in records if isinstance(record, StepRecord)]
    assert export(run, csv=tmp_path / "steps.csv").steps == len(trained) == 36
    table_rows = rows(tmp_path / "steps.csv")
    assert [int(row["step"]) for row in table_rows] == [record.step for record in trained]
    assert [row["precision"] for row in table_rows] == [record.precision for record in trained]
    assert [float(row["loss"]) for row in table_rows] == [record.loss for record in trained]
    assert [float(row["losses.regress"]) for row in table_rows] == [r.losses["regress"] for r in trained]
    expected = {field.name for field in fields(StepRecord)}
    expected -= {"losses", "group_lrs", "loss_form", "optimizer"}
    assert table_rows[0].keys() == expected | {"losses.classify", "losses.regress"}


def test_the_header_and_some_rows(goldens: Goldens, tmp_path: Path) -> None:
    records = [
        step(1, precision="fp32", losses={"a": 0.25}),
        step(2, precision="fp16", loss_scale=65536.0, growth_tracker=1, skipped=True, losses={"b": 2.0}),
        step(3, lr=0.1, group_lrs=(0.1, 0.01), grad_norm=None, grad_max=0.5, step_seconds=None),
    ]
    table(tmp_path, *records)
    text = (tmp_path / "steps.csv").read_text()
    table(tmp_path / "two", *gan_records(2))
    text += (tmp_path / "two" / "steps.csv").read_text()
    simulated = SimulatedRanks(2, 1, slow="clocks", slow_rank=1, noise=0.0, spread=0.0)
    table(tmp_path / "ranks", *run_of(simulated, 1))
    goldens.check("reports/csv", text + (tmp_path / "ranks" / "steps.ranks.csv").read_text())


def test_each_step_has_its_optimizer(tmp_path: Path) -> None:
    records = list(gan_records(60))
    own = [record for record in records if isinstance(record, StepRecord)]
    found = table(tmp_path, *records)
    assert [row["optimizer"] for row in found] == [record.optimizer or "generator" for record in own]
    assert [row["loss_form"] for row in found] == [record.loss_form for record in own]
    assert [int(row["step"]) for row in found] == [record.step for record in own]
    late: list[Record] = [record_samples.run(), *steps(1, 600), *steps(1, 10, optimizer="second")]
    found = table(tmp_path / "late", *late)
    assert [row["optimizer"] for row in found] == ["first"] * 600 + ["second"] * 10


@pytest.mark.ci
def test_late_loss_parts_have_a_column_in_every_row(tmp_path: Path) -> None:
    early = [step(n, losses={"a": float(n)}) for n in range(1, 5001)]
    late = [step(n, losses={"a": 1.0, "b,\n": 2.0}) for n in range(5001, 9001)]
    table_rows = table(tmp_path, *early, *late)
    assert [row["losses.a"] for row in table_rows[:2]] == ["1.0", "2.0"]
    assert [row["losses.b,?"] for row in table_rows] == [""] * 5000 + ["2.0"] * 4000
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["run", "steps.csv"]


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("=1+1", "'=1+1"),
        ('"=1', "'\"=1"),
        ("@cmd", "'@cmd"),
        ("＝1", "'＝1"),
        ("a;=1", "a;'=1"),
        ("a, -b", "a, '-b"),
        ("a-b=c", "a-b=c"),
        ("\x1b[31m\u202e", "?[31m?"),
        ("x" * 5000, "x" * 1000),
    ],
)
def test_no_text_is_a_formula(name: str, cell: str, tmp_path: Path) -> None:
    (row,) = table(tmp_path, step(1, precision=name, losses={f"p;{name}": -0.5}))
    assert row["precision"] == cell
    assert list(row)[-1][len("losses.p;") :] == cell[: 1000 - len("losses.p;")]
    assert list(row.values())[-1] == "-0.5"


@given(loss=st.floats(), scale=st.none() | st.floats(), name=st.text(max_size=5), part=st.floats())
def test_every_number_comes_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, loss: float, scale: float | None, name: str, part: float
) -> None:
    folder = tmp_path_factory.mktemp("t")
    (row,) = table(folder, step(1, loss=loss, loss_scale=scale, losses={name: part}))
    assert repr(float(row["loss"])) == repr(loss)
    assert (row["loss_scale"] == "") == (scale is None)
    assert repr(float(list(row.values())[-1])) == repr(part)


def test_a_distributed_run_has_a_table_of_its_ranks_beside_the_steps(tmp_path: Path) -> None:
    simulated = SimulatedRanks(4, 1, slow="clocks", slow_rank=2)
    records = list(run_of(simulated, 3))
    exported = export(write(tmp_path / "run", records), csv=tmp_path / "steps.csv")
    assert exported.ranks_csv == tmp_path / "steps.ranks.csv"
    table = rows(exported.ranks_csv)
    samples = [record for record in records if isinstance(record, RanksSampled)]
    assert [int(row["rank"]) for row in table] == [0, 1, 2, 3] * 3
    assert [int(row["step"]) for row in table] == [sample.step for sample in samples for _ in range(4)]
    assert [float(row["compute_seconds"]) for row in table[:4]] == list(samples[0].compute_seconds)
    assert [row["throttled"] for row in table[:4]] == ["", "", "thermal (hw)", ""]
    assert {row["host"] for row in table} == {"node-1"}


NEAR = st.sampled_from([1e-4, 9.999999999999999e-05, 1e16, 9999999999999998.0, 0.0, -0.0, 5e-324, 65536.0])

USUAL = st.floats(1e-4, 1e16, exclude_max=True) | st.floats(1e-4, 1e3)

FLOATS = st.one_of(
    st.lists(USUAL), st.lists(st.floats() | NEAR), st.lists(st.floats() | st.none()), st.lists(USUAL | NEAR)
)


@example([0.0, -0.0])
@example([1.0, float("nan")])
@example([1e308, 1e308])
@given(FLOATS | st.lists(st.none() | st.integers(0, 2**53)))
def test_a_column_is_written_as_python_writes_each_number(values: list[float | None]) -> None:
    assert list(number_texts(values)) == ["" if value is None else repr(value) for value in values]
