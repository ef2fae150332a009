"""The trainer's thread: loads torch, prepares the run, trains, and turns every end into a record."""

import gc
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

from amptui.control import Control
from amptui.errors import AmptuiError
from amptui.modelspec import ModelSpec
from amptui.records import AllocatorSample, Note, Phase, PhaseChanged, Record, RunFailed, RunFinished
from amptui.request import TrainRequest

if TYPE_CHECKING:
    from amptui.data.sources import DataRequest, Progress
    from amptui.engine.setup import Prepared
    from amptui.engine.trainer import Trainer

_REPORT_INTERVAL_SECONDS = 0.2


class TrainingThread:
    """Trains in a plain thread of its own. torch is imported there, after the screen stands.

    A plain thread, joined before the process exits: leaving the interpreter while a thread is inside torch
    aborts the process. It is a daemon so that a step that never ends cannot keep a person from leaving.
    """

    def __init__(
        self, request: TrainRequest, spec: ModelSpec, control: Control, emit: Callable[[Record], object]
    ) -> None:
        self._request = request
        self._spec = spec
        self._control = control
        self._emit = emit
        self._thread = threading.Thread(target=self._run, name="amptui-trainer", daemon=True)
        self._trainer: Trainer | None = None
        self._doing = "while importing torch"
        self._batch_size: int | None = None
        self._report_due = 0.0
        self._reported = ""
        self.error: AmptuiError | None = None
        """Why the run failed, once it did."""
        self.ended = threading.Event()
        """Set when the last record was emitted."""

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    @property
    def started(self) -> bool:
        """Whether :meth:`start` was called."""
        return self._thread.ident is not None

    def join(self, timeout_seconds: float) -> bool:
        """Wait for the end at most that long; whether it came."""
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    @property
    def doing(self) -> str:
        """What the thread is at, for a person who waits for it: ``"in step 500"``."""
        return (self._trainer.doing if self._trainer else "") or self._doing

    def allocator(self) -> AllocatorSample | None:
        """The allocator as the trainer last saw it."""
        return self._trainer.allocator if self._trainer else None

    def _run(self) -> None:
        try:
            self._train()
        except BaseException as error:  # noqa: BLE001 - a model file may raise anything, SystemExit too
            self._fail(error)
        finally:
            self.ended.set()

    def _train(self) -> None:
        self._say("importing", "importing torch")
        from amptui.engine.description import describe_run
        from amptui.engine.trainer import Trainer

        prepared = self._prepare()
        if self._control.stop_reason:
            self._emit(RunFinished(time=time.time(), steps=0, seconds=0.0, reason="stopped"))
            return
        self._doing = "while describing the run"
        started = describe_run(self._spec.name, prepared, self._request)
        self._emit(started)
        self._trainer = Trainer(prepared, self._control, self._emit, attended=self._request.attended)
        with _frozen_garbage_collection():
            reason = self._trainer.run()
        now = time.time()
        self._emit(RunFinished(time=now, steps=self._trainer.step, seconds=now - started.time, reason=reason))

    def _prepare(self) -> "Prepared":
        """Do everything before the first step, saying what it is that takes so long."""
        from amptui.engine import setup
        from amptui.engine.loading import build_experiment, load_class

        request = self._request
        choices = setup.choose(request)
        setup.enter_device(choices.device)
        setup.seed_everything(request.seed)
        self._doing = f"while importing {self._spec.text}"
        chosen = load_class(self._spec)
        experiment = build_experiment(chosen, setup.experiment_settings(chosen, request, choices.device))
        self._batch_size = experiment.batch_size
        prepared = setup.assemble(
            request, experiment, choices, data_request=self._data_request(), announce=self._announce
        )
        self._note_choices(chosen.cpu_batch_size, choices.device.type)
        return prepared

    def _announce(self, phase: Phase, detail: str, doing: str) -> None:
        self._say(phase, detail)
        self._doing = doing

    def _data_request(self) -> "DataRequest":
        from amptui.data.sources import DataRequest

        return DataRequest(
            data_dir=self._request.data_dir,
            kind=self._request.data,
            seed=self._request.seed,
            report=self._report,
            stopping=lambda: self._control.stop_reason is not None,
            warn=lambda text: self._emit(Note(time=time.time(), severity="warning", text=text)),
        )

    def _note_choices(self, cpu_batch_size: int | None, device_type: str) -> None:
        """Say what was chosen for the person because of the device."""
        settings = self._request.settings
        chosen = self._request.batch_size is not None or "batch_size" in settings
        if device_type == "cpu" and cpu_batch_size and not chosen:
            text = f"batch size {cpu_batch_size}, this model's default on a CPU; --batch-size changes it"
            self._emit(Note(time=time.time(), severity="info", text=text))

    def _report(self, progress: "Progress") -> None:
        """Pass progress on as often as a person can see it change, its start and its end always."""
        now, at_end = time.monotonic(), progress.done is not None and progress.done == progress.total
        if now >= self._report_due or progress.detail != self._reported or at_end:
            self._report_due, self._reported = now + _REPORT_INTERVAL_SECONDS, progress.detail
            self._emit(PhaseChanged(time=time.time(), phase="data", **asdict(progress)))

    def _say(self, phase: Phase, detail: str) -> None:
        self._emit(PhaseChanged(time=time.time(), phase=phase, detail=detail))

    def _fail(self, error: BaseException) -> None:
        step = self._trainer.step if self._trainer else 0
        if self._control.stop_reason and not self._trainer and isinstance(error, AmptuiError):
            # Long preparations leave by raising when they are asked to stop.
            self._emit(RunFinished(time=time.time(), steps=0, seconds=0.0, reason="stopped"))
            return
        trace = "".join(traceback.format_exception(error))
        self.error = _explained(error, self.doing, self._batch_size)
        self._emit(RunFailed(time=time.time(), step=step, error=str(self.error), traceback=trace))


@contextmanager
def _frozen_garbage_collection() -> Iterator[None]:
    """Leave what is there now out of garbage collection: torch and the model live as long as the run.

    A full collection would walk through all of it, a tenth of a second within some step.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()  # libraries complain at exit of what was never collected


def _explained(error: BaseException, doing: str, batch_size: int | None) -> AmptuiError:
    try:
        from amptui.engine.failure import explain
    except ImportError as missing:  # torch itself cannot be imported
        return AmptuiError(f"{missing} ({doing})", mend="install torch for this Python")
    return explain(error, doing=doing, batch_size=batch_size)
