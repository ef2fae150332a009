"""The training loop: steps, switches at step boundaries, epochs. Emits records; knows no screen.

The loop never waits: not for a screen, not for a file, not for the device. It enqueues a step, pushes
the step's numbers into the readback, and at the next boundary emits whatever has arrived.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

from torch import Tensor, nn

from amptui.control import Control
from amptui.data.batches import count_samples
from amptui.engine.allocator import AllocatorWatch
from amptui.engine.cadence import Cadence
from amptui.engine.failure import explain
from amptui.engine.hopeless import HopelessWatch
from amptui.engine.precision import LOWEST_SOUND_SCALE, PrecisionMode
from amptui.engine.probing.gradients import GradientProbe
from amptui.engine.probing.memory import break_down
from amptui.engine.probing.probes import Probes
from amptui.engine.probing.timeline import Timeline
from amptui.engine.probing.xray import take_xray
from amptui.engine.readback import open_readback
from amptui.engine.reporting import StepFacts, StepReporter
from amptui.engine.saving.checkpoint import Checkpoint
from amptui.engine.saving.keeping import Keeper, Reason
from amptui.engine.saving.place import Bookmark, Start
from amptui.engine.saving.resume import take
from amptui.engine.setup import Prepared
from amptui.engine.switching import ModeSwitch
from amptui.engine.validation import Validator, checked_loss
from amptui.records import (
    AMP_PRECISIONS,
    AllocatorSample,
    Note,
    PauseChanged,
    Phase,
    PhaseChanged,
    Record,
    StepRecord,
)

Outcome = Literal["done", "stopped"]

GRADIENTS_BUDGET = 0.01
"""The part of the host's time that gradient norms may take. A large model pays that little at every step; one
of many small layers would pay several times as much, and is measured less often."""


class Trainer:
    """One run of the loop; made and used in the trainer's thread.

    ``keeper`` keeps checkpoints, none without; ``start`` is where a run goes on that another process began.
    """

    def __init__(
        self,
        prepared: Prepared,
        control: Control,
        emit: Callable[[Record], object],
        *,
        attended: bool,
        keeper: Keeper | None = None,
        start: Start | None = None,
    ) -> None:
        self._prepared = prepared
        self._control = control
        self._emit = emit
        self._on_cuda = prepared.device.type == "cuda"
        self._model = prepared.model
        self._optimizer = prepared.optimizer
        self._readback = open_readback(prepared.device, clock=time.perf_counter)
        self._gradients = GradientProbe(prepared.model)
        self._reporter = StepReporter(self._take_reported, self._gradients)
        self._hopeless = HopelessWatch(self._reporter, control, attended=attended)
        self._validator = Validator(prepared, control, emit)
        self._gradients_cadence = Cadence(GRADIENTS_BUDGET)
        self._probes = Probes(prepared, self._gradients, emit)
        self._allocator = AllocatorWatch(prepared.device)
        self._switch = ModeSwitch(prepared, control, self._allocator, emit)
        self._timeline = Timeline(prepared.device, emit)
        self._keeper = keeper or Keeper(None, control=control, emit=emit)
        self._bookmark = Bookmark(prepared, start, control, emit, keeps=self._keeper.keeps)
        self._began = time.monotonic() - (start.seconds if start else 0.0)
        self._phase: Phase | None = None
        self.doing = ""
        """What a traceback interrupted: ``"in step 500"``."""
        self.saving = False
        """Whether the run is over but for a checkpoint that is being written."""
        if start is not None:
            self._reporter.restore(start.loop["reported"])
            self._switch.hold_scale(start.loop["held_scale"])
            self._hopeless.floor_accepted = start.loop["floor_accepted"]

    @property
    def step(self) -> int:
        """Steps sent to the device."""
        return self._bookmark.step

    @property
    def allocator(self) -> AllocatorSample | None:
        """The allocator as last looked at; another thread may read it."""
        return self._allocator.sample

    def run(self) -> Outcome:
        """Train until done or asked to stop."""
        self._switch.mode.enter()
        self._enter_phase("first step", "kernels load, memory is allocated")
        self._readback.begin_interval()
        try:
            outcome = self._epochs()
        except BaseException:
            # The steps before the fault are told; after a fault of the device itself nothing can be read.
            with suppress(RuntimeError):
                self._flush()
            self.saving = True
            self._keeper.wait()
            self.saving = False
            raise
        self._flush()
        self._keep_last()
        self._switch.finish(self.step)
        return outcome

    def _flush(self) -> None:
        """Deliver all numbers that are still on their way; waits for the device."""
        self._readback.flush()
        self._probes.flush()
        self._timeline.flush()

    def _epochs(self) -> Outcome:
        while self._bookmark.epoch <= self._prepared.schedule.epochs and not self._bookmark.run_ends:
            outcome = self._epoch(self._bookmark.epoch)
            if outcome:
                return outcome
        return "done"

    def _epoch(self, epoch: int) -> Outcome | None:
        """Run what is left of an epoch, and its validation; an outcome if the run ended within it."""
        self.doing = f"while loading the batch of step {self.step + 1}"
        batches = self._bookmark.open_epoch()
        limit = self._prepared.schedule.steps
        while self._boundary():
            self.doing = f"while loading the batch of step {self.step + 1}"
            ends = limit is not None and self.step >= limit
            if ends:
                self._bookmark.remember()
            asked = time.perf_counter()
            batch = next(batches, None)
            if batch is None:
                return self._finish_epoch(epoch)
            if ends:
                self._bookmark.take_back()
                return "done"
            data_seconds = time.perf_counter() - asked
            if self._control.take_probe("x-ray"):
                self._take_xray(batch)
            self._train_step(batch, epoch, data_seconds)
        return "stopped"

    # ---------------------------------------------------------------------------- one step

    def _train_step(self, batch: Any, epoch: int, data_seconds: float) -> None:
        """Forward, backward, clip, step: enqueued on the device, its numbers pushed, nothing waited for."""
        self._bookmark.count_step()
        self.doing = f"in step {self.step}"
        settling = self._switch.begin_step()
        timeline = self._timeline
        timeline.begin(self.step, self._switch.mode.name, settling, data_seconds)
        timeline.mark("input")
        self._optimizer.zero_grad(set_to_none=True)
        loss, parts = self._switch.attempt(
            self.step, self.doing, lambda mode: self._forward_and_backward(mode, batch)
        )
        mode, scaled = self._switch.mode, self._switch.mode.scales and self._prepared.clip_norm is None
        gradients = self._unscale_and_clip(mode, scaled=scaled)
        state = mode.step(self._optimizer)
        timeline.mark("optimizer")
        if self._switch.breakdown_is_due:
            self._break_down_memory(mode, loss)
        if gradients is None and not self._on_cuda and state is not None and state.found_inf.item():
            gradients = self._measure_gradients()  # on a CPU a skipped step still has its gradients to name
        facts = StepFacts(
            step=self.step,
            epoch=epoch,
            precision=mode.name,
            samples=count_samples(batch),
            data_seconds=data_seconds,
            lr=float(self._optimizer.param_groups[0]["lr"]),
            settling=settling,
            parts=tuple(parts),
            scaled=state is not None,
            gradients=gradients is not None,
            gradients_scaled=scaled,
        )
        scaler = (state.scale, state.found_inf, state.next_scale, state.growth_tracker) if state else ()
        self._readback.push(
            [loss, *parts.values(), *scaler, *(() if gradients is None else (gradients,))],
            lambda row, seconds: self._reporter.step(facts, row, seconds),
            timed=True,
        )

    def _unscale_and_clip(self, mode: PrecisionMode, *, scaled: bool) -> Tensor | None:
        """Gradients as the optimizer shall have them; what was measured of them on the way, if anything."""
        clip_norm = self._prepared.clip_norm
        if clip_norm is not None:
            mode.unscale(self._optimizer)
        gradients = self._measure_gradients() if self._wants_gradients() else None
        self._probes.after_backward(self.step, mode, scaled=scaled, assumed_scale=self._loss_scale())
        if clip_norm is not None and gradients is not None:
            total = self._gradients.total_norm(gradients)
            nn.utils.clip_grads_with_norm_(self._gradients.parameters, clip_norm, total)
            self._timeline.mark("clip")
        else:
            self._timeline.leave_out()
        return gradients

    def _break_down_memory(self, mode: PrecisionMode, loss: Tensor) -> None:
        with self._probes.unharmed("memory breakdown"):
            found = break_down(
                self._model,
                self._optimizer,
                step=self.step,
                precision=mode.name,
                peak_allocated_bytes=self._allocator.peak_bytes(),
                loss=loss,
            )
            self._emit(found)

    def _forward_and_backward(self, mode: PrecisionMode, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss and its parts, gradients filled."""
        with self._probes.around_step(self.step, mode):
            with mode.forward_context():
                result = self._prepared.experiment.loss(self._model, batch)
            loss, parts = checked_loss(self._prepared.experiment, result)
            self._timeline.mark("forward")
            mode.backward(loss)
            self._timeline.mark("backward")
        return loss, parts

    def _wants_gradients(self) -> bool:
        """Whether this step's gradients are measured: always where they are needed, else when it is cheap.

        Clipping needs them. So does naming who overflowed in a skipped step, of which the host learns only
        later on CUDA. Otherwise a budget decides, and whether the newest loss known here was finite.
        """
        if self._prepared.clip_norm is not None or not self._prepared.probes:
            return self._prepared.clip_norm is not None
        return (
            (self._switch.mode.scales and self._on_cuda)
            or not self._reporter.loss_is_finite
            or self._gradients_cadence.due()
        )

    def _measure_gradients(self) -> Tensor:
        began = time.perf_counter()
        row = self._gradients.measure()
        self._gradients_cadence.measured(began)
        return row

    def _loss_scale(self) -> float:
        """The scale that the next ``fp16`` step would begin with, as far as is known here."""
        scale = self._reporter.loss_scale
        collapsed = scale is not None and scale < LOWEST_SOUND_SCALE and not self._switch.mode.scales
        return self._prepared.first_scale if scale is None or collapsed else scale

    def _take_reported(self, record: Record) -> None:
        """Pass a step's record on, and learn from it."""
        self._emit(record)
        if type(record) is StepRecord:
            self._switch.take(record)

    # ------------------------------------------------------------------------ step boundary

    def _boundary(self) -> bool:
        """Between two steps: emit what arrived, obey requests; false when the run shall end."""
        self._readback.drain()
        if self._reporter.delivered:
            self._enter_phase("training")
        self._hopeless.look(self._switch.mode)
        self._allocator.look(self._switch.mode.name, settled=self._switch.settled)
        self._look_closer()
        if self._control.paused and not self._control.stop_reason:
            self._pause()
        self._keep_if_due()
        self._switch.between_steps(self.step)
        self._timeline.drain()
        return self._control.stop_reason is None

    def _look_closer(self) -> None:
        """Arm the probes that a person or the last steps' troubles ask for."""
        if self._control.take_probe("trace"):
            self._probes.arm_trace(asked=True)
        reporter = self._reporter
        self._probes.between_steps(
            self.step, trouble_step=reporter.trouble_step, unexplained_step=reporter.unexplained_step
        )

    def _take_xray(self, batch: Any) -> None:
        """The next step's batch in FP32 and in AMP, neither applied; training goes on whatever happens."""
        self._flush()
        precision = (
            self._switch.mode.name
            if self._switch.mode.name in AMP_PRECISIONS
            else self._prepared.amp_precision
        )
        scale = self._loss_scale() if self._prepared.modes[precision].scales else None
        try:
            with self._allocator.left_out():
                found = take_xray(
                    self._prepared, batch, step=self.step + 1, precision=precision, loss_scale=scale
                )
            self._emit(found)
        except Exception as error:  # noqa: BLE001 - a person's code may raise anything; the run must go on
            why = explain(error, doing="in the X-ray", batch_size=None)
            self._emit(Note(time=time.time(), severity="warning", text=f"no X-ray: {why}"))
        self._readback.begin_interval()

    def _pause(self) -> None:
        """Stand still until asked to go on; precisions may be switched meanwhile."""
        self._flush()
        reason = self._hopeless.take_reason()
        if reason:
            # Should the person go on, the scale stays here: at 0 a step would turn every weight into NaN.
            self._switch.hold_scale(self._reporter.loss_scale)
        self._emit(PauseChanged(time=time.time(), step=self.step, paused=True, reason=reason))
        while self._control.paused and not self._control.stop_reason:
            self._control.wait_while_paused()
            self._switch.between_steps(self.step)
            self._keep_if_due()
        self._emit(PauseChanged(time=time.time(), step=self.step, paused=False))
        self._readback.begin_interval()

    # -------------------------------------------------------------------- epochs and blocks

    def _finish_epoch(self, epoch: int) -> Outcome | None:
        """Validate, and report the epoch as soon as its last steps were delivered."""
        self.doing = f"in the validation of epoch {epoch}"
        if self._prepared.validation is not None:
            self._enter_phase("validating", "validating")
        step, finish = self.step, self._reporter.epoch
        self._bookmark.remember()
        sums = self._validator.run(self._switch.mode)
        if sums is None:
            self._bookmark.take_back()
            return "stopped"
        self._readback.push(
            sums.tensors(),
            lambda row, _seconds: finish(step=step, epoch=epoch, validation=sums.means(row)),
            timed=False,
        )
        self._readback.begin_interval()
        self._bookmark.finish_epoch()
        self._keeper.want_epoch()
        return None

    # -------------------------------------------------------------------------- checkpoints

    def _keep_if_due(self) -> None:
        only_asked = self._switch.on_trial or self._bookmark.epoch_ends
        reason = self._keeper.due(self.step, only_asked=only_asked)
        if reason is not None:
            self._keep(reason)

    def _keep(self, reason: Reason) -> None:
        """Hand a checkpoint to the thread that writes it."""
        began = time.perf_counter()
        self._flush()
        self._keeper.keep(self._checkpoint, reason, began=began)
        self._readback.begin_interval()

    def _keep_last(self) -> None:
        """Write the run's last checkpoint, unless this place has one, and wait for it."""
        keeper, place = self._keeper, self._bookmark.place(self._switch.chosen)
        if not keeper.writing and not keeper.lacks(place):
            return
        self.saving, self.doing = True, f"while writing the checkpoint of step {self.step}"
        self._enter_phase("stopping", "writing the checkpoint")
        keeper.wait()
        if keeper.lacks(place):
            self._keep(keeper.last_reason())
            keeper.wait()
        self.saving = False

    def _checkpoint(self) -> Checkpoint:
        loop = {
            "reported": self._reporter.state(),
            "held_scale": self._switch.held_scale,
            "floor_accepted": self._hopeless.floor_accepted,
        }
        seconds = time.monotonic() - self._began
        return take(
            self._prepared,
            self._bookmark,
            loop,
            precision=self._switch.chosen,
            seconds=seconds,
            say=self._keeper.warn,
        )

    def _enter_phase(self, phase: Phase, detail: str = "") -> None:
        if phase != self._phase:
            self._phase = phase
            self._emit(PhaseChanged(time=time.time(), phase=phase, detail=detail))
