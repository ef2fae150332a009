"""Writing to terminals that stall, disappear, or are closed during a write."""

import os
import pty
import select
import threading
import time
import tty
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from amptui.tui import outlet as outlet_module
from amptui.tui.outlet import Outlet
from tests.living import wait_until

ENOUGH_SECONDS = 60.0
MUCH = "frame " * 50_000
"""Many times what a terminal's own buffer takes."""


class Line:
    """A terminal's two ends: the program's, and the one at which somebody may read."""

    def __init__(self) -> None:
        self.reader, self.terminal = pty.openpty()
        tty.setraw(self.terminal)

    def read(self, size: int) -> str:
        """So many bytes, as they come."""
        data = b""
        limit = time.monotonic() + ENOUGH_SECONDS
        while len(data) < size:
            assert time.monotonic() < limit, f"only {len(data)} of {size} bytes came"
            if select.select([self.reader], [], [], 0.1)[0]:
                data += os.read(self.reader, min(65536, size - len(data)))
        return data.decode()

    def close(self) -> None:
        for descriptor in (self.reader, self.terminal):
            with suppress(OSError):
                os.close(descriptor)


@pytest.fixture
def line() -> Iterator[Line]:
    line = Line()
    yield line
    line.close()


def opened(descriptor: int, encoding: str = "utf-8") -> Outlet:
    outlet = Outlet(descriptor, encoding)
    outlet.start()
    return outlet


def test_texts_arrive_complete_and_in_order_and_are_counted_until_then(line: Line) -> None:
    outlet = opened(line.terminal)
    texts = [f"{number} äöü 漢\n" for number in range(500)]
    for text in texts:
        outlet.write(text)
    whole = "".join(texts)
    assert line.read(len(whole.encode())) == whole
    wait_until(lambda: outlet.waiting == 0, "texts wait")
    outlet.close()
    assert not outlet.broken


def test_characters_outside_of_the_encoding_are_replaced(line: Line) -> None:
    outlet = opened(line.terminal, "ascii")
    outlet.write("漢x")
    assert line.read(2) == "?x"
    outlet.close()


@pytest.mark.ci
def test_a_terminal_that_nobody_reads_blocks_nothing_and_hurry_ends_the_wait_for_it(line: Line) -> None:
    outlet = opened(line.terminal)
    for _ in range(200):
        outlet.write(MUCH)
    assert outlet.waiting > 100
    closing = threading.Thread(target=outlet.close)
    closing.start()
    outlet.hurry()
    closing.join(ENOUGH_SECONDS)
    assert not closing.is_alive()


def test_a_slow_reader_gets_all_of_it(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlet_module, "_LEAVING_SECONDS", ENOUGH_SECONDS)
    outlet = opened(line.terminal)
    outlet.write(MUCH)
    outlet.write("the end")
    closing = threading.Thread(target=outlet.close)
    closing.start()
    assert line.read(len(MUCH) + 7).endswith("the end")
    closing.join(ENOUGH_SECONDS)
    assert not closing.is_alive()


def test_a_closed_terminal_is_broken_and_ignores_writes(line: Line) -> None:
    outlet = opened(line.terminal)
    os.close(line.reader)
    outlet.write("into the void")
    wait_until(lambda: outlet.broken, "it is not noticed")
    outlet.write("more of it")
    assert outlet.waiting == 0
    outlet.close()


def test_a_terminal_left_non_blocking_is_waited_for(line: Line) -> None:
    os.set_blocking(line.terminal, False)
    outlet = opened(line.terminal)
    outlet.write(MUCH)
    assert line.read(len(MUCH)) == MUCH
    outlet.close()
    assert not outlet.broken


def test_the_descriptor_may_be_closed_and_used_for_something_else(line: Line, tmp_path: Path) -> None:
    outlet = opened(line.terminal)
    other = os.open(tmp_path / "journal", os.O_CREAT | os.O_WRONLY)
    os.dup2(other, line.terminal)
    os.close(other)
    outlet.write("frame")
    assert line.read(5) == "frame"
    outlet.close()
    assert (tmp_path / "journal").read_bytes() == b""
