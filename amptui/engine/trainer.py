"""The training loop: steps, switches at step boundaries, epochs. Emits records; knows no screen.

The loop never waits: not for a screen, not for a file, not for the device. It enqueues a step, pushes
the step's numbers into the readback, and at the next boundary emits whatever has arrived.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

import torch
from torch import Tensor, nn

from amptui.control import Control
from amptui.data.batches import count_samples
from amptui.engine.cadence import Cadence
from amptui.engine.gradients import GradientProbe
from amptui.engine.readback import open_readback
from amptui.engine.reporting import StepFacts, StepReporter
from amptui.engine.setup import Prepared
from amptui.engine.validation import Validator, check_scalars
from amptui.errors import ExperimentError
from amptui.records import (
    AllocatorSample,
    BlockFinished,
    Note,
    PauseChanged,
    Phase,
    PhaseChanged,
    PrecisionChanged,
    Record,
)

Outcome = Literal["done", "stopped"]

SETTLING_STEPS = 10
"""Steps after a start or a switch that statistics leave out: autotuning, allocator and caches settle."""

NORMS_BUDGET = 0.005
"""The part of the host's time that gradient norms may take: a model of many small layers pays 25% for them
at every step on a CPU, a large one 0.3%."""

HOPELESS_STEPS = 10
"""After that many first steps with a non-finite loss, all applied, no weight is a number any more."""

LEAST_LOSS_SCALE = 2.0**-24
"""40 skips in a row below the start. At 0, 126 more, the next step would turn every weight into NaN."""

_ALLOCATOR_INTERVAL_SECONDS = 0.5


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
        self._mode = prepared.modes[prepared.precision]
        self._readback = open_readback(prepared.device, clock=time.perf_counter)
        self._gradients = GradientProbe(prepared.model)
        self._reporter = StepReporter(emit, self._gradients)
        self._validator = Validator(prepared, control, emit)
        self._norms_cadence = Cadence(NORMS_BUDGET)
        self._block_steps = 0
        self._allocator_due = 0.0
        self._phase: Phase | None = None
        self.step = 0
        """Steps sent to the device."""
        self.doing = ""
        """What a traceback interrupted: ``"in step 500"``."""
        self.allocator: AllocatorSample | None = None
        """torch's allocator as last looked at; another thread may read it."""

    def run(self) -> Outcome:
        """Train until done or asked to stop."""
        self._mode.enter()
        self._enter_phase("first step", "kernels load, memory is allocated")
        self._readback.begin_interval()
        try:
            outcome = self._epochs()
        except BaseException:
            # The steps before the fault are told; after a fault of the device itself nothing can be read.
            with suppress(RuntimeError):
                self._readback.flush()
            raise
        self._readback.flush()
        self._finish_block()
        return outcome

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
            self._train_step(batch, epoch, time.perf_counter() - asked)
        return "stopped"

    # ---------------------------------------------------------------------------- one step

    def _train_step(self, batch: Any, epoch: int, data_seconds: float) -> None:
        """Forward, backward, clip, step: enqueued on the device, its numbers pushed, nothing waited for."""
        self.step += 1
        self.doing = f"in step {self.step}"
        mode, clip_norm = self._mode, self._prepared.clip_norm
        self._optimizer.zero_grad(set_to_none=True)
        with mode.forward_context():
            result = self._prepared.experiment.loss(self._model, batch)
        loss, parts = self._checked_loss(result)
        mode.backward(loss)
        if clip_norm is not None:
            mode.unscale(self._optimizer)
        norms = self._norms() if self._wants_norms() else None
        if clip_norm is not None and norms is not None:
            total = torch.linalg.vector_norm(norms)
            nn.utils.clip_grads_with_norm_(self._gradients.parameters, clip_norm, total)
        state = mode.step(self._optimizer)
        if norms is None and state is not None and state.found_inf.item():
            norms = self._norms()  # on a CPU a skipped step still has its gradients to name
        facts = StepFacts(
            step=self.step,
            epoch=epoch,
            precision=mode.name,
            samples=count_samples(batch),
            data_seconds=data_seconds,
            lr=float(self._optimizer.param_groups[0]["lr"]),
            settling=self._settle(),
            parts=tuple(parts),
            scaled=state is not None,
            norms=norms is not None,
            norms_scaled=state is not None and clip_norm is None,
        )
        scaler = (state.scale, state.found_inf, state.next_scale, state.growth_tracker) if state else ()
        self._readback.push(
            [loss, *parts.values(), *scaler, *(() if norms is None else (norms,))],
            lambda row, seconds: self._reporter.step(facts, row, seconds),
            timed=True,
        )

    def _wants_norms(self) -> bool:
        """Whether this step's gradients are measured: always where they are needed, else when it is cheap.

        Clipping needs them. So does naming who overflowed in a skipped step, of which the host learns only
        later on CUDA. Otherwise a budget decides, and whether the newest loss known here was finite.
        """
        return (
            self._prepared.clip_norm is not None
            or (self._mode.scales and self._on_cuda)
            or not self._reporter.loss_is_finite
            or self._norms_cadence.due()
        )

    def _norms(self) -> Tensor:
        began = time.perf_counter()
        norms = self._gradients.norms()
        self._norms_cadence.measured(began)
        return norms

    def _checked_loss(self, result: Tensor | dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Total and parts; raises ExperimentError for what a step cannot go backward from."""
        owner = f"{type(self._prepared.experiment).__name__}.loss()"
        parts = {}
        if isinstance(result, dict):
            if "loss" not in result:
                raise ExperimentError(f"{owner} returned a dict without 'loss'", mend="name the total 'loss'")
            parts = {name: part for name, part in result.items() if name != "loss"}
            check_scalars(parts, owner)
            result = result["loss"]
        if not isinstance(result, Tensor):
            kind = "None" if result is None else f"a {type(result).__name__}"
            raise ExperimentError(f"{owner} returned {kind}", mend="return a scalar tensor")
        if result.numel() != 1:
            shape = "x".join(map(str, result.shape))
            raise ExperimentError(
                f"{owner} returned a tensor of shape {shape}", mend="reduce it to a scalar, with .mean() say"
            )
        if not result.requires_grad:
            raise ExperimentError(
                f"{owner} returned a tensor without a gradient",
                mend="compute it from the model's output, not under no_grad() or after detach()",
            )
        return result, parts

    def _settle(self) -> bool:
        """Count this step into its block; whether it still settles. At the end of settling peaks restart."""
        self._block_steps += 1
        if self._block_steps == SETTLING_STEPS and self._on_cuda:
            torch.cuda.reset_peak_memory_stats(self._prepared.device)
        return self._block_steps <= SETTLING_STEPS

    # ------------------------------------------------------------------------ step boundary

    def _boundary(self) -> bool:
        """Between two steps: emit what arrived, obey requests; false when the run shall end."""
        self._readback.drain()
        if self._reporter.delivered:
            self._enter_phase("training")
        self._refuse_the_hopeless()
        self._look_at_allocator()
        if self._control.paused and not self._control.stop_reason:
            self._pause()
        self._take_precision()
        return self._control.stop_reason is None

    def _take_precision(self) -> None:
        name = self._control.take_precision()
        if name is None or name == self._mode.name:
            return
        if name in self._prepared.unsupported:
            why = self._prepared.unsupported[name]
            self._emit(Note(time=time.time(), severity="warning", text=f"no {name} here: {why}"))
            return
        self._finish_block()
        previous, self._mode = self._mode.name, self._prepared.modes[name]
        self._mode.enter()
        self._block_steps = 0
        self._emit(PrecisionChanged(time=time.time(), step=self.step + 1, previous=previous, current=name))

    def _pause(self) -> None:
        """Stand still until asked to go on; precisions may be switched meanwhile."""
        self._readback.flush()
        self._emit(PauseChanged(time=time.time(), step=self.step, paused=True))
        while self._control.paused and not self._control.stop_reason:
            self._control.wait_while_paused()
            self._take_precision()
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
        if scale is None or scale >= LEAST_LOSS_SCALE or self._mode.name != "fp16":
            return
        what = f"the loss scale fell to {scale:.1e} after {reporter.consecutive_skips} skipped steps in a row"
        if not self._attended or self._control.left_alone:
            raise ExperimentError(what, mend="use --precision bf16 or fp32")
        if not self._control.paused and not self._control.requested_precision:
            text = f"paused: {what}; go on in another precision, or stop"
            self._emit(Note(time=time.time(), severity="error", text=text))
            self._control.request_pause(True)

    # -------------------------------------------------------------------- epochs and blocks

    def _finish_epoch(self, epoch: int) -> Outcome | None:
        """Validate, and report the epoch as soon as its last steps were delivered."""
        self.doing = f"in the validation of epoch {epoch}"
        if self._prepared.validation is not None:
            self._enter_phase("validating", "validating")
        step, finish = self.step, self._reporter.epoch
        sums = self._validator.run(self._mode)
        if sums is None:
            return "stopped"
        self._readback.push(
            sums.tensors(),
            lambda row, _seconds: finish(step=step, epoch=epoch, validation=sums.means(row)),
            timed=False,
        )
        self._readback.begin_interval()
        return None

    def _finish_block(self) -> None:
        """Report the stretch of steps in the current precision."""
        if not self._block_steps:
            return
        settled = self._block_steps > SETTLING_STEPS
        peak = self._allocator_sample().peak_allocated_bytes if self._on_cuda and settled else None
        self._emit(
            BlockFinished(
                time=time.time(),
                step=self.step,
                precision=self._mode.name,
                steps=self._block_steps,
                peak_allocated_bytes=peak,
            )
        )

    def _look_at_allocator(self) -> None:
        """Refresh ``allocator`` now and then: a look costs about a tenth of a millisecond."""
        if self._on_cuda and (now := time.monotonic()) >= self._allocator_due:
            self._allocator_due = now + _ALLOCATOR_INTERVAL_SECONDS
            self.allocator = self._allocator_sample()

    def _allocator_sample(self) -> AllocatorSample:
        stats = torch.cuda.memory_stats(self._prepared.device)
        return AllocatorSample(
            precision=self._mode.name,
            allocated_bytes=stats["allocated_bytes.all.current"],
            reserved_bytes=stats["reserved_bytes.all.current"],
            peak_allocated_bytes=(
                stats["allocated_bytes.all.peak"] if self._block_steps > SETTLING_STEPS else None
            ),
        )

    def _enter_phase(self, phase: Phase, detail: str = "") -> None:
        if phase != self._phase:
            self._phase = phase
            self._emit(PhaseChanged(time=time.time(), phase=phase, detail=detail))
