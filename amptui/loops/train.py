"""The training loop: epochs, batches, validation, pauses, checkpoints. It tells the monitor of its steps.

The loop never waits: not for a screen, not for a file, not for the device.
"""

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from typing import Literal

from amptui.checkpoint.file import Checkpoint
from amptui.checkpoint.writer import CheckpointWriter, Reason
from amptui.device.failure import is_device_lost, never_free
from amptui.device.readback import LOOK_INTERVAL_SECONDS
from amptui.loops.compilation import CompiledIn
from amptui.loops.data_position import DataPosition
from amptui.loops.prepared import Prepared
from amptui.loops.resume import capture, capture_parts
from amptui.loops.train_step import MicroBatch, TrainMonitor
from amptui.loops.validation import MetricSums, Validator
from amptui.recipe.loss import loss_weights
from amptui.records.control import Control, XRayRequest
from amptui.records.ranks import RankPhase
from amptui.records.run import Phase, PhaseChanged, Record
from amptui.records.samples import AllocatorSample

Outcome = Literal["done", "stopped"]


class Trainer:
    """One run of the loop; created and used in the trainer's thread.

    ``writer`` writes the checkpoints, if any; ``start`` is where a resumed run continues.
    """

    def __init__(
        self,
        prepared: Prepared,
        control: Control,
        emit: Callable[[Record], object],
        *,
        interactive: bool,
        writer: CheckpointWriter | None = None,
        start: Checkpoint | None = None,
        look_interval_seconds: float = LOOK_INTERVAL_SECONDS,
    ) -> None:
        self._prepared, self._optimizer = prepared, prepared.optimizer
        self._control = control
        self._emit = emit
        self._writer = writer or CheckpointWriter(None, control=control, emit=emit)
        self._monitor = TrainMonitor(
            prepared,
            control,
            emit,
            self._writer,
            interactive=interactive,
            first_step=start.step + 1 if start else 1,
            look_interval_seconds=look_interval_seconds,
        )
        self._validator = Validator(prepared, control, emit)
        self._position = DataPosition(prepared, start, control, emit, keeps=self._writer.keeps)
        self._strategy = strategy = prepared.strategy
        self._micro_batches = strategy.micro_batches
        prepared.compilations.on_compiling = strategy.tell_compiling
        self._began = time.monotonic() - (start.seconds if start else 0.0)
        self._phase: Phase | None = None
        self._xray_wanted = False
        self._validated_step = 0
        self._validated_in = ""
        self._doing = ""
        self.saving = False
        """Whether only a checkpoint remains to be written, or weights to be gathered."""
        if start is not None:
            self._monitor.restore(start.loop)
            self._validated_step = int(start.loop.get("validated_step", 0))

    @property
    def step(self) -> int:
        """Steps sent to the device."""
        return self._monitor.step

    @property
    def precision(self) -> str:
        """The current precision."""
        return self._monitor.switch.precision.name

    @property
    def in_step(self) -> bool:
        """Whether a step is running, as seen by the host."""
        return self._monitor.in_step

    @property
    def doing(self) -> str:
        """What is running, for error messages: ``"in step 500"``."""
        if self._monitor.in_step:
            compiling = ", compiling the model" if self._prepared.compilations.busy else ""
            return f"in step {self.step}{compiling}"
        return self._doing or f"while loading the batch of step {self.step + 1}"

    @property
    def activity(self) -> RankPhase:
        """What is running, for another thread."""
        if self._prepared.compilations.busy:
            return "compiling"
        if self._monitor.in_step:
            return "after_step" if self._monitor.in_after_step else "training"
        if self.saving:
            return "saving"
        return "validating" if self._doing and self._phase == "validating" else "loading"

    @property
    def awaited(self) -> str:
        """What a stop waits for."""
        return f"stopping after step {self.step:,}" if self.in_step else f"stopping {self.doing}"

    @property
    def allocator(self) -> AllocatorSample | None:
        """The last sample of the allocator; another thread may read it."""
        return self._monitor.allocator.sample

    def emit_finished_steps(self) -> None:
        """Emit the steps since the last look, from another thread, when this one hangs for good."""
        if self._prepared.device.type == "cpu":  # only this thread may use a GPU
            with suppress(IndexError):  # this thread may go on after all and deliver the last ones
                self._monitor.drain()

    def deliver_steps(self) -> None:
        """Emit the steps whose numbers have arrived; for this thread."""
        self._monitor.drain()

    def run(self) -> Outcome:
        """Train until done or asked to stop."""
        monitor = self._monitor
        monitor.switch.precision.enter()
        self._enter_phase("first step", "loading kernels, allocating memory")
        self._prepared.compilations.begin(self._place, self._emit)
        monitor.begin_interval()
        try:
            outcome = self._epochs()
            if outcome == "done":
                monitor.flush()
                monitor.check_last()
        except BaseException as error:
            # After a device fault nothing can be read. On a GPU a step may wait for ranks that have ended.
            waits = self._strategy.ranks > 1 and self._prepared.device.type != "cpu"
            if is_device_lost(error):
                never_free(self)
            with suppress(RuntimeError):
                monitor.drain() if waits else monitor.flush()
            self.saving = True
            self._writer.give_up()
            self._writer.wait()
            self._writer.tell_missing_at_end()
            self.saving = False
            raise
        finally:
            self._prepared.compilations.end()
        monitor.flush()
        self._control.finish()
        self.saving = True
        self._begin_last_checkpoint()
        if self._writer.follows:
            self._writer.wait()
        self._strategy.leave()
        self._writer.wait()
        self._writer.tell_missing_at_end()
        self.saving = False
        monitor.switch.finish(self.step)
        return outcome

    def _epochs(self) -> Outcome:
        while not self._position.run_ends:
            outcome = self._epoch(self._position.epoch)
            if outcome:
                return outcome
        return "done"

    def _epoch(self, epoch: int) -> Outcome | None:
        """Run the rest of an epoch and its validation; return an outcome if the run ended in it."""
        monitor, position, prepared = self._monitor, self._position, self._prepared
        accumulate, limit = prepared.request.accumulate, prepared.schedule.asked_steps
        batches = position.open_epoch()
        while not monitor.look_is_due() or self._look():
            ends = limit is not None and monitor.step >= limit
            if ends:
                position.save_random_states()
            load_start = time.perf_counter()
            step_batches = tuple(islice(batches, 1 if ends else accumulate))
            if not step_batches:
                return self._finish_epoch(epoch)
            if ends:
                position.undo_draws()
                return "done"
            data_seconds = time.perf_counter() - load_start
            if self._xray_wanted:
                self._xray_wanted = False
                monitor.xray_if_wanted(step_batches)
            position.count_step(len(step_batches))
            micro_batches = self._micro_batches(step_batches)
            monitor.make_step(
                partial(self._run_passes, micro_batches),
                micro_batches,
                epoch=epoch,
                load_start=load_start,
                data_seconds=data_seconds,
            )
        return "stopped"

    def _run_passes(self, micro_batches: Sequence[MicroBatch]) -> None:
        """The forward and backward passes of an optimizer step, as in any loop with AMP."""
        monitor, count = self._monitor, len(micro_batches)
        self._optimizer.zero_grad()
        weights = (None,) if count == 1 else loss_weights([batch.samples for batch in micro_batches])
        for micro_batch, weigh in zip(micro_batches, weights, strict=True):
            with monitor.autocast():
                loss = micro_batch.compute_loss()
            monitor.backward(loss, weigh)

    # -------------------------------------------------------------------------- the look

    def _look(self) -> bool:
        """Between two steps: report what arrived and handle requests; return False to end the run."""
        monitor, control = self._monitor, self._control
        if control.is_copy:
            return False
        if self._prepared.compilations.tell():
            self._phase = None  # compiling has shown its own
        monitor.look()
        if monitor.reporter.delivered:
            self._enter_phase("training")
        monitor.pause_if_wanted(self._handle_requests)
        every, step = self._prepared.request.validate_every, self.step
        if every is not None and step > 0 and step % every == 0:
            self._validate_within_epoch()
        self._write_checkpoint_if_due()
        monitor.switch_if_wanted()
        self._xray_wanted = control.newest(XRayRequest) is not None
        validation = None if every is None else step + every - step % every
        boundaries = [due for due in (self._writer.next_step(step), validation) if due is not None]
        monitor.plan(look_by=min(boundaries, default=None))
        return not control.stopping

    def _validate_within_epoch(self) -> None:
        """Validate after this step; an epoch's end has its own validation."""
        monitor, step, position = self._monitor, self.step, self._position
        if self._prepared.validation is None or position.epoch_ends or step == self._validated_step:
            return
        self._doing = f"in the validation after step {step}"
        self._enter_phase("validating", "validating")
        sums = self._validate()
        if sums is not None:
            self._validated_step = step
            report = partial(monitor.reporter.validated, step=step, epoch=position.epoch)
            monitor.push(sums.tensors(), lambda row, _seconds: report(validation=sums.means(row)))
        self._doing = ""

    def _handle_requests(self) -> None:
        """While the run is paused."""
        self._monitor.switch_if_wanted()
        self._write_checkpoint_if_due()

    def _validate(self) -> MetricSums | None:
        """Validate in the precision of the steps so far; None if asked to stop meanwhile."""
        self._position.save_random_states()
        with self._monitor.switch.validation_precision() as precision:
            self._validated_in = precision.name
            sums = self._validator.run(precision)
        if sums is None:
            self._position.undo_draws()
        return sums

    def _finish_epoch(self, epoch: int) -> Outcome | None:
        """Validate, and report the epoch after its last steps."""
        self._doing = f"in the validation of epoch {epoch}"
        if self._prepared.validation is not None:
            self._enter_phase("validating", "validating")
        monitor, position = self._monitor, self._position
        sums = self._validate()
        if sums is None:
            return "stopped"
        step, finish = self.step, monitor.reporter.epoch
        self._validated_step = step
        monitor.push(
            sums.tensors(), lambda row, _seconds: finish(step=step, epoch=epoch, validation=sums.means(row))
        )
        schedule = self._prepared.lr_schedule
        if schedule is not None:
            if schedule.needs_metric:
                monitor.flush()  # it waits for the epoch's numbers
            schedule.finish_epoch(monitor.reporter.epoch_metric)
        position.finish_epoch()
        self._writer.want_epoch()
        monitor.look_at_once()
        self._doing = ""
        return None

    # -------------------------------------------------------------------------- checkpoints

    def _write_checkpoint_if_due(self) -> None:
        only_asked = self._monitor.switch.on_trial or self._position.epoch_ends
        reason = self._writer.due(self.step, only_asked=only_asked)
        if reason is not None:
            self._write_checkpoint(reason)

    def _write_checkpoint(self, reason: Reason) -> None:
        """Capture a checkpoint for the thread that writes it."""
        if self._writer.follows:
            self._writer.send_states(self._position.states(), partial(capture_parts, self._prepared))
            return
        began = time.perf_counter()
        self._monitor.flush()
        self._writer.keep(self._checkpoint, reason, began=began)
        self._monitor.begin_interval()

    def _begin_last_checkpoint(self) -> None:
        """Begin to write the run's last checkpoint, unless it is there already."""
        writer, place = self._writer, self._position.place(self._monitor.switch.chosen)
        self._doing = f"while writing the checkpoint of step {self.step}"
        if writer.writing or writer.lacks(place):
            self._enter_phase("stopping", "writing the checkpoint")
        reason = writer.last_due(place)
        if reason is not None:
            self._write_checkpoint(reason)

    def _checkpoint(self) -> Checkpoint:
        return capture(
            self._prepared,
            self._position,
            {**self._monitor.state(), "validated_step": self._validated_step},
            precision=self._monitor.switch.chosen,
            seconds=time.monotonic() - self._began,
            warn=self._writer.warn,
        )

    def _place(self) -> CompiledIn:
        training = self._prepared.model.training
        return CompiledIn(self.step, self.precision if training else self._validated_in, training)

    def _enter_phase(self, phase: Phase, detail: str = "") -> None:
        if phase != self._phase:
            self._phase = phase
            self._emit(PhaseChanged(time=time.time(), phase=phase, detail=detail))


@contextmanager
def frozen_garbage_collection() -> Iterator[None]:
    """Exclude existing objects from garbage collection: torch and the model live as long as the run.

    A full collection would visit all of them and add a tenth of a second to some step.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()  # some libraries complain at exit about objects that were never collected
