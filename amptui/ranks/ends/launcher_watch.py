"""Notices that the process that started this rank is gone, and with it the store that it kept."""

import os
import threading
from collections.abc import Callable

from amptui.base.errors import DeviceError
from amptui.ranks.world import World

LAUNCHER_GONE = "launcher gone"
"""Why a rank stops whose launcher has ended: all do, and the run has failed."""

_LOOK_SECONDS = 0.5


class LauncherLostError(DeviceError):
    """Nobody starts the ranks again, stops them, or waits for them."""

    def after(self, step: int, *, hint: str) -> "LauncherLostError":
        """It as the last word of a run that ended with ``step``."""
        return LauncherLostError(f"{self.what}: stopped after step {step:,}", hint=hint)


class LauncherWatch:
    """Looks after this process's parent; not where ranks may outlive what started them.

    A shell that starts them in the background may end; srun and mpirun end their tasks themselves.
    """

    def __init__(self, world: World) -> None:
        self.pid = os.getppid()
        self._is_due = world.launcher == "torchrun"
        self._ended = threading.Event()

    @property
    def is_gone(self) -> bool:
        """Whether the launcher has ended; a process whose parent has is given another one."""
        return self._is_due and os.getppid() != self.pid

    @property
    def error(self) -> LauncherLostError:
        """Why the run ends, once it is gone."""
        return LauncherLostError(f"the launcher (pid {self.pid}) is gone")

    def start(self, lost: Callable[[], object]) -> None:
        """Call ``lost`` once, from a thread, if the launcher ends before :meth:`stop`."""
        if self._is_due:
            threading.Thread(target=self._look, args=(lost,), name="amptui-launcher", daemon=True).start()

    def stop(self) -> None:
        """Look no more."""
        self._ended.set()

    def _look(self, lost: Callable[[], object]) -> None:
        while not self._ended.wait(_LOOK_SECONDS):
            if self.is_gone:
                lost()
                return
