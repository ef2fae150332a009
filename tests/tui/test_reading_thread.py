"""A thread that reads for a screen: it works until it is stopped and wakes at once."""

import math
import threading

from amptui.tui.reading_thread import ReadingThread
from tests.tui.watching import ENOUGH_SECONDS


class Counter(ReadingThread):
    """Counts how often it works, and then waits for a key."""

    def __init__(self) -> None:
        super().__init__("counter")
        self.worked = threading.Semaphore(0)
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def _work(self) -> float:
        self.worked.release()
        self.may_go_on.wait()
        return math.inf

    def press(self) -> None:
        self._wake.set()

    def join(self) -> None:
        self._thread.join(ENOUGH_SECONDS)
        assert not self._thread.is_alive()


def test_each_key_also_one_while_it_works_has_it_work_once_more_until_it_is_stopped() -> None:
    counter = Counter()
    counter.may_go_on.clear()
    counter.start()
    assert counter.worked.acquire(timeout=ENOUGH_SECONDS)
    counter.press()
    counter.may_go_on.set()
    for _ in range(3):
        assert counter.worked.acquire(timeout=ENOUGH_SECONDS)
        counter.press()
    assert counter.worked.acquire(timeout=ENOUGH_SECONDS)
    counter.stop()
    counter.join()
    assert counter.failure is None
    Counter().stop()  # one that never started
