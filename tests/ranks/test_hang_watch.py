"""The thread that watches the progress of all ranks goes on where the launcher's store is slow for once."""

import threading
from collections.abc import Callable

import pytest
import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from amptui.ranks.ends import hang_watch
from amptui.ranks.ends.hang_watch import HangWatch
from amptui.ranks.ends.progress import RankProgress
from amptui.ranks.store.launcher_store import LauncherStore
from amptui.ranks.store.place import place_of
from amptui.ranks.world import World
from tests.living import wait_until


@pytest.mark.ci
def test_a_store_that_is_slow_for_once_does_not_end_the_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hang_watch, "_STORE_SECONDS", 0.2)
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for name, value in (("ADDR", "127.0.0.1"), ("PORT", str(server.port))):
        monkeypatch.setenv(f"MASTER_{name}", value)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    world = World(0, 0, 1)
    launcher = LauncherStore(world)
    watch = HangWatch(
        launcher,
        world,
        [place_of(torch.device("cpu"), "CPU", None)],
        RankProgress(),
        hang_seconds=600.0,
        trainer=threading.current_thread(),
        emit=lambda _record: None,
        end=lambda *_: None,
    )
    slow = threading.Event()
    monkeypatch.setattr(watch, "_tick", _slow_once(watch, slow))
    watch.start()
    assert slow.wait(60)
    wait_until(lambda: launcher.store.check(["beat/0"]), "there was no beat")
    watch.close()


def _slow_once(watch: HangWatch, slow: threading.Event) -> Callable[[], bool]:
    """Its ticks, the first of which waits for the store in vain."""
    tick = watch._tick

    def wait_first() -> bool:
        if not slow.is_set():
            slow.set()
            watch._store.get("what nobody sets")
        return tick()

    return wait_first
