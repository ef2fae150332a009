"""What many ranks ask of their two stores before their first step and at an end, by their number.

    python -m tests.benchmarks.store_load [--ranks N ...] [--seconds N] [--json FILE]

Simulated ranks, each a thread, meet through real stores as those of a run do; the launcher's is in a process
of its own. They share some connections: torch looks up the name of each, which takes some machines seconds.
Rank 0 comes late to the meeting. Later one rank ends while all wait, and at last all but one have only
waited, so that the silent one is looked for. How many requests there are depends on no machine; seconds do,
and on one interpreter for all ranks. Prints a table and then one JSON object.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import count, cycle
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch.distributed.distributed_c10d import Store

from amptui.ranks.failure import PeerEndedError
from amptui.ranks.group import RankGroup
from amptui.ranks.store import launcher_store
from amptui.ranks.store.launcher_store import meet_at_start
from amptui.ranks.store.place import Place
from amptui.ranks.world import World
from tests.benchmarks.figures import columns

RANKS = (64, 512, 1024)
"""Each is a thread: 4,096 (`ulimit -n 20000`) keep a small machine busy for five minutes."""

LATE_SECONDS = 15.0
"""How long the others wait for rank 0: longer than their looks take to become rare."""

_RANKS_A_MACHINE = 8

_CONNECTIONS = 16

_STACK_BYTES = 256 << 10

_SERVER = """
import sys
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLoad:
    """Of one number of ranks. A request is one that a rank waits for."""

    ranks: int
    start_requests: float
    """Of each rank, until all agree on which start this is."""
    start_seconds: float
    waiting_per_second: float
    """Of all ranks together, while they have waited for rank 0 for some time."""
    released_seconds: float
    """From rank 0's coming until the last rank goes on."""
    place_requests: float
    """Of each rank, until it knows where all run."""
    end_requests: float
    """Of each rank, from the end of one until all know of it."""
    end_seconds: float


class Requests:
    """Counts what is asked of all stores, but by rank 0 of its own."""

    def __init__(self) -> None:
        self.counter = count()

    def take(self) -> int:
        """How many since the last call."""
        done = next(self.counter)
        before, self._seen = getattr(self, "_seen", -1), done
        return done - before - 1


class CountedStore(Store):
    """A connection whose requests are counted."""

    def __init__(self, store: Store, counter: Iterator[int]) -> None:
        super().__init__()
        self._store, self._counter = store, counter

    def set(self, key: str, value: Any) -> None:
        next(self._counter)
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        next(self._counter)
        return self._store.get(key)

    def add(self, key: str, amount: int) -> int:
        next(self._counter)
        return self._store.add(key, amount)

    def check(self, keys: list[str]) -> bool:
        next(self._counter)
        return self._store.check(keys)

    def delete_key(self, key: str) -> bool:
        next(self._counter)
        return self._store.delete_key(key)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        next(self._counter)
        return self._store.multi_get(keys)

    def compare_set(self, key: str, expected: str, value: str) -> bytes:
        next(self._counter)
        return self._store.compare_set(key, expected, value)


