"""Steps, records and runs for every test: ordinary ones, with whatever a test wants to differ."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from amptui.records import codec
from amptui.records.own_loop import LossForm
from amptui.records.run import DataInfo, PrecisionChanged, Record, RunFinished, RunResumed, RunStarted
from amptui.records.steps import COLUMNS, Steps, joined
from amptui.runs.journal import JournalReader
from amptui.runs.kept_run import described
from amptui.runs.rundir import RunDir
from amptui.telemetry.session import Session
from amptui.telemetry.view import SessionView

T = TypeVar("T")

_STEP: Mapping[str, Any] = {
    "step": 1,
    "time": 0.0,
    "epoch": 1,
    "precision": "fp32",
    "loss": 0.5,
    "samples": 256,
    "step_seconds": 0.004,
    "data_seconds": 1e-5,
    "lr": 1e-4,
    "loss_scale": None,
    "growth_tracker": None,
    "skipped": False,
    "grad_norm": 1.0,
    "nonfinite_gradients": 0,
    "grad_max": None,
    "settling": False,
}

_STARTED = RunStarted(
    time=100.0,
    model="mnist-deep",
    device="cuda:0",
    device_name="NVIDIA H200",
    gpu_uuid="GPU-1",
    precision="fp32",
    amp_precision="fp16",
    unsupported={},
    config={},
    versions={},
    hardware={},
    data=DataInfo(name="MNIST", real=True, samples=60_000),
    parameters=14_740_522,
    batch_size=256,
    steps_per_epoch=234,
    total_epochs=10,
    total_steps=2340,
    growth_interval=2000,
)


def make_started(**changes: Any) -> RunStarted:
    """A run of 2,340 steps on a GPU begins at 100 s, in FP32."""
    return replace(_STARTED, **changes)


def make_resumed(after: int, **changes: Any) -> RunResumed:
    """The run of :func:`make_started` goes on after a step, on the same device, at 900 s."""
    record = RunResumed(
        time=900.0,
        step=after,
        checkpoint=f"step-{after:09}.pt",
        device="cuda:0",
        device_name="NVIDIA H200",
        gpu_uuid="GPU-1",
        precision="fp32",
        versions={},
    )
    return replace(record, **changes)


def make_finished(steps: int, **changes: Any) -> RunFinished:
    record = RunFinished(time=100 + steps / 1000, steps=steps, seconds=steps / 1000, reason="done")
    return replace(record, **changes)


def make_switch(step: int, previous: str, current: str, **changes: Any) -> PrecisionChanged:
    """``step`` is the first in the precision ``current``."""
    record = PrecisionChanged(time=100 + step / 1000, step=step, previous=previous, current=current)
    return replace(record, **changes)


def make_step(number: int, **changes: Any) -> Steps:
    """The row of a step at 100 s and ``number`` milliseconds; one in ``fp16`` has a loss scale by default."""
    if changes.get("precision") == "fp16":
        changes = {"loss_scale": 65536.0, "growth_tracker": 0} | changes
    return row(**{**_STEP, "step": number, "time": 100 + number / 1000} | changes)


def row(*, step: int, **facts: Any) -> Steps:
    columns = _as_columns(facts)
    return Steps(first_step=step, count=1, **columns)


def changed(steps: Steps, **facts: Any) -> Steps:
    if "step" in facts:
        facts["first_step"] = facts.pop("step")
    return replace(steps, **_as_columns(facts))


def _as_columns(facts: Mapping[str, Any]) -> dict[str, Any]:
    columns = {name: [value] if name in COLUMNS else value for name, value in facts.items()}
    if "losses" in facts:
        columns["losses"] = {name: [loss] for name, loss in facts["losses"].items()}
    if "group_lrs" in facts:
        columns["group_lrs"] = tuple([lr] for lr in facts["group_lrs"])
    return columns


def in_one(rows: Sequence[Steps]) -> Steps:
    """One block of consecutive steps, which have in common what those of a block do."""
    (block,) = joined(rows)
    return block


def make_steps(first: int, last: int, **changes: Any) -> list[Steps]:
    """Consecutive steps; a change that is a list has a value for each of them."""
    columns = {name: value for name, value in changes.items() if isinstance(value, list)}
    assert all(len(column) == last - first + 1 for column in columns.values())
    return [
        make_step(number, **(changes | {name: column[number - first] for name, column in columns.items()}))
        for number in range(first, last + 1)
    ]


def make_run(steps: int) -> list[Record]:
    return [make_started(), *make_steps(1, steps), make_finished(steps)]


@dataclass(frozen=True)
class StepRow:
    """One step of a block, to read it: ``loss`` is its own, and so on."""

    time: float
    step: int
    epoch: int
    precision: str
    loss: float | None
    samples: int
    step_seconds: float | None
    data_seconds: float | None
    lr: float | None
    loss_scale: float | None
    growth_tracker: int | None
    skipped: bool
    grad_norm: float | None
    nonfinite_gradients: int | None
    settling: bool
    grad_max: float | None
    losses: Mapping[str, float]
    micro_batches: int
    group_lrs: tuple[float | None, ...]
    optimizer: str
    loss_form: LossForm


def rows_of(steps: Steps) -> Iterator[StepRow]:
    """All steps, oldest first."""
    for index, time in enumerate(steps.times()):
        facts = {name: getattr(steps, name) for name in StepRow.__dataclass_fields__}
        own = {name: facts[name][index] for name in COLUMNS}
        parts = {name: column[index] for name, column in steps.losses.items() if column[index] is not None}
        group_lrs = tuple(column[index] for column in steps.group_lrs)
        number = steps.first_step + index
        yield StepRow(
            **{**facts, **own, "time": time, "step": number, "losses": parts, "group_lrs": group_lrs}
        )


def one_by_one(records: Iterable[Record]) -> Iterator[Any]:
    """``records`` in order, each block of steps as its steps."""
    for record in records:
        if isinstance(record, Steps):
            yield from rows_of(record)
        else:
            yield record


def as_recorded(record: Any) -> Record:
    """A row of a step as the block that a run records; other records as they are."""
    return row(**vars(record)) if isinstance(record, StepRow) else record


def fold(records: Iterable[Any], run_dir: str = "") -> Session:
    """All that is known after ``records``, rows of steps among them."""
    session = Session(run_dir)
    session.fold(map(as_recorded, records))
    return session


def view_of(*records: Record) -> SessionView:
    return fold(records).view()


def assert_holds(known: object, expected: Mapping[str, Any]) -> None:
    """Attributes, dotted names among them, have these values; floats nearly."""
    for name, value in expected.items():
        found: Any = known
        for part in name.split("."):
            found = getattr(found, part)
        assert found == (pytest.approx(value) if isinstance(value, float) else value), name


def write_journal(folder: Path, records: Iterable[Record]) -> Path:
    """Make ``folder`` the folder of a run with these records; return it."""
    folder.mkdir(parents=True, exist_ok=True)
    records = list(records)
    lines = "".join(f"{codec.dumps(record)}\n" for record in records)
    (folder / "journal.jsonl").write_text(lines, encoding="ascii")
    facts: dict[str, Any] = {}
    for record in records:
        if isinstance(record, RunStarted | RunResumed):
            facts |= described(record)
    if facts:
        RunDir(folder).write_run_json(facts)
    return folder


def read(path: Path) -> Iterator[Any]:
    """The records of a journal, each step as a record."""
    return one_by_one(JournalReader(path))


def recorded(runs: Path) -> list[Record]:
    (run,) = runs.iterdir()
    return list(read(run / "journal.jsonl"))


def of(kind: type[T], records: Iterable[Record]) -> list[T]:
    return [record for record in records if type(record) is kind]
