"""The training loop: epochs, batches, validation, pauses, checkpoints. It tells the monitor of its steps.

The loop never waits: not for a screen, not for a file, not for the device.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Literal

from amptui.checkpoint.file import Checkpoint
from amptui.checkpoint.writer import CheckpointWriter, Reason
from amptui.device.failure import is_device_lost, never_free
from amptui.device.readback import LOOK_INTERVAL_SECONDS
from amptui.loops.data_passes import DataPosition, Validator
from amptui.loops.resume import capture, capture_parts
from amptui.loops.setup import Prepared
from amptui.loops.strategy import MetricSums, MicroBatch
from amptui.loops.train_step import TrainMonitor
from amptui.recipe.trained import loss_weights
from amptui.records.control import Control
from amptui.records.run import Phase, PhaseChanged, Record

Outcome = Literal["done", "stopped"]


class Trainer:
    """One run of the loop; created and used in the trainer's thread.

    ``writer`` writes the checkpoints, if any; ``start`` is where a resumed run continues. Another thread may
    read what is public.
    """

    doing = ""
    """What is running if no step is, for error messages: ``in the validation of epoch 2``; "" for loading."""
    saving = False
    """Whether only a checkpoint remains to be written, or weights to be gathered."""
    phase: Phase | None = None
    """The last one that was reported."""

    def __init__(
        self,
        prepared: Prepared,
        control: Control,
        emit: Callable[[Record], object],
        *,
        interactive: bool,
        writer: CheckpointWriter,
        start: Checkpoint | None = None,
        look_interval_seconds: float = LOOK_INTERVAL_SECONDS,
    ) -> None:
        self._prepared, self._optimizer = prepared, prepared.optimizer
        self._control, self._emit, self._writer = control, emit, writer
        self.monitor = TrainMonitor(
            prepared,
            control,
            emit,
            writer,
            interactive=interactive,
            start=start,
            look_interval_seconds=look_interval_seconds,
        )
        self._validator = Validator(prepared, control, emit)
        self._position = DataPosition(prepared, start, control, emit, keeps=writer.keeps)

    def run(self) -> Outcome:
        """Train until done or asked to stop."""
        monitor, position, writer = self.monitor, self._position, self._writer
        strategy = self._prepared.strategy
        monitor.switch.precision.enter()
        self._enter_phase("first step", "loading kernels, allocating memory")
        monitor.compilations.begin()
        monitor.begin_interval()
        outcome: Outcome | None = None
        try:
            while outcome is None:
                outcome = "done" if position.run_ends(monitor.step) else self._epoch()
            if outcome == "done":
                monitor.flush()
                monitor.check_last()
        except BaseException as error:
            # After a device fault nothing can be read. On a GPU a step may wait for ranks that have ended.
            waits = strategy.ranks > 1 and monitor.device.type != "cpu"
            if is_device_lost(error):
                never_free(self)
            with suppress(RuntimeError):
                monitor.drain() if waits else monitor.flush()
            self.saving = True
            writer.give_up()
            writer.close()
            self.saving = False
            raise
        finally:
            monitor.compilations.end()
        monitor.flush()
        self._control.finish()
        self.saving, self.doing = True, f"while writing the checkpoint of step {monitor.step}"
        place = monitor.step, position.epoch, position.batches, monitor.switch.chosen
        if writer.writing or writer.lacks(place):
            self._enter_phase("stopping", "writing the checkpoint")
        self._write_checkpoint(writer.last_due(place))
        if writer.follows:
            writer.wait()
        strategy.leave()
        writer.close()
        self.saving = False
        monitor.switch.finish(monitor.step)
        return outcome

    def _epoch(self) -> Outcome | None:
        """Run the rest of an epoch and its validation; return an outcome if the run ended in it."""
        monitor, position, prepared = self.monitor, self._position, self._prepared
        accumulate, limit = prepared.request.accumulate, prepared.schedule.asked_steps
        divide = prepared.strategy.micro_batches
        batches = position.open_epoch()
        while True:
            if (looks := monitor.look_is_due()) and not self._look():
                return "stopped"
            ends = limit is not None and monitor.step >= limit
            if ends:
                position.save_random_states()
            load_start = time.perf_counter()
            step_batches = tuple(islice(batches, 1 if ends else accumulate))
            if not step_batches:
                return self._finish_epoch()
            if ends:
                position.undo_draws()
                return "done"
            data_seconds = time.perf_counter() - load_start
            if looks:
                monitor.xray(step_batches, counts_operations=True)
            position.batches += len(step_batches)
            micro_batches = divide(step_batches)
            monitor.make_step(
                partial(self._run_passes, micro_batches),
                micro_batches,
                epoch=position.epoch,
                load_start=load_start,
                data_seconds=data_seconds,
            )

    def _run_passes(self, micro_batches: Sequence[MicroBatch]) -> None:
        """The forward and backward passes of an optimizer step, as in any loop with AMP."""
        monitor, count = self.monitor, len(micro_batches)
        self._optimizer.zero_grad()
        weights = (None,) if count == 1 else loss_weights([batch.samples for batch in micro_batches])
        for micro_batch, weigh in zip(micro_batches, weights, strict=True):
            with monitor.autocast():
                loss = micro_batch.compute_loss()
            monitor.backward(loss, weigh)

    def _look(self) -> bool:
        """Between two steps: report what arrived and handle requests; return False to end the run."""
        monitor, control, position = self.monitor, self._control, self._position
        if monitor.compilations.tell():
            self.phase = None  # compiling has shown its own
        monitor.look()
        if monitor.reporter.delivered:
            self._enter_phase("training")
        monitor.pause_if_wanted(self._handle_requests)
        every, step = self._prepared.request.validate_every, monitor.step
        # An epoch's end has its own validation.
        is_due = every is not None and step % every == 0 and step not in (0, position.validated_step)
        if is_due and self._prepared.validation is not None and not position.epoch_ends:
            sums = self._validate(f"after step {step}")
            if sums is not None:
                report = partial(monitor.reporter.validated, step=step, epoch=position.epoch)
                monitor.push(sums.tensors(), lambda row, _seconds: report(validation=sums.means(row)))
            self.doing = ""
        self._handle_requests()
        monitor.plan(look_after=(self._writer.every, every))
        return not control.stopping

    def _handle_requests(self) -> None:
        """Between two steps, and while the run is paused."""
        only_asked = self.monitor.switch.on_trial or self._position.epoch_ends
        self._write_checkpoint(self._writer.due(self.monitor.step, only_asked=only_asked))
        self.monitor.switch_if_wanted()

    def _validate(self, where: str) -> MetricSums | None:
        """Validate after the newest step; None if asked to stop meanwhile."""
        self.doing = f"in the validation {where}"
        if self._prepared.validation is not None:
            self._enter_phase("validating", "validating")
        return self._validator.run(self.monitor, self._position)

    def _finish_epoch(self) -> Outcome | None:
        """Validate, and report the epoch after its last steps."""
        monitor, position, schedule = self.monitor, self._position, self._prepared.lr_schedule
        sums = self._validate(f"of epoch {position.epoch}")
        if sums is None:
            return "stopped"
        report = partial(monitor.reporter.epoch, step=monitor.step, epoch=position.epoch)
        monitor.push(sums.tensors(), lambda row, _seconds: report(validation=sums.means(row)))
        if schedule is not None:
            if schedule.needs_metric:
                monitor.flush()  # it waits for the epoch's numbers
            schedule.finish_epoch(monitor.reporter.epoch_metric)
        position.finish_epoch()
        self._writer.want_epoch()
        monitor.look_at_once()
        self.doing = ""
        return None

    def _write_checkpoint(self, reason: Reason | None) -> None:
        """Capture a checkpoint for the thread that writes it, if there is a reason."""
        writer, prepared, position = self._writer, self._prepared, self._position
        if reason is not None and writer.follows:
            writer.send_states(position.states(), partial(capture_parts, prepared))
        elif reason is not None:
            began = time.perf_counter()
            self.monitor.flush()
            writer.keep(partial(capture, prepared, position, self.monitor, writer.warn), reason, began=began)
            self.monitor.begin_interval()

    def _enter_phase(self, phase: Phase, detail: str = "") -> None:
        if phase != self.phase:
            self.phase = phase
            self._emit(PhaseChanged(time=time.time(), phase=phase, detail=detail))
