"""The recorded run that ships with amptui tells all that its README says of it."""

from amptui.records.findings import ModulesTraced, XRayTaken
from amptui.records.run import PrecisionChanged
from amptui.records.steps import StepRecord
from amptui.telemetry.health import judge_xray
from amptui.telemetry.session import Session
from tests.checkout import ROOT
from tests.single_steps import read

JOURNAL = ROOT / "demo" / "mnist-deep.jsonl"


def test_the_demo_is_whole_and_small() -> None:
    reader = read(JOURNAL)
    records = list(reader)
    assert (reader.damaged_lines, reader.unknown_records, reader.torn) == (0, 0, False)
    assert JOURNAL.stat().st_size < 1_000_000
    assert sum(isinstance(record, StepRecord) for record in records) == 190
    told = {type(r): r.step for r in records if isinstance(r, PrecisionChanged | XRayTaken | ModulesTraced)}
    assert told == {PrecisionChanged: 52, XRayTaken: 116, ModulesTraced: 166}


def test_the_demo_ends_with_an_answer() -> None:
    session = Session()
    session.fold(read(JOURNAL))
    view = session.view()
    assert view.state == "finished"
    assert (view.comparison.speedup or 0) > 1
    assert view.numerics.xray is not None
    assert judge_xray(view.numerics.xray).state == "agree"