@contextmanager
def launcher() -> Iterator[None]:
    """A store in a process of its own, which this one's variables name."""
    before = dict(os.environ)
    with subprocess.Popen(
        [sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        told = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": process.stdout.readline().strip()}
        os.environ.update({**told, "TORCHELASTIC_USE_AGENT_STORE": "True"})
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)
            process.stdin.close()


@contextmanager
def shared_connections(requests: Requests) -> Iterator[None]:
    """Ranks take turns with some real connections to each store instead of having their own."""
    connect, lock, pools = launcher_store._client, threading.Lock(), dict[int, Iterator[Store]]()

    def client(host: str, port: int) -> Store:
        with lock:
            if port not in pools:
                stores = [CountedStore(connect(host, port), requests.counter) for _ in range(_CONNECTIONS)]
                pools[port] = cycle(stores)
            return next(pools[port])

    with patch.object(launcher_store, "_client", client):
        yield
    launcher_store._own_store.cache_clear()


def measure(ranks: int, late_seconds: float = LATE_SECONDS) -> StoreLoad:
    """What so many ranks ask."""
    requests = Requests()
    with launcher(), shared_connections(requests):
        worlds: list[World] = [World(rank, rank % _RANKS_A_MACHINE, ranks) for rank in range(ranks)]
        began = time.monotonic()

        def agree(rank: int) -> None:
            worlds[rank] = meet_at_start(worlds[rank])

        finished(range(ranks), agree)
        start_seconds, start_requests = time.monotonic() - began, requests.take() / ranks
        groups = [group(world) for world in worlds]
        requests.take()

        others = begun(range(1, ranks), lambda rank: groups[rank].meet("start"))
        time.sleep(late_seconds * 2 / 3)
        requests.take()
        time.sleep(late_seconds / 3)
        waiting_per_second = requests.take() / (late_seconds / 3)
        began = time.monotonic()
        groups[0].meet("start")
        joined(others)
        released_seconds = time.monotonic() - began
        requests.take()

        finished(range(ranks), lambda rank: groups[rank].all_places())
        place_requests = requests.take() / ranks

        waiting = begun(range(1, ranks), lambda rank: waits_in_vain(groups[rank]))
        time.sleep(late_seconds)
        requests.take()
        began = time.monotonic()
        groups[0].launcher.tell_end("failed", "a wrong number")
        joined(waiting)
        end_seconds, end_requests = time.monotonic() - began, requests.take() / ranks

        return StoreLoad(
            ranks=ranks,
            start_requests=start_requests,
            start_seconds=start_seconds,
            waiting_per_second=waiting_per_second,
            released_seconds=released_seconds,
            place_requests=place_requests,
            end_requests=end_requests,
            end_seconds=end_seconds,
        )


def group(world: World) -> RankGroup:
    """The connection of a rank that has not met the others; eight of them share a machine."""
    host = f"node-{world.rank // _RANKS_A_MACHINE}"
    place = Place(
        host=host, pid=world.rank, device="cpu", device_name="CPU", gpu_uuid=None, memory_total_bytes=None
    )
    return RankGroup(world, torch.device("cpu"), place, stopping=lambda: False, hang_seconds=0.0)


def waits_in_vain(each: RankGroup) -> None:
    """Wait for a meeting to which not all come, until one has ended."""
    try:
        each.meet("never")
    except PeerEndedError:
        return
    raise AssertionError("nobody ended")


def begun(ranks: Sequence[int], work: Callable[[int], object]) -> list[threading.Thread]:
    """A thread for each of ``ranks`` that works."""
    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in ranks]
    for thread in threads:
        thread.start()
    return threads


def joined(threads: Sequence[threading.Thread]) -> None:
    """Wait for all of them."""
    for thread in threads:
        thread.join()


def finished(ranks: Sequence[int], work: Callable[[int], object]) -> None:
    """Wait until each of ``ranks`` has worked."""
    joined(begun(ranks, work))


def table(loads: Sequence[StoreLoad]) -> str:
    """The numbers as a page shows them."""
    head = [
        "ranks",
        "to start",
        "while waiting",
        "after rank 0 comes",
        "places",
        "at an end",
        "until all know",
    ]
    rows = [
        [
            f"{each.ranks:,}",
            f"{each.start_requests:.1f} a rank, {each.start_seconds:.1f} s",
            f"{each.waiting_per_second:,.0f}/s",
            f"{each.released_seconds:.1f} s",
            f"{each.place_requests:.1f} a rank",
            f"{each.end_requests:.1f} a rank",
            f"{each.end_seconds:.1f} s",
        ]
        for each in loads
    ]
    return columns([head, *rows])


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description="What many ranks ask of their stores.")
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    parser.add_argument("--seconds", type=float, default=LATE_SECONDS, help="how long rank 0 is awaited")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    threading.stack_size(_STACK_BYTES)
    loads = []
    for ranks in options.ranks:
        loads.append(measure(ranks, options.seconds))
        print(f"measured {ranks:,} ranks", file=sys.stderr)
    print(table(loads))
    text = json.dumps([asdict(each) for each in loads])
    if options.json is not None:
        options.json.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
