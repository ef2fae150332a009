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

from amptui.tui import terminal_driver
from amptui.tui.terminal_driver import Outlet

ENOUGH_SECONDS = 60.0
MUCH = "frame " * 50_000
"""Many times what a terminal's own buffer takes."""


@pytest.fixture
def ends() -> Iterator[tuple[int, int]]:
    """A terminal's two ends: the one at which somebody may read, and the program's."""
    reader, terminal = pty.openpty()
    tty.setraw(terminal)
    yield reader, terminal
    for descriptor in (reader, terminal):
        with suppress(OSError):
            os.close(descriptor)


def read(reader: int, size: int) -> bytes:
    """So many bytes, as they come."""
    data, limit = b"", time.monotonic() + ENOUGH_SECONDS
    while len(data) < size:
        assert time.monotonic() < limit, f"only {len(data)} of {size} bytes came"
        if select.select([reader], [], [], 0.1)[0]:
            data += os.read(reader, min(65536, size - len(data)))
    return data


@pytest.mark.parametrize(
    ("texts", "encoding"),
    [
        ([f"{number} äöü 漢\n" for number in range(500)], "utf-8"),
        (["漢x"], "ascii"),
        ([MUCH, "end"], "utf-8"),
    ],
    ids=["many", "not in the encoding", "more than it takes at once"],
)
@pytest.mark.parametrize("blocking", [True, False])
def test_texts_arrive_complete_and_in_order_also_while_the_outlet_closes(
    texts: list[str], encoding: str, *, blocking: bool, ends: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal_driver, "_LEAVING_SECONDS", ENOUGH_SECONDS)
    reader, terminal = ends
    os.set_blocking(terminal, blocking)  # another program may have left it so
    outlet = Outlet(terminal, encoding)
    for text in texts:
        outlet.write(text)
    closing = threading.Thread(target=outlet.close)
    closing.start()
    whole = "".join(texts).encode(encoding, "replace")
    assert read(reader, len(whole)) == whole
    closing.join(ENOUGH_SECONDS)
    assert (closing.is_alive(), outlet.broken) == (False, False)


def test_the_descriptor_may_be_closed_and_used_for_something_else(
    ends: tuple[int, int], tmp_path: Path
) -> None:
    outlet = Outlet(ends[1], "utf-8")
    other = os.open(tmp_path / "journal", os.O_CREAT | os.O_WRONLY)
    os.dup2(other, ends[1])
    os.close(other)
    outlet.write("frame")
    assert read(ends[0], 5) == b"frame"
    outlet.close()
    assert (tmp_path / "journal").read_bytes() == b""
