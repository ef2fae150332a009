"""The trainer thread of one rank: meets the others before it prepares, and tells them how it ended."""

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from amptui.base.errors import AmptuiError, DeviceError, ExperimentError, RunFolderError, UsageError
from amptui.loops.worker import TrainingThread
from amptui.ranks.agreement.control import RankControl
from amptui.ranks.meter import RankMeter, RankNumbers, blame
from amptui.ranks.world import LAUNCHER_GONE, World
from amptui.recipe.request import HANG_SECONDS, ModelSpec, TrainRequest
from amptui.records.answers import RequestMade
from amptui.records.control import tell_nobody
from amptui.records.ranks import RankPhase
from amptui.records.run import NonFinite, Note, Record, RunFinished, RunStarted, StepSkipped
from amptui.records.samples import DeviceSample, GpuSample

if TYPE_CHECKING:
    from amptui.checkpoint.file import Checkpoint
    from amptui.loops.setup import Choices, Prepared
    from amptui.ranks.agreement.checkpoints import RankCheckpoints
    from amptui.ranks.failure import PeerEndedError
    from amptui.ranks.group import MakeStrategy, RankGroup
    from amptui.ranks.launcher_store import LauncherStore
    from amptui.ranks.parallel.data_parallel import DataParallel


WatchGpu = Callable[[str, Callable[[Record], object]], Callable[[], object]]
"""Samples the GPU of that UUID about once a second, in a thread, until what it returns is called."""

_LAUNCHER_POLL_SECONDS = 0.5

_NO_BREAKDOWN = "FSDP: no memory breakdown, as gathered weights cannot be told from activations at the peak"


