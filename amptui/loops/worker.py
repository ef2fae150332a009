"""The trainer thread: imports torch, prepares the run, trains, and records how it ended."""

import gc
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amptui.base.errors import AmptuiError, DeviceError
from amptui.base.text import one_line
from amptui.recipe.request import ModelSpec, TrainRequest
from amptui.records.control import Control
from amptui.records.keeping import WeightsSaved
from amptui.records.run import (
    Note,
    Phase,
    PhaseChanged,
    Record,
    RunFailed,
    RunFinished,
    RunResumed,
    RunStarted,
)
from amptui.records.samples import AllocatorSample

if TYPE_CHECKING:
    from amptui.checkpoint.file import Checkpoint
    from amptui.checkpoint.writer import CheckpointWriter
    from amptui.loops.setup import Choices, Prepared
    from amptui.loops.strategy import Ranks
    from amptui.loops.train import Trainer


class TrainingThread:
    """Trains in its own thread, where torch is imported after the screen has opened.

    The thread is joined before the process exits: exiting the interpreter while a thread is inside torch
    aborts the process. It is a daemon, so that a step that never ends does not keep the user from leaving.

    ``journaled`` is what :class:`CheckpointWriter` needs. ``begin`` records the start, or that the run goes
    on, before any later record is emitted. ``resume_command`` returns what the user types to resume the run.
    """

    def __init__(
        self,
        request: TrainRequest,
        spec: ModelSpec,
        control: Control,
        emit: Callable[[Record], object],
        *,
        journaled: Callable[[int], object] = lambda _step: None,
        begin: Callable[[RunStarted, RunResumed | None], object] | None = None,
        resume_command: Callable[[], str] = lambda: "amptui train --resume",
    ) -> None:
        self._request = request
        self._spec = spec
        self._control = control
        self._emit = emit
        self._journaled = journaled
        self._begin = begin or (lambda started, resumed: emit(resumed or started))
        self._resume_command = resume_command
        self._steps_before = 0
        self._rank, self._world_size = 0, 1
        self._group: Ranks | None = None
        """The ranks that train together, once they have met; None if this process trains alone."""
        self._rank_change = ""
        """What is different if the run had another number of ranks before."""
        self._thread = threading.Thread(target=self._run, name="amptui-trainer", daemon=True)
        self._prepared: Prepared | None = None
        self._trainer: Trainer | None = None
        self._doing = "while importing torch"
        self._batch_size: int | None = None
        self._announced = ""
        self.error: AmptuiError | None = None
        """Why the run failed, if it did."""
        self.traceback = ""
        """Where that was; empty for what amptui itself refuses, of which :attr:`error` says all."""
        self.rank_0_end = ""
        """How rank 0 ended, if it cannot tell why the run failed, and this rank does."""
        self.ended = threading.Event()
        """Set after the last record was emitted."""

    def start(self) -> None:
        """Start training; returns at once."""
        self._thread.start()

    def join(self, timeout_seconds: float) -> bool:
        """Wait at most that long for the end; return whether it came."""
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def close(self) -> None:
        """End its DataLoader workers, after training has ended."""
        prepared = self._prepared
        for batches in (prepared.training, prepared.validation) if prepared is not None else ():
            if batches is not None and not self._thread.is_alive():
                batches.close()

    @property
    def doing(self) -> str:
        """What the thread is doing, for a user who waits for it: ``"in step 500"``."""
        if (trainer := self._trainer) is None:
            return self._doing
        if trainer.monitor.in_step:
            compiling = ", compiling the model" if trainer.monitor.compilations.busy else ""
            return f"in step {trainer.monitor.step}{compiling}"
        return trainer.doing or f"while loading the batch of step {trainer.monitor.step + 1}"

    @property
    def awaited(self) -> str:
        """What a stop waits for: ``stopping after step 500``, ``stopping while importing torch``."""
        in_step = self._trainer is not None and self._trainer.monitor.in_step
        return f"stopping after step {self._step:,}" if in_step else f"stopping {self.doing}"

    @property
    def others_are_there(self) -> bool:
        """Whether all other ranks, if there are any, can still end well."""
        return True

    @property
    def saving(self) -> bool:
        """Whether only a checkpoint or the weights remain to be written, which may take a while."""
        return self._trainer is not None and self._trainer.saving

    def emit_finished_steps(self) -> int:
        """Emit the steps since the last poll, as the process abandons this thread; the last one's number."""
        if self._trainer is None:
            return self._steps_before
        monitor = self._trainer.monitor
        if monitor.device.type == "cpu":  # only the trainer's thread may use a GPU
            with suppress(IndexError):  # it may go on after all and deliver the last ones
                monitor.drain()
        return monitor.step - monitor.in_step

    @property
    def _step(self) -> int:
        """Steps sent to the device."""
        return self._trainer.monitor.step if self._trainer else self._steps_before

    def allocator(self) -> AllocatorSample | None:
        """The trainer's last sample of the allocator."""
        return self._trainer.monitor.allocator.sample if self._trainer else None

    def _run(self) -> None:
        try:
            self._train()
        except BaseException as error:  # noqa: BLE001 - a model file may raise anything, SystemExit too
            self._fail(error)
        finally:
            self.ended.set()

    def _train(self) -> None:
        self._enter_phase("importing", "importing torch")
        from amptui.checkpoint.states import save_weights
        from amptui.loops.description import describe_run
        from amptui.loops.train import Trainer

        prepared, start = self._prepare()
        self._prepared = prepared
        if self._control.stopping:
            self._finish_before_training()
            return
        self._doing = "while describing the run"
        started = describe_run(self._spec.name, prepared)
        self._announce_run(started, start)
        writer = self._make_writer(
            self._request.checkpoint_dir,
            control=self._control,
            emit=self._emit,
            every=self._request.checkpoint_every,
            journaled=self._journaled,
            resumed_from=None if start is None else start.place,
            resume_command=self._resume_command,
        )
        trainer = self._trainer = Trainer(
            prepared,
            self._control,
            self._emit,
            interactive=self._request.interactive,
            writer=writer,
            start=start,
        )
        # torch and the model live as long as the run: a full collection would visit all of their objects, and
        # add a tenth of a second to some step.
        gc.collect()
        gc.freeze()
        try:
            reason = trainer.run()
        finally:
            gc.unfreeze()  # some libraries complain at exit about objects that were never collected
        step, weights = trainer.monitor.step, self._request.save_weights
        if weights is not None:
            trainer.saving, trainer.doing = True, f"while writing {weights}"
            self._enter_phase("stopping", "writing the weights")
            model, state = prepared.model, prepared.strategy.state
            averaged = save_weights(model, prepared.experiment, Path(weights), state=state)
            trainer.saving = False
            self._emit(WeightsSaved(time=time.time(), step=step, path=weights, averaged=averaged))
        now = time.time()
        seconds = now - started.time + (start.seconds if start else 0.0)
        self._finish(RunFinished(time=now, steps=step, seconds=seconds, reason=reason))

    def _prepare(self) -> "tuple[Prepared, Checkpoint | None]":
        """Prepare for the first step, and announce long work."""
        from amptui.data.sources import DataRequest
        from amptui.device.accelerator import enter_device
        from amptui.loops import setup
        from amptui.loops.data_passes import PhaseProgress
        from amptui.loops.resume import share_batch
        from amptui.recipe.loading import build_experiment, load_class

        request = self._request
        choices = self._choose()
        enter_device(choices.device)
        setup.seed_everything(request.seed)
        checkpoint = self._read_checkpoint() if request.resume else None
        if checkpoint is None:
            request = replace(request, resume=False)  # also ranks that start over
        else:
            checkpoint, request, self._rank_change = share_batch(checkpoint, request, self._world_size)
        self._doing = f"while importing {self._spec.text}"
        experiment_class = load_class(self._spec)
        batch_size = checkpoint.identity.get("batch_size") if checkpoint else None
        settings = setup.experiment_settings(experiment_class, request, choices.device, batch_size=batch_size)
        experiment = build_experiment(experiment_class, settings)
        self._batch_size = experiment.batch_size
        progress = PhaseProgress(self._emit, "data")
        prepared = setup.assemble(
            request,
            experiment,
            choices,
            data_request=DataRequest(
                data_dir=request.data_dir,
                kind=request.data,
                seed=request.seed,
                workers=request.workers,
                report=progress.report,
                stopping=lambda: self._control.stop_reason is not None,
                warn=self._warn,
            ),
            announce=self._announce,
            ranks=self._group,
        )
        if checkpoint is not None:
            return self._restore(checkpoint, prepared)
        return prepared, None

    def _choose(self) -> "Choices":
        from amptui.loops.setup import choose

        return choose(self._request)

    def _read_checkpoint(self) -> "Checkpoint | None":
        from amptui.loops.resume import newest_checkpoint

        folder = self._request.checkpoint_dir
        assert folder is not None, "a resumed run has a folder of checkpoints"
        self._announce("data", "reading the checkpoint", "while reading the checkpoint")
        checkpoint = newest_checkpoint(folder, self._warn)
        self._steps_before = checkpoint.step
        return checkpoint

    def _restore(self, checkpoint: "Checkpoint", prepared: "Prepared") -> "tuple[Prepared, Checkpoint]":
        from amptui.loops.resume import restore

        self._doing = "while restoring the checkpoint"
        return restore(checkpoint, prepared, self._warn, rank=self._rank, ranks=self._world_size)

    def _announce_run(self, started: RunStarted, start: "Checkpoint | None", **restart: Any) -> None:
        """Record that the run starts or resumes: from its beginning if it had no checkpoint.

        ``restart``: how often ranks were started again, and why, as fields of a record.
        """
        from amptui.checkpoint.file import checkpoint_name
        from amptui.loops.description import describe_resumption

        resumed = None
        if self._request.resume:
            self._doing = "while cutting the journal"
            step, name = (0, "") if start is None else (start.step, checkpoint_name(start.step))
            resumed = describe_resumption(started, step=step, checkpoint=name, **restart)
        self._begin(started, resumed)
        if self._rank_change:
            self._emit(Note(time=time.time(), severity="info", text=self._rank_change))

    def _make_writer(self, folder: Path | None, **options: Any) -> "CheckpointWriter":
        from amptui.checkpoint.writer import CheckpointWriter

        return CheckpointWriter(folder, **options)

    def _announce(self, phase: Phase, detail: str, doing: str) -> None:
        if detail != self._announced:
            self._announced = detail
            self._enter_phase(phase, detail)
        self._doing = doing

    def _warn(self, text: str) -> None:
        self._emit(Note(time=time.time(), severity="warning", text=text))

    def _enter_phase(self, phase: Phase, detail: str) -> None:
        self._emit(PhaseChanged(time=time.time(), phase=phase, detail=detail))

    def _finish_before_training(self) -> None:
        """End a run that was stopped before its first step in this process."""
        self._finish(RunFinished(time=time.time(), steps=self._steps_before, seconds=0.0, reason="stopped"))

    def _finish(self, record: RunFinished) -> None:
        self._control.close()
        self._emit(record)

    def _fail(self, error: BaseException) -> None:
        if self._control.stop_reason and not self._trainer and isinstance(error, AmptuiError):
            # Long preparations raise when asked to stop.
            self._finish_before_training()
            return
        self._tell_failure(error)

    def _tell_failure(self, error: BaseException) -> None:
        """Emit the last record of a run that failed."""
        self.error = self._explained(error)
        # Who has just resumed it, and came no further, knows how.
        resume_hint = self._resume_hint() if self._trainer is not None else ""
        if resume_hint and self._resume_command() not in str(self.error):
            self.error.add_hint(resume_hint)
        self._control.close()
        self._emit(
            RunFailed(time=time.time(), step=self._step, error=str(self.error), traceback=self.traceback)
        )

    def _resume_hint(self) -> str:
        """How the run goes on after a failure; "" if it has no checkpoint."""
        from amptui.checkpoint.file import checkpoints

        folder = self._request.checkpoint_dir
        newest = checkpoints(folder)[:1] if folder is not None else []
        return "".join(f"to resume from {path.name}: {self._resume_command()}" for path in newest)

    def _explained(self, error: BaseException) -> AmptuiError:
        if isinstance(error, AmptuiError):
            self.traceback = ""
            return error
        if "torch" not in sys.modules:
            self.traceback = "".join(traceback.format_exception(error))
            return torch_failed(error)
        from amptui.device.failure import explain, traceback_text

        self.traceback = traceback_text(error)
        if self._trainer is None:
            return explain(error, doing=self.doing, batch_size=None)
        precision = self._trainer.monitor.switch.precision.name
        return explain(error, doing=self.doing, batch_size=self._batch_size, precision=precision)


def torch_failed(error: BaseException) -> DeviceError:
    """Why torch cannot be imported: ``error`` comes from the first attempt; later ones hide the reason."""
    if isinstance(error, ModuleNotFoundError):
        return DeviceError(f"{error} (while importing torch)", hint="install torch for this Python")
    what = one_line(f"{type(error).__name__}: {error}").removesuffix(":")
    return DeviceError(
        f"{what} (while importing torch)",
        hint="check that `python -c 'import torch'` works, and `ulimit -v`",
    )
