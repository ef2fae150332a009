"""TensorBoard's files, read back by TensorBoard itself."""

import math
import warnings
from pathlib import Path
from typing import Any

import pytest

from amptui.records.findings import UpdatesMeasured
from amptui.records.run import EpochFinished, Record, Validation
from amptui.reports.export.exporting import export
from tests.builders import StepRow, of, one_by_one, write_journal
from tests.gan_journal import gan_records
from tests.golden import Goldens
from tests.telemetry.record_samples import device, step
from tests.telemetry.record_samples import run as started

pytestmark = pytest.mark.ci


@pytest.fixture(autouse=True)
def _has_tensorboard() -> None:
    pytest.importorskip("tensorboard", reason="needs amptui[tensorboard]")


def read(folder: Path) -> Any:
    """What TensorBoard knows of a run's folder, nothing thinned out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what TensorBoard's own reader imports is its own matter
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    return events


def exported(tmp_path: Path, *records: Record) -> Any:
    export(write_journal(tmp_path / "a-run", records), tensorboard=tmp_path / "tb")
    return read(tmp_path / "tb" / "a-run")


def curve(events: Any) -> str:
    return " ".join(f"{event.step}={event.value:.5g}" for event in events)


VALIDATION = Validation(loss=0.5, accuracy=0.75, samples=10, metrics={"top5": 0.875})

RECORDS: list[Record] = [
    started(),
    step(1, grad_max=65504.0 / 65536 / 4),
    step(2, precision="fp16", loss_scale=1024.0, grad_max=65504.0 / 1024 / 8),
    step(3, grad_max=65504.0 / 512, step_seconds=0.5, samples=64),
    device(101.0, "fp32", 5, 60.0),
    UpdatesMeasured(time=101.0, step=1, ratios={"a.0": 1 / 64, "b": 0.5}),
    UpdatesMeasured(time=101.0, step=3, ratios={"a.0": 3 / 64}),
    UpdatesMeasured(time=101.0, step=2, ratios={"c": 0.25}, optimizer="d"),
    EpochFinished(time=101.0, step=3, epoch=1, seconds=None, mean_loss=None, validation=VALIDATION),
    step(4, loss=math.nan, skipped=True),
]


def test_each_record_has_its_curves_at_its_step(tmp_path: Path, goldens: Goldens) -> None:
    lines = []
    for name, records in {"one": RECORDS, "two optimizers": list(gan_records(4))}.items():
        events = exported(tmp_path / name, *records)
        points = {tag: events.Scalars(tag) for tag in sorted(events.Tags()["scalars"])}
        lines += [f"== {name}", *(f"{tag}: {curve(events)}" for tag, events in points.items())]
        times = [row.time for row in of(StepRow, one_by_one(records)) if not row.optimizer]
        assert [event.wall_time for event in points["loss"]] == times
    goldens.check("reports/tensorboard", "\n".join(lines))