class RankThread(TrainingThread):
    """Trains as one of several ranks; rank 0 alone emits records and writes files.

    It ends once: as its trainer ends, or when :class:`HangWatch` finds that the run cannot go on: the trainer
    itself may be blocked for good.

    A collapsed loss scale or lost weights end the run: ranks do not wait for a user's answer. ``watch_gpu``
    samples this rank's GPU, if it has one.
    """

    def __init__(
        self,
        request: TrainRequest,
        spec: ModelSpec,
        emit: Callable[[Record], object],
        world: World,
        *,
        watch_gpu: WatchGpu | None = None,
        **options: Any,
    ) -> None:
        self.control = control = RankControl(world, emit)
        self._run_request = request
        """That of the run, of which rank 0 alone writes the files."""
        request = replace(request, interactive=False)
        if not world.leads:
            request = replace(request, checkpoint_dir=None, save_weights=None, probes=False)
        self._world = world
        self._launcher_pid = os.getppid()
        self._closing = threading.Event()
        self._meter = RankMeter()
        self._tell = emit if world.leads else tell_nobody
        """Takes what this rank tells of the run."""
        super().__init__(request, spec, control, self._take, **options)
        self._group: RankGroup | None = None
        """The ranks that train together, once they have met."""
        self._ending = threading.RLock()
        """Of the first thread that tells how the run ended; never released."""
        self._given_up = threading.Event()
        self._rank, self._world_size = world.rank, world.size
        control.measure = self._measure
        self._watch_gpu = watch_gpu
        self._gpus: Sequence[GpuSample] = ()
        """The newest sample of this rank's, from another thread."""
        self._stop_watching: Callable[[], object] = lambda: None

    def start(self) -> None:
        """See :class:`TrainingThread`; if the launcher ends, so does the run, with a checkpoint."""
        # A shell that starts ranks in the background may end; srun and mpirun end their tasks themselves.
        if self._world.launcher == "torchrun":
            threading.Thread(target=self._watch_launcher, name="amptui-launcher", daemon=True).start()
        super().start()

    def _watch_launcher(self) -> None:
        """Stop once torchrun has ended: nobody starts the ranks again, or waits for them."""
        while not self._closing.wait(_LAUNCHER_POLL_SECONDS):
            if os.getppid() == self._launcher_pid:  # a process whose parent has ended is given another one
                continue
            self._world = replace(self._world, max_restarts=0)
            if self._control.stop_reason is None:
                text = f"the launcher (pid {self._launcher_pid}) is gone: all ranks stop"
                self._tell(Note(time=time.time(), severity="error", text=text))
                self._control.ask(RequestMade("stop", reason=LAUNCHER_GONE))
            return

    def join(self, timeout_seconds: float) -> bool:
        """See :class:`TrainingThread`; a trainer that is given up has ended."""
        limit = time.monotonic() + timeout_seconds
        if not self.ended.wait(timeout_seconds):
            return False
        return self._given_up.is_set() or super().join(max(0.0, limit - time.monotonic()))

    def close(self) -> None:
        """Part from the other ranks, and end the DataLoader workers, after training has ended."""
        self._closing.set()
        self._stop_watching()
        self.control.leave()
        if self._group is not None:
            self._group.watch.close()
        super().close()

    @property
    def others_are_there(self) -> bool:
        """Whether the other ranks were met and none has ended: this one can still end well."""
        return self._group is not None and self._group.ends.first() is None

    def _take_gpus(self, record: Record) -> None:
        if isinstance(record, DeviceSample):
            self._gpus = record.gpus

    def _take(self, record: Record) -> None:
        self._meter.add(record)
        self._tell(record)
        if not isinstance(record, StepSkipped | NonFinite) or getattr(record, "what", "loss") != "loss":
            return
        own = self._strategy.own_losses
        own.judge(record.step)
        if self._group is not None:
            self._group.post_bad_steps(own.bad_steps)

    def _measure(self) -> RankNumbers:
        trainer, own = self._trainer, self._strategy.own_losses
        assert trainer is not None, "its loop asks"
        trainer.monitor.drain()
        sample = self.allocator()
        numbers = self._meter.take_numbers(
            compute_seconds=self._strategy.compute_timer.take_seconds(),
            peak_bytes=None if sample is None else sample.peak_allocated_bytes,
            gpu=self._gpus[0] if self._gpus else None,
        )
        return numbers._replace(overflowed=own.bad_count, trouble_step=own.judged_step)

    @property
    def _strategy(self) -> "DataParallel":
        """Once the model is there."""
        assert self._prepared is not None, "the model is there"
        return cast("DataParallel", self._prepared.strategy)

    def _activity(self) -> tuple[RankPhase, int]:
        if (trainer := self._trainer) is None:
            return "preparing", self._steps_before
        monitor = trainer.monitor
        activity: RankPhase = "loading"
        if monitor.compilations.busy:
            activity = "compiling"
        elif monitor.in_step:
            activity = "after_step" if monitor.in_after_step else "training"
        elif trainer.saving:
            activity = "saving"
        elif trainer.doing and trainer.phase == "validating":
            activity = "validating"
        return activity, monitor.step

    def _choose(self) -> "Choices":
        """Choose this rank's device, and meet the other ranks."""
        from amptui.device.accelerator import enter_device, properties
        from amptui.loops import setup
        from amptui.loops.description import device_name
        from amptui.ranks.agreement.board import device_of, place_of
        from amptui.ranks.group import RankGroup
        from amptui.ranks.launcher_store import meet_at_start
        from amptui.ranks.parallel.data_parallel import DataParallel

        waiting = "waiting for the other ranks"
        self._announce("importing", waiting, f"while {waiting}")
        stopping = self.control.is_asked_to_stop
        if not self._world.meeting:
            self._world = meet_at_start(self._world, stopping)
        choices = setup.choose(replace(self._request, device=device_of(self._world, self._request.device)))
        device = choices.device
        enter_device(device)
        uuid = properties(device).uuid
        if uuid is not None and self._watch_gpu is not None:
            self._stop_watching = self._watch_gpu(uuid, self._take_gpus)
        place = place_of(self._world.rank, device, device_name(device), uuid)
        make_strategy: MakeStrategy = DataParallel
        if self._request.fsdp:
            from amptui.ranks.parallel.sharded import ShardedDataParallel

            make_strategy = partial(ShardedDataParallel, keeps_weights=bool(self._run_request.save_weights))
        hang = self._request.hang_timeout
        self._group = group = RankGroup(
            self._launcher,
            device,
            place,
            stopping=stopping,
            hang_seconds=HANG_SECONDS if hang is None else hang,
            compiles=self._request.compile_mode is not None,
            make_strategy=make_strategy,
            trainer=self._thread,
            activity=self._activity,
            emit=self._emit,
            end=self._end_from_watch,
        )
        group.connect()
        self.control.gather = group.gather
        if self.control.report is not None:
            self.control.report.bad_steps = group.bad_steps

        def lost(error: Exception) -> None:
            self.control.fail(group.explain_lost(error))

        self.control.connect(group.board, group.progress, lost, group.check_others)
        return choices

    @cached_property
    def _launcher(self) -> "LauncherStore":
        """The launcher's store, once the ranks of this start know of each other."""
        from amptui.ranks.launcher_store import LauncherStore

        return LauncherStore(self._world)

    def _read_checkpoint(self) -> "Checkpoint | None":
        """The newest that rank 0 can read; None for ranks that were started again before there was one."""
        from amptui.checkpoint.file import DamagedError, checkpoint_name, checkpoints, read

        assert self._group is not None, "the ranks have met"
        folder = self._run_request.checkpoint_dir
        assert folder is not None, "a resumed run has a folder of checkpoints"
        if self._world.leads:
            starts_over = self._world.restart > 0 and not checkpoints(folder)
            checkpoint = None if starts_over else super()._read_checkpoint()
            self._group.gather("" if checkpoint is None else checkpoint_name(checkpoint.step))
            return checkpoint
        name = self._group.gather("")[0]
        try:
            return read(folder / name, checksums=False) if name else None  # rank 0 has checked them
        except DamagedError as error:
            what = f"{socket.gethostname()} cannot read {folder / name}: {error}"
            raise RunFolderError(what, hint="use a folder that all machines share") from error

    def _restore(self, checkpoint: "Checkpoint", prepared: "Prepared") -> "tuple[Prepared, Checkpoint]":
        assert self._group is not None, "the ranks have met"
        restore = partial(super()._restore, checkpoint, prepared)
        return self._group.in_turn(restore, "restored")

    def _make_writer(self, folder: Path | None, **options: Any) -> "RankCheckpoints":
        from amptui.ranks.agreement.checkpoints import RankCheckpoints

        assert self._group is not None, "the ranks have met"
        return RankCheckpoints(
            folder,
            world=self._world,
            group=self._group,
            shared=self._run_request.checkpoint_dir,
            start=self._group.gather(secrets.token_hex(4))[0] if self._request.fsdp else "",
            **options,
        )

    def _announce_run(self, started: RunStarted, start: "Checkpoint | None", **restart: Any) -> None:
        from amptui.ranks.agreement.board import ranks_started

        if self._world.restart:
            cause = self._world.cause or "the ranks ended before they had met"
            restart = {"restarts": self._world.restart, "cause": cause}
        super()._announce_run(started, start, **restart)
        assert self._group is not None, "the ranks have met"
        ranks = self._group.places
        self._emit(ranks_started(self._world, ranks))
        share, total = started.batch_size or 0, started.global_batch_size or 0
        accumulated = self._request.accumulate
        batches = f", in {accumulated:,} batches of each rank" if accumulated > 1 else ""
        text = f"{len(ranks):,} ranks: a batch has {share:,} samples per rank, a step {total:,}{batches}"
        self._emit(Note(time=time.time(), severity="info", text=text))
        if started.parallel == "fsdp2":
            self._emit(Note(time=time.time(), severity="info", text=_NO_BREAKDOWN))

    def _resume_hint(self) -> str:
        """How the run goes on after a failure: with a restart, or by the command that resumes it."""
        from amptui.checkpoint.file import checkpoints

        if self._world.starts_again:
            number = self._world.restart + 1
            return f"the ranks start again (restart {number} of {self._world.max_restarts})"
        folder = self._run_request.checkpoint_dir
        newest = checkpoints(folder)[:1] if folder is not None else []
        hosts = {place.host for place in self._group.places} if self._group is not None else set()
        launcher = "torchrun ... -m " if len(hosts) > 1 else ""
        return "".join(f"to resume from {path.name}: {launcher}{self._resume_command()}" for path in newest)

    def _tell_failure(self, error: BaseException) -> None:
        """Emit the last record; none if the launcher starts the ranks again, and that can help."""
        self.error = self._explained(error)
        if self._world.starts_again and isinstance(self.error, UsageError):
            self._launcher.refuse(self.error.exit_status)
        elif self._world.starts_again:
            text, resume_hint = str(self.error), self._resume_hint()
            text = text if resume_hint in text else f"{text}; {resume_hint}"
            self._emit(Note(time=time.time(), severity="error", text=f"{text}\n{self.traceback}".strip()))
            return
        super()._tell_failure(error)

    def _finish_before_training(self) -> None:
        if self._group is not None:
            self._launcher.tell_end("stopped", "was asked to stop before the first step")
        super()._finish_before_training()

    def _fail(self, error: BaseException) -> None:
        from amptui.ranks.failure import PeerEndedError, end_of, may_be_of_a_peer

        if not self._ending.acquire(blocking=False):
            return
        if not self._world.meeting:
            super()._fail(error)
            return
        if self._group is not None and may_be_of_a_peer(error):
            ended = error if isinstance(error, PeerEndedError) else self._group.find_ended()
            if ended is not None and ended.how == "stopped":
                super()._finish_before_training()
                return
            if ended is not None:
                self._tell_peer_end(ended, error)
                return
        # The launcher asks a rank to stop when another has refused what this one refuses too.
        is_refusal = self._group is None or isinstance(error, UsageError)
        is_stopped = self._control.stop_reason and not self._trainer and isinstance(error, AmptuiError)
        if is_stopped and not is_refusal:
            self._finish_before_training()
            return
        how, own = end_of(error), self._explained(error)
        self._launcher.tell_end(how, own.what if how == "cut off" else str(own))
        self._tell_failure(error)

    def _finish(self, record: RunFinished) -> None:
        if self._ending.acquire(blocking=False):
            if self._group is not None:
                self._group.watch.close()
            super()._finish(record)

    def _end_from_watch(self, ended: "PeerEndedError", records: Sequence[Record]) -> None:
        """End the run while the trainer is blocked, and leave it."""
        if not self._ending.acquire(blocking=False):
            return
        try:
            with suppress(Exception):  # whatever a blocked trainer has left half done
                self.emit_finished_steps()
            for record in records:
                self._emit(record)
            self._tell_peer_end(ended, ended)
        finally:
            self._given_up.set()
            self.ended.set()

    def _tell_peer_end(self, ended: "PeerEndedError", error: BaseException) -> None:
        """End because of another rank, which made this one fail with ``error``."""
        assert self._group is not None, "the ranks have met"
        if ended.rank == 0 and self._world.rank == 1 and ended.how in ("killed", "hung"):
            self.rank_0_end = ended.how
        self._launcher.tell_end("waited", "waited for the others")
        if ended.rank >= 0:
            if ended.how != "stopped":
                step = self._trainer.monitor.step if self._trainer else 0
                self._emit(ended.record(step, [place.host for place in self._group.places]))
            self._launcher.tell_cause(ended.what)
        explained = type(ended)(ended.rank, ended.how, ended.detail, ended.what, self._resume_hint())
        self._tell_failure(explained.with_traceback(error.__traceback__))

    def _explained(self, error: BaseException) -> AmptuiError:
        from amptui.ranks.failure import explain_rank_error

        if (rank_error := explain_rank_error(error, self.doing)) is not None:
            return rank_error if rank_error.hint else DeviceError(rank_error.what, hint=self._resume_hint())
        explained = super()._explained(error)
        if self._world.leads and self._group and self._trainer and isinstance(explained, ExperimentError):
            culprits = blame(self._group.bad_steps(), self._trainer.monitor.step)
            if culprits:
                return ExperimentError(f"{explained.what}; {culprits}", hint=explained.hint)
        return explained
