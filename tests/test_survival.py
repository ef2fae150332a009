import pytest

from tests import survival


@pytest.fixture(autouse=True)
def _own_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """What these tests count is not printed."""
    for name in ("_TRIED", "_SURVIVED", "_COSTS"):
        monkeypatch.setattr(survival, name, type(getattr(survival, name))())


def test_calls_of_one_family_add_up_and_each_family_has_a_row() -> None:
    survival.survived("signals", 3, 3)
    survival.survived("input bytes", 1000, 999)
    survival.survived("signals", 4, 3)
    rows = [line.split() for line in survival.tables()["hostile inputs"][1:]]
    assert rows == [["input", "bytes", "1,000", "999"], ["signals", "7", "6"]]


def test_nothing_counted_prints_no_table() -> None:
    assert survival.tables() == {}
    survival.cost("disk full", 1, 0, 2, "small disk")
    assert list(survival.tables()) == ["what faults cost"]


def test_what_another_process_counted_is_added() -> None:
    survival.survived("signals", 3, 2)
    survival.cost("disk full", 1, 0, 2, "small disk")
    for _ in range(2):
        survival.take_in(survival.counted())
    survival.take_in(survival.NOTHING)
    tables = survival.tables()
    assert [line.split() for line in tables["hostile inputs"][1:]] == [["signals", "12", "8"]]
    assert len(tables["what faults cost"]) == 1 + 4


def test_more_cannot_survive_than_were_tried() -> None:
    with pytest.raises(AssertionError):
        survival.survived("signals", 1, 2)
