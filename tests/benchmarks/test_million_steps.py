"""The benchmark of a long run, in small."""

from pathlib import Path

import pytest

from amptui.records.run import LossScaleChanged, PrecisionChanged, StepSkipped
from amptui.records.samples import DeviceSample
from amptui.records.steps import Steps
from amptui.runs.reader import JournalReader
from tests.benchmarks import million_steps
from tests.benchmarks.long_run import records

STEPS = 9000


def test_a_long_run_has_all_that_comes_between_its_steps() -> None:
    found = list(records(STEPS))
    blocks = [record for record in found if isinstance(record, Steps)]
    assert [block.first_step for block in blocks[1:]] == [block.last_step + 1 for block in blocks[:-1]]
    assert (blocks[0].first_step, blocks[-1].last_step) == (1, STEPS)
    assert STEPS / len(blocks) > 25
    skipped = [block.last_step for block in blocks if block.skipped]
    assert skipped == [record.step for record in found if isinstance(record, StepSkipped)]
    assert len(skipped) == 3
    assert sum(isinstance(record, LossScaleChanged) for record in found) == 2 * len(skipped)
    assert sum(isinstance(record, PrecisionChanged) for record in found) == 1
    assert sum(isinstance(record, DeviceSample) for record in found) >= 15


@pytest.mark.ci  # a dozen processes
@pytest.mark.parametrize("single", [False, True])
def test_every_command_is_measured_on_a_long_run(tmp_path: Path, single: bool) -> None:
    for seed, name in enumerate(("one", "other")):
        million_steps.make_run(tmp_path / name, STEPS, seed=seed, single=single)
    assert sum(isinstance(record, Steps) for record in JournalReader(tmp_path / "one" / "journal.jsonl")) > 0
    costs = {name: million_steps.measure(name, tmp_path) for name in million_steps.COMMANDS}
    assert all(cost.cpu_seconds > 0 and cost.peak_bytes > 2**20 for cost in costs.values())
    assert {costs[name].detail["step"] for name in ("fold", "attach", "replay-end")} == {STEPS}
    assert costs["resume"].detail["lost_steps"] == STEPS // 10
    assert costs["restart"].detail["last_steps"] == {"": STEPS}
    assert len((tmp_path / "out.csv").read_text().splitlines()) == STEPS + 1
    assert million_steps.table(list(costs.values())).startswith("command")
