"""How the benchmark of faults judges what it sees, and one fault that it causes."""

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from amptui.records.ranks import RankLost, RanksAwaited, StacksTaken
from amptui.records.run import Record, RunFailed, RunFinished
from tests.benchmarks import rank_faults
from tests.benchmarks.fault_outcomes import HEAD, Expected, Outcome, row, skipped_row, table, wrongs
from tests.telemetry.record_samples import steps

AWAITED = RanksAwaited(time=104.0, step=4, ranks=(1,), count=1, phase="loading", seconds=12.0)

LOST = RankLost(time=105.0, step=4, rank=1, host="node", cause="hung")

STACKS = StacksTaken(time=105.0, step=4, stacks=(), silent=())

FAILED = RunFailed(time=106.0, step=4, error="rank 1 hung", traceback="")

ENDS = (AWAITED, LOST, STACKS, FAILED)

HUNG = Expected(says="rank 1 hung", awaited=(1, "loading"), lost=(1, "hung"), stacks=True)

SEEN = Outcome(
    statuses=(1,),
    errors="amptui: rank 1 hung; to resume from step-4.pt: amptui train --resume run\n",
    output="step 4\n",
    records=(*steps(1, 4), *ENDS),
    steps_made=dict.fromkeys(range(2), (101.0, 102.0, 103.0, 104.0)),
    fault_at=104.5,
    ended_at=125.0,
    left=0,
    checkpoint_step=4,
)


def lacking(*left_out: Record) -> tuple[Record, ...]:
    """The journal without some records."""
    return tuple(record for record in SEEN.records if record not in left_out)


def test_a_run_that_ended_as_it_should_has_nothing_wrong() -> None:
    assert wrongs(SEEN, HUNG) == []
    assert (SEEN.steps_trained, SEEN.steps_written, SEEN.seconds) == (4, 4, 20.5)
    assert row("stuck", "gloo", SEEN, HUNG)[-5:] == ("RunFailed: rank 1 hung", "4 / 4 / 0", "20", "0", "OK")


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"statuses": (0,)}, HUNG),
        ({"statuses": (1, None)}, HUNG),
        ({"left": 1}, HUNG),
        ({"fault_at": None}, HUNG),
        ({"errors": "Traceback (most recent call last):\namptui: rank 1 hung; to resume from here\n"}, HUNG),
        ({"errors": ""}, HUNG),
        ({"errors": "amptui: rank 1 hung\n"}, HUNG),
        ({"records": lacking(FAILED)}, HUNG),
        ({"records": lacking(AWAITED)}, HUNG),
        ({"records": (*SEEN.records, replace(AWAITED, ranks=(2,)))}, HUNG),
        ({"records": lacking(LOST)}, HUNG),
        ({"records": (*SEEN.records, replace(LOST, rank=2))}, HUNG),
        ({"records": lacking(STACKS)}, HUNG),
        ({}, replace(HUNG, finishes=True)),
        ({}, replace(HUNG, says="rank 2 hung")),
        ({}, replace(HUNG, never_says="rank [01]")),
        ({"checkpoint_step": 3}, replace(HUNG, checkpoint=True)),
        ({"records": (*steps(1, 3), *ENDS)}, HUNG),
        ({"records": (*steps(1, 1), *ENDS)}, replace(HUNG, keeps_all=False)),
    ],
)
def test_one_thing_that_is_not_as_it_should_be_is_told(changed: dict[str, Any], expected: Expected) -> None:
    assert len(wrongs(replace(SEEN, **changed), expected)) >= 1


def test_a_rank_0_that_was_killed_may_lack_the_last_seconds() -> None:
    unwritten = replace(SEEN, records=(*steps(1, 3), *ENDS))
    assert wrongs(unwritten, replace(HUNG, keeps_all=False)) == []
    assert unwritten.unwritten_seconds == 0.5


def test_the_last_words_are_those_on_standard_error_if_there_are_any() -> None:
    assert SEEN.last_words == "amptui: rank 1 hung; to resume from step-4.pt: amptui train --resume run"
    assert replace(SEEN, errors="").last_words == "step 4"
    finished = RunFinished(time=106.0, steps=4, seconds=1.0, reason="done")
    done = replace(SEEN, errors="", statuses=(0,), records=(*steps(1, 4), finished))
    assert wrongs(done, Expected(status=0, finishes=True)) == []


def test_the_table_has_a_line_for_what_could_not_be_tried() -> None:
    lines = table([row("stuck", "gloo", SEEN, HUNG), skipped_row("full", "nccl", "no compiler")]).splitlines()
    assert lines[0].split()[:2] == list(HEAD[:2])
    assert lines[2].endswith("skipped: no compiler")


def test_faults_have_names_of_their_own() -> None:
    names = [fault.name for fault in rank_faults.faults(90.0)]
    assert len(set(names)) == len(names)


@pytest.mark.ci
def test_a_fault_is_tried(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--ranks", "2", "--backend", "gloo", "--keep", str(tmp_path)]
    rank_faults.main(["--only", "kill -9 of rank 1 by", *arguments])
    line = capsys.readouterr().out.splitlines()[1]
    assert line.startswith("kill -9 of rank 1 by itself, in a step  gloo     1  ")
    assert line.endswith("0     OK"), line
    assert signal.SIGKILL.name not in line
