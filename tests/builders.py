"""Steps, records and runs for every test: ordinary ones, with whatever a test wants to differ."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from amptui.records import codec
from amptui.records.run import DataInfo, PrecisionChanged, Record, RunFinished, RunResumed, RunStarted
from amptui.records.steps import COLUMNS, StepRecord, Steps
from amptui.runs.reader import JournalReader
from amptui.telemetry.session import Session
from amptui.telemetry.view import SessionView

T = TypeVar("T")

_STEP = StepRecord(
    time=0.0,
    step=1,
    epoch=1,
    precision="fp32",
    loss=0.5,
    samples=256,
    step_seconds=0.004,
    data_seconds=1e-5,
    lr=1e-4,
    loss_scale=None,
    growth_tracker=None,
    skipped=False,
    grad_norm=1.0,
    nonfinite_gradients=0,
    settling=False,
)

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


# --------------------------------------------------------------------------------------------- records


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
    """The run has made all of its steps."""
    record = RunFinished(time=100 + steps / 1000, steps=steps, seconds=steps / 1000, reason="done")
    return replace(record, **changes)


def make_switch(step: int, previous: str, current: str, **changes: Any) -> PrecisionChanged:
    """``step`` is the first in the precision ``current``."""
    record = PrecisionChanged(time=100 + step / 1000, step=step, previous=previous, current=current)
    return replace(record, **changes)


def make_step(number: int, **changes: Any) -> StepRecord:
    """A step at 100 s and ``number`` milliseconds; one in ``fp16`` has a loss scale unless it is changed."""
    if changes.get("precision") == "fp16":
        changes = {"loss_scale": 65536.0, "growth_tracker": 0} | changes
    return replace(_STEP, **{"step": number, "time": 100 + number / 1000} | changes)


def make_steps(first: int, last: int, **changes: Any) -> list[StepRecord]:
    """Consecutive steps; a change that is a list has a value for each of them."""
    columns = {name: value for name, value in changes.items() if isinstance(value, list)}
    assert all(len(column) == last - first + 1 for column in columns.values())
    return [
        make_step(number, **(changes | {name: column[number - first] for name, column in columns.items()}))
        for number in range(first, last + 1)
    ]


def make_run(
    steps: int = 30,
    *,
    started: Mapping[str, Any] | None = None,
    finished: bool = True,
    precision: str = "fp32",
    **of_steps: Any,
) -> list[Record]:
    """A whole run in one precision: its start, its steps and, unless it is still going, its end."""
    start = make_started(**{"precision": precision, **(started or {})})
    trained = make_steps(1, steps, precision=precision, **of_steps)
    return [start, *trained, *([make_finished(steps)] if finished else [])]


# --------------------------------------------------------------------------- blocks and single steps


def one_by_one(records: Iterable[Record]) -> Iterator[Record]:
    """``records`` in order, each block of steps as its steps."""
    for record in records:
        if isinstance(record, Steps):
            yield from record.one_by_one()
        else:
            yield record


def in_blocks(records: Iterable[Record]) -> list[Record]:
    """``records`` in order, each step as a block of its own."""
    return [Steps.of(record) if isinstance(record, StepRecord) else record for record in records]


def joined(steps: Sequence[StepRecord]) -> Steps:
    """One block of consecutive steps, which have in common what those of a block do."""
    first, parts = steps[0], dict.fromkeys(name for step in steps for name in step.losses)
    columns: dict[str, Any] = {name: [getattr(step, name) for step in steps] for name in COLUMNS}
    return replace(
        Steps.of(first),
        time=steps[-1].time,
        count=len(steps),
        losses={name: [step.losses.get(name) for step in steps] for name in parts},
        group_lrs=tuple(map(list, zip(*(step.group_lrs for step in steps), strict=True))),
        **columns,
    )


# -------------------------------------------------------------------------------------------- sessions


def fold(records: Iterable[Record], run_dir: str = "") -> Session:
    """All that is known after ``records``."""
    session = Session(run_dir)
    session.fold(records)
    return session


def view_of(*records: Record) -> SessionView:
    """What a screen shows after ``records``."""
    return fold(records).view()


def assert_holds(known: object, expected: Mapping[str, Any]) -> None:
    """Attributes, dotted names among them, have these values; floats nearly."""
    for name, value in expected.items():
        found: Any = known
        for part in name.split("."):
            found = getattr(found, part)
        assert found == (pytest.approx(value) if isinstance(value, float) else value), name


# -------------------------------------------------------------------------------------------- journals


def write_journal(folder: Path, records: Iterable[Record]) -> Path:
    """Make ``folder`` the folder of a run with these records; return it."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = "".join(f"{codec.dumps(record)}\n" for record in in_blocks(records))
    (folder / "journal.jsonl").write_text(lines, encoding="ascii")
    return folder


class SingleSteps(Iterator[Record]):
    """The records of a journal, each step as a record; other attributes are its reader's."""

    def __init__(self, path: Path) -> None:
        self._reader = JournalReader(path)
        self._records = one_by_one(self._reader)

    def __next__(self) -> Record:
        return next(self._records)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)


read = SingleSteps


def recorded(runs: Path) -> list[Record]:
    """The records of the only run in the folder."""
    (run,) = runs.iterdir()
    return list(read(run / "journal.jsonl"))


def of(kind: type[T], records: Iterable[Record]) -> list[T]:
    """Those of one kind, in order."""
    return [record for record in records if type(record) is kind]
