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
from amptui.engine.gradients import GradientProbe
from amptui.engine.memory import break_down
from amptui.engine.precision import LOWEST_SOUND_SCALE, PrecisionMode
from amptui.engine.probes import Probes
from amptui.engine.readback import open_readback
from amptui.engine.reporting import StepFacts, StepReporter
from amptui.engine.setup import Prepared
from amptui.engine.switching import ModeSwitch
from amptui.engine.timeline import Timeline
from amptui.engine.validation import Validator, checked_loss
from amptui.engine.xray import take_xray
from amptui.errors import ExperimentError
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

HOPELESS_STEPS = 10
"""After that many first steps with a non-finite loss, all applied, no weight is a number any more."""

LEAST_LOSS_SCALE = 2.0**-24
"""40 skips in a row below the start. At 0, 126 more, the next step would turn every weight into NaN."""


class Trainer:
    """One run of the loop; made and used in the trainer's thread."""

    def __init__(
        self, prepared: Prepared, control: Control, emit: Callable[[Record], object], *, attended: bool
    ) -> None:
        self._prepared = prepared
        self._control = control
        self._emit = emit
        self._attended = attended
        self._on_cuda = prepared.device.type == "cuda"
        self._model = prepared.model
        self._optimizer = prepared.optimizer
        self._readback = open_readback(prepared.device, clock=time.perf_counter)
        self._gradients = GradientProbe(prepared.model)
        self._reporter = StepReporter(self._take_reported, self._gradients)
        self._validator = Validator(prepared, control, emit)
        self._gradients_cadence = Cadence(GRADIENTS_BUDGET)
        self._probes = Probes(prepared, self._gradients, emit)
        self._allocator = AllocatorWatch(prepared.device)
        self._switch = ModeSwitch(prepared, control, self._allocator, emit)
        self._timeline = Timeline(prepared.device, emit)
        self._first_scale = prepared.scaler.get_scale()
        self._floor_accepted = False
        self._pause_reason = ""
        self._phase: Phase | None = None
        self.step = 0
        """Steps sent to the device."""
        self.doing = ""
        """What a traceback interrupted: ``"in step 500"``."""

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
            raise
        self._flush()
        self._switch.finish(self.step)
        return outcome

    def _flush(self) -> None:
        """Deliver all numbers that are still on their way; waits for the device."""
        self._readback.flush()
        self._probes.flush()
        self._timeline.flush()

    def _epochs(self) -> Outcome:
        for epoch in range(1, self._prepared.schedule.epochs + 1):
            outcome = self._epoch(epoch)
            if outcome:
                return outcome
        return "done"

    def _epoch(self, epoch: int) -> Outcome | None:
        """Run one epoch and its validation; an outcome if the run ended within it."""
        batches = iter(self._prepared.training.epoch(epoch))
        limit = self._prepared.schedule.steps
        while self._boundary():
            self.doing = f"while loading the batch of step {self.step + 1}"
            asked = time.perf_counter()
            batch = next(batches, None)
            if batch is None:
                return self._finish_epoch(epoch)
            if limit is not None and self.step >= limit:
                return "done"
            data_seconds = time.perf_counter() - asked
            if self._control.take_probe("x-ray"):
                self._take_xray(batch)
            self._train_step(batch, epoch, data_seconds)
        return "stopped"

    # ---------------------------------------------------------------------------- one step

    def _train_step(self, batch: Any, epoch: int, data_seconds: float) -> None:
        """Forward, backward, clip, step: enqueued on the device, its numbers pushed, nothing waited for."""
        self.step += 1
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
        return self._first_scale if scale is None or collapsed else scale

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
        self._refuse_the_hopeless()
        self._allocator.look(self._switch.mode.name, settled=self._switch.settled)
        self._look_closer()
        if self._control.paused and not self._control.stop_reason:
            self._pause()
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
        reason, self._pause_reason = self._pause_reason, ""
        if reason:
            # Should the person go on, the scale stays here: at 0 a step would turn every weight into NaN.
            self._switch.mode.hold_scale(self._reporter.loss_scale)
        self._emit(PauseChanged(time=time.time(), step=self.step, paused=True, reason=reason))
        while self._control.paused and not self._control.stop_reason:
            self._control.wait_while_paused()
            self._switch.between_steps(self.step)
        self._emit(PauseChanged(time=time.time(), step=self.step, paused=False))
        self._readback.begin_interval()

    def _refuse_the_hopeless(self) -> None:
        """End, or pause and ask, where going on could only waste or destroy the run."""
        reporter = self._reporter
        if reporter.bad_applied_steps >= HOPELESS_STEPS:
            raise ExperimentError(
                f"the loss is {reporter.last_loss} from step 1 on, and so is every weight",
                mend="check the inputs and the loss, or use a smaller --lr",
            )
        scale = reporter.loss_scale
        if scale is None or not self._switch.mode.scales:
            return
        if scale >= LEAST_LOSS_SCALE:
            self._floor_accepted = False
            return
        what = f"the loss scale fell to {scale:.1e} after {reporter.consecutive_skips} skipped steps in a row"
        if not self._attended or self._control.left_alone:
            raise ExperimentError(what, mend="use --precision bf16 or fp32")
        if not self._floor_accepted and not self._control.requested_precision:
            self._floor_accepted = True
            self._pause_reason = what
            self._control.request_pause(True)

    # -------------------------------------------------------------------- epochs and blocks

    def _finish_epoch(self, epoch: int) -> Outcome | None:
        """Validate, and report the epoch as soon as its last steps were delivered."""
        self.doing = f"in the validation of epoch {epoch}"
        if self._prepared.validation is not None:
            self._enter_phase("validating", "validating")
        step, finish = self.step, self._reporter.epoch
        sums = self._validator.run(self._switch.mode)
        if sums is None:
            return "stopped"
        self._readback.push(
            sums.tensors(),
            lambda row, _seconds: finish(step=step, epoch=epoch, validation=sums.means(row)),
            timed=False,
        )
        self._readback.begin_interval()
        return None

    def _enter_phase(self, phase: Phase, detail: str = "") -> None:
        if phase != self._phase:
            self._phase = phase
            self._emit(PhaseChanged(time=time.time(), phase=phase, detail=detail))
