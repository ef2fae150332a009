"""The reader of the list: what changes while it lists is listed at once."""

import threading

import pytest

from amptui.tui.run_list import reader
from amptui.tui.run_list.entry import RunEntry
from amptui.tui.run_list.reader import ListReader
from tests.tui.run_list.listed import FakeSource
from tests.tui.watching import ENOUGH_SECONDS


def test_a_list_that_changes_while_it_is_read_is_read_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "LOOK_SECONDS", 600.0)
    lists, may_go_on = threading.Semaphore(0), threading.Event()

    class SlowSource(FakeSource):
        def _list(self) -> list[RunEntry]:
            lists.release()
            may_go_on.wait()
            return super()._list()

    reading = ListReader(SlowSource().source())
    reading.start()
    try:
        assert lists.acquire(timeout=ENOUGH_SECONDS)
        reading.list_again()
        may_go_on.set()
        assert lists.acquire(timeout=ENOUGH_SECONDS)
    finally:
        may_go_on.set()
        reading.stop()
