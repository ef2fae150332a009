"""The processes that train a script: this one alone, or ranks of which it is one; nobody above asks which."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from amptui.guest.loop.observed_optimizer import ObservedOptimizer
from amptui.guest.loop.parallel_layout import ParallelLayout, layout_of
from amptui.guest.loop.script import ObservedScript, Script, WatchedScript
from amptui.guest.peer import Emit, RankPeer, world_of_script
from amptui.ranks.agreement.guest_control import NO_SCRIPT_XRAY, GuestControl
from amptui.ranks.world import World
from amptui.records.control import Control
from amptui.records.run import RunStarted
from amptui.runs.rundir import RunDir


class OneProcess:
    """A script that trains in this process alone."""

    size = 1
    """How many processes train together."""
    leads = True
    """Whether this process keeps the run, and takes requests."""
    restart = max_restarts = 0
    """How often the ranks have been started again, and how often that happens at most."""
    starts_again = False
    """Whether the ranks are started again if this one fails."""

    def continues(self, _run_dir: str) -> bool:
        """Whether the run in that folder goes on with this process."""
        return False

    def open(self, script: ObservedScript | WatchedScript, emit: Emit) -> tuple[Control | None, Emit]:
        """The control of ``script``, None if it is only observed, and what takes the records of its loop."""
        return Control(emit) if isinstance(script, WatchedScript) else None, emit

    def layout(self, _script: Script) -> ParallelLayout:
        """How the training is shared; a single process takes all samples."""
        return ParallelLayout(1)

    def add_to(self, started: RunStarted, _layout: ParallelLayout) -> RunStarted:
        """The first record, with what the processes add to it."""
        return started

    def start(self, optimizer: ObservedOptimizer) -> None:
        """Begin to meet the others; ``optimizer`` is the script's first."""

    def begin(self) -> None:
        """The first step ends."""

    def leave(self, why: str, error: str = "") -> None:
        """Tell the others that this process takes no part any more, and the ``error`` of its script."""

    def waits_for_device(self, _error: BaseException | None) -> bool:
        """Whether the device ends its work after ``error``."""
        return True

    def tell_if_not_stopped(self, tell: Callable[[str], object]) -> None:
        """``tell`` why the processes could not agree to stop, if that happens."""

    def stop_reason(self, request: str | None) -> str | None:
        """Why the loop should stop now, after a screen's ``request``; None if it should go on."""
        return request

    @property
    def may_stop(self) -> bool:
        """Whether the loop may end: one of several ranks must not end alone."""
        return True

    @property
    def launcher_pid(self) -> int | None:
        """The process whose signals reach the whole script; None if this one's do."""
        return None


class OneOfRanks(OneProcess):
    """A script that trains in several processes; this is one of them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._control: GuestControl | None = None
        self._peer: RankPeer | None = None
        self._parent = os.getppid()
        self.size, self.leads, self.restart = world.size, world.leads, world.restart
        self.max_restarts, self.starts_again = world.max_restarts, world.starts_again

    def continues(self, run_dir: str) -> bool:
        if not run_dir:  # each start of the ranks has a run of its own
            self.restart = self.max_restarts = 0
            self.starts_again = False
            self._world = replace(self._world, restart=0, max_restarts=0)
        return self.restart > 0 and RunDir(Path(run_dir)).holds_a_run

    def open(self, script: ObservedScript | WatchedScript, emit: Emit) -> tuple[Control | None, Emit]:
        self._control = GuestControl(self._world, emit) if isinstance(script, WatchedScript) else None
        self._peer = RankPeer(self._world, self._control, emit)
        return self._control, self._peer.take

    def layout(self, script: Script) -> ParallelLayout:
        layout, data_parallel = layout_of(script.model, self.size), script.data_parallel
        if data_parallel is None:
            return layout
        is_odd = self.size % data_parallel
        why = f"{self.size} ranks cannot be {data_parallel} times as many" if is_odd else ""
        return replace(layout, data_parallel=0 if why else data_parallel, unknown=why)

    def add_to(self, started: RunStarted, layout: ParallelLayout) -> RunStarted:
        samples, data_parallel = started.batch_size, layout.data_parallel
        return replace(
            started,
            refuses={"x-ray": NO_SCRIPT_XRAY, **started.refuses},
            world_size=self.size,
            parallel="+".join(layout.kinds),
            data_parallel=data_parallel or None,
            global_batch_size=samples * data_parallel if samples and data_parallel else None,
        )

    def start(self, optimizer: ObservedOptimizer) -> None:
        if self._peer is not None:
            self._peer.start(optimizer)

    def begin(self) -> None:
        if self._peer is not None:
            self._peer.begin()

    def leave(self, why: str, error: str = "") -> None:
        if self._peer is not None:
            self._peer.close(why, error)

    def waits_for_device(self, error: BaseException | None) -> bool:
        return error is None  # its GPU may wait for a collective of ranks that have ended

    def tell_if_not_stopped(self, tell: Callable[[str], object]) -> None:
        if self._control is not None:
            self._control.cannot_stop = tell

    def stop_reason(self, _request: str | None) -> str | None:
        return None if self._control is None else self._control.stop_reason

    @property
    def may_stop(self) -> bool:
        return self._control is not None and not self._control.over

    @property
    def launcher_pid(self) -> int | None:
        is_torchrun = "TORCHELASTIC_RUN_ID" in os.environ and os.getppid() == self._parent
        return self._parent if is_torchrun else None  # once torchrun is gone, another has adopted us


def processes_of_script() -> OneProcess:
    """The processes that train the script. Raises UsageError if a variable of torchrun's is not a number."""
    world = world_of_script()
    return OneProcess() if world is None else OneOfRanks(world)
