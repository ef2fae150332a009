"""Starts the ranks of a run with torch's elastic launcher, and stays until all have ended."""

import json
import logging
import os
import signal
import socket
import sys
import threading
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from amptui.base.cores import read_cores
from amptui.base.fork import how_ended
from amptui.base.prompt import complain
from amptui.base.text import one_line
from amptui.process.plan import RANK_VARIABLE, Plan
from amptui.process.rank_process import IMPORT_PATH_VARIABLE
from amptui.process.stop_signals import received_within
from amptui.process.training import leave_at_once
from amptui.runs import protocol
from amptui.runs.lock import holder
from amptui.runs.rundir import RunDir
from amptui.runs.trust import resume_command

_POLL_SECONDS = 0.2

_CONNECT_SECONDS = 5.0


def run_ranks(plan: Plan, viewer: socket.socket | None = None) -> int:
    """Train with several ranks on this machine; return rank 0's exit status.

    ``viewer`` is a screen that is open already: it is let go once rank 0 is there, to which it then connects
    itself. Stop signals, which are blocked, are passed to rank 0 alone: all ranks then stop together. Before
    there are any, one ends this process.
    """
    launch = _Launch(plan)
    launch.start()
    folder = plan.run_dir.path
    waiting: list[int] = []  # stop signals for rank 0; one that starts after the first gets that one too
    first = 0
    leader_pid: int | None = None
    while launch.is_alive():
        received = received_within(_POLL_SECONDS)
        if received is not None and received.number != signal.SIGHUP:
            if not psutil.Process().children():
                complain("stopped before the ranks were started")  # whatever torch's launcher waits for
                leave_at_once(128 + received.number)
            first = first or received.number
            waiting.append(received.number)
        leader = holder(folder) if first or viewer is not None else None
        if leader is None or leader.pid is None:
            continue
        if viewer is not None:
            viewer.close()
            viewer = None
        if leader.pid != leader_pid and leader_pid is not None:
            waiting = [first]
        if waiting:
            leader_pid = leader.pid
            with suppress(ProcessLookupError):
                os.kill(leader.pid, waiting.pop(0))
    if viewer is not None:
        with suppress(OSError):  # the screen may have left
            viewer.sendall(protocol.error_line(launch.error or "rank 0 ended before it could be watched"))
    return _status(launch, folder) or (128 + first if first else 0)


class _Launch(threading.Thread):
    """Torch's launcher: not in the main thread, where it would take the signals.

    It would send each to whole process groups, and kill the workers that load the data of a clean end.
    """

    def __init__(self, plan: Plan) -> None:
        super().__init__(name="amptui-launcher", daemon=True)
        self._plan = plan
        self._ranks = plan.request.nproc
        self.failures: dict[int, Any] = {}
        """How each rank ended that failed, as torch tells it."""
        self.error = ""

    def run(self) -> None:
        """Start the ranks and wait for their end."""
        logging.disable(logging.CRITICAL)  # the ranks tell what happened, in one line
        try:
            self.error = _why_no_localhost()
            if not self.error:
                self._launch()
        except Exception as error:  # noqa: BLE001 - whatever torch raises, a screen waits for its end
            self.failures = getattr(error, "failures", {})
            if not self.failures:
                self.error = one_line(f"{type(error).__name__}: {error}")

    def _launch(self) -> None:
        from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
        from torch.distributed.launcher.api import LaunchConfig, elastic_launch

        os.environ[RANK_VARIABLE] = self._plan.text()
        # Each rank would take all cores; torchrun leaves them one thread.
        threads = max(1, read_cores().usable // self._ranks)
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=self._ranks,
            run_id=uuid.uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            local_addr="localhost",
            max_restarts=self._plan.request.max_restarts,
            logs_specs=DefaultLogsSpecs(log_dir=os.devnull),
        )
        # `python -m` alone would import json.py and the like from the current folder, which may not be on the
        # path of this process. The ranks get that path, and so import the model as one process would.
        os.environ[IMPORT_PATH_VARIABLE] = json.dumps([entry for entry in sys.path if isinstance(entry, str)])
        elastic_launch(config, sys.executable)("-P", "-m", "amptui.process.rank_process")


def _why_no_localhost() -> str:
    """Why no ranks can meet at ``localhost``, for which torch would wait for minutes; empty if they can."""
    try:
        with (
            socket.create_server(("localhost", 0)) as server,
            socket.create_connection(server.getsockname()[:2], timeout=_CONNECT_SECONDS),
        ):
            return ""
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        return f"they cannot meet at localhost ({why}); check /etc/hosts and the loopback interface"


def _status(launch: _Launch, folder: Path) -> int:
    if launch.error:
        complain(f"the ranks could not be started: {launch.error}")
        return 1
    codes = {rank: failure.exitcode for rank, failure in launch.failures.items()}
    if codes.get(0, 0) > 0:
        return int(codes[0])
    if codes:
        first = min(launch.failures, key=lambda rank: (codes[rank] > 0, launch.failures[rank].timestamp))
        from amptui.runs.kept_run import look_at

        run_dir = RunDir(folder)
        run = look_at(run_dir) if run_dir.journal_path.exists() else None
        cause = run.error or "" if run is not None and run.state == "failed" else ""
        if cause and 0 not in codes:  # torch 2.9 knows only who failed first; rank 0 has said why
            return 1
        cause = cause if codes.get(0, 0) < 0 else ""  # another rank wrote it for a rank 0 that hung
        resume_hint = f"; to resume from the last checkpoint: {resume_command(folder)}"
        ended = f"rank {first} {how_ended(codes[first])}"
        complain(cause or (f"{ended}{resume_hint}" if run_dir.holds_checkpoints else ended))
    return int(bool(codes))
