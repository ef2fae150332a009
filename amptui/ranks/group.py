"""The processes of a run: they meet, wait for each other, and part in order."""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import PrefixStore

from amptui.base.errors import DataError, DeviceError
from amptui.data.order import Share
from amptui.loops.strategy import Ranks, Strategy
from amptui.ranks.agreement.board import Board, Place, SignIn
from amptui.ranks.agreement.orders import poll_seconds
from amptui.ranks.failure import PeerEndedError
from amptui.ranks.launcher_store import (
    STOPPED_WAITING,
    STORE_SECONDS,
    LauncherStore,
    rank_0_store,
)
from amptui.ranks.progress import BUSY_SECONDS, HangWatch, RankProgress
from amptui.recipe.experiment import Experiment
from amptui.records.ranks import RankPhase
from amptui.records.run import Record

R = TypeVar("R")

MakeStrategy = Callable[["RankGroup", Experiment, nn.Module], Strategy]
"""Makes the model one of several that train together."""

_FOREVER = timedelta(days=365)
"""Of a collective, where no rank is ever given up."""

_SEARCH_SECONDS = 4.0
"""How long rank 0 looks for the rank that made an operation fail: others say so within that time."""


class RankGroup(Ranks):
    """The connection to the other ranks. Raises :class:`PeerEndedError` wherever another one has ended.

    ``activity`` is what the ``trainer`` is doing, and its step; ``emit`` and ``end`` are as of a HangWatch.
    """

    def __init__(  # noqa: PLR0913 - by name
        self,
        launcher: LauncherStore,
        device: torch.device,
        place: Place,
        *,
        stopping: Callable[[], bool],
        hang_seconds: float,
        compiles: bool,
        make_strategy: MakeStrategy,
        trainer: threading.Thread,
        activity: Callable[[], tuple[RankPhase, int]],
        emit: Callable[[Record], object],
        end: Callable[[PeerEndedError, Sequence[Record]], object],
    ) -> None:
        self.world = world = launcher.world
        self.share = Share(world.rank, world.size)
        self._make_strategy = make_strategy
        self.compiles = compiles
        """Whether the model is compiled, which may take one rank much longer than another."""
        self._hang_seconds = hang_seconds
        self._stopping = stopping
        self._device = device
        self.ends = launcher.ends
        self._store = rank_0_store(world)
        self.board = Board(self._store, "ranks", timeout_seconds=STORE_SECONDS)
        """Where the ranks agree on what they do, too."""
        self._place = place
        self._gloo: Any = None
        self.progress = RankProgress(activity)
        self.watch = HangWatch(
            launcher.board,
            world,
            self.ends,
            self.progress,
            hang_seconds=hang_seconds,
            thread_id=lambda: trainer.ident,
            emit=emit,
            end=end,
        )

    def connect(self) -> None:
        """Wait until all ranks are there, connect to them, and begin to watch them."""
        world, sign_in = self.world, SignIn(self.board, self.world, self._place)
        self._wait_until(lambda: sign_in.verdict() is not None)
        self.ends.places = cast("Sequence[Place]", sign_in.verdict())  # whoever starts ranks waits for all
        timeout = _FOREVER
        if self._hang_seconds:  # torch's own timeouts would raise, or abort, and could not tell who hung
            timeout = timedelta(seconds=2 * (self._hang_seconds + BUSY_SECONDS))
        backends, kind = "gloo", self._device.type
        if kind != "cpu":  # the collectives of the host's tensors, and those of the device's
            backends = f"cpu:gloo,{kind}:{dist.get_default_backend_for_device(self._device)}"
        dist.init_process_group(
            backends,
            store=PrefixStore("torch", self._store),
            rank=world.rank,
            world_size=world.size,
            timeout=timeout,
        )
        self._gloo = dist.new_group(backend="gloo", timeout=timeout)
        self.watch.start()

    @property
    def places(self) -> Sequence[Place]:
        """Where each rank runs, in their order."""
        return self.ends.places

    def meet(self, where: str) -> None:
        """Wait before the first step until all ranks have come to this point, however long it takes.

        Raises DeviceError if this rank is asked to stop meanwhile.
        """
        key = f"meeting/{where}"
        self.progress.place += 1
        self.board.count(key, 1)
        self._wait_until(lambda: self.board.count(key) >= self.world.size)

    def _wait_until(self, is_true: Callable[[], bool]) -> None:
        with self.progress.waiting():
            while not is_true():
                # First: a launcher that lost a rank stops the others.
                stopping = self._stopping()
                self.check_others()
                if stopping:
                    raise DeviceError(STOPPED_WAITING)
                time.sleep(poll_seconds(self.world.size))

    def strategy(self, experiment: Experiment, model: nn.Module) -> Strategy:
        return self._make_strategy(self, experiment, model)

    def in_turn(self, load: Callable[[], R], what: str = "loaded") -> R:
        if not self.world.leads:
            self.meet(f"{what} by rank 0")
            return load()
        loaded = load()
        self.meet(f"{what} by rank 0")
        return loaded

    def check_equal(self, facts: dict[str, float]) -> None:
        """Raise DataError if one of ``facts`` differs from rank 0's: the ranks would wait for each other."""
        by_rank: list[dict[str, float]] = self.gather(facts)
        for rank, rank_facts in enumerate(by_rank):
            for name, value in by_rank[0].items():
                if rank_facts.get(name) != value:
                    what = f"rank {rank} has {rank_facts.get(name):,} {name}, rank 0 has {value:,}"
                    raise DataError(what, hint="let build_model() and load_data() give all ranks the same")

    # ------------------------------------------------------------------ while training

    def check_others(self) -> None:
        """Raise PeerEndedError if another rank has ended."""
        if (ended := self.ends.first()) is not None:
            raise ended

    def explain_lost(self, error: Exception) -> Exception:
        """Which rank's end is behind ``error``, which the board raised: rank 0 keeps it."""
        if self.progress.left or not isinstance(error, dist.DistError):
            return error
        text = "the connection to rank 0 was lost: has it ended?"
        return self.find_ended() or PeerEndedError(-1, "waited", "", text)

    def agree(self, trouble: str) -> str:
        """The ``trouble`` of the first rank that has one, which it names; "" if none has. Waits for all."""
        for rank, rank_trouble in enumerate(self.gather(trouble)):
            if rank_trouble:
                return f"rank {rank}: {rank_trouble}"
        return ""

    def gather(self, value: Any) -> list[Any]:
        """The ``value`` of each rank; waits for all."""
        self.progress.place += 1
        values = [None] * self.world.size
        with self.progress.waiting():
            dist.all_gather_object(values, value, group=self._gloo)
        return values

    def leave(self) -> None:
        """Part from the others after the last step.

        In this order: with a group destroyed before all had left it, runs of four processes ended in SIGABRT.
        """
        self.progress.place += 1
        with self.progress.waiting():
            dist.barrier(group=self._gloo)
        self.progress.left = True
        dist.destroy_process_group(self._gloo)
        dist.barrier()
        dist.destroy_process_group()

    # ------------------------------------------------------------------ ends

    def post_bad_steps(self, steps: Iterable[int]) -> None:
        """Tell in which steps this rank's own loss was not finite."""
        with suppress(RuntimeError):
            self.board.post(f"bad steps/{self.world.rank}", list(steps))

    def bad_steps(self) -> list[list[int]]:
        """What each rank has told of that."""
        with suppress(RuntimeError):
            return [self.board.look(f"bad steps/{rank}") or [] for rank in range(self.world.size)]
        return []

    def find_ended(self) -> PeerEndedError | None:
        """Who made an operation of all ranks fail, within a few seconds; None if no rank is known to."""
        limit = time.monotonic() + _SEARCH_SECONDS
        while (ended := self.ends.first()) is None and time.monotonic() < limit:
            time.sleep(poll_seconds(self.world.size))
        return ended
