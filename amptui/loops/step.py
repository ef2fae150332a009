"""The step engine: one optimizer step in the current precision, and the measurements around it.

A loop drives it. Between two looks, four a second, a step does what training needs, pushes its numbers
and nothing else; a look handles records, budgets, probes and switches. ``Control.attention``, one plain
attribute, requests a look at the next step boundary.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from amptui.checkpoint.writer import CheckpointWriter
from amptui.data.batches import Batch
from amptui.device.readback import LOOK_INTERVAL_SECONDS, open_readback
from amptui.loops.optimizer_step import MicroBatch
from amptui.loops.prepared import Prepared
from amptui.monitor.allocator import AllocatorWatch
from amptui.monitor.divergence_guard import DivergenceGuard
from amptui.monitor.reporting import StepReporter
from amptui.monitor.step_boundary import StepBoundary
from amptui.monitor.step_rows import StepFacts, StepKind, StepTensors, row_of
from amptui.probes.flop_counter import StepInputs, step_inputs
from amptui.probes.gradient_norms import GradientNorms
from amptui.probes.step_timer import StepTimer
from amptui.probes.update_ratios import UpdateRatios
from amptui.recipe.experiment import Experiment
from amptui.recipe.sharding import is_sharded
from amptui.records.control import Control
from amptui.records.run import Record

NORMS, WINDOW, WEIGHTS = 1, 2, 4
"""What all ranks measure in the same step where each has a part of it, as bits of one number: gradient norms,
the float16 window, and how many weights are lost."""


class StepEngine:
    """Makes optimizer steps and keeps track of them; used by the one thread that trains.

    The loop calls :meth:`train_step` for each batch. If :meth:`look_is_due`, it first uses the
    :attr:`boundary`, and calls :meth:`plan` last, before it loads the batch.
    ``interactive``: whether to ask the user if training diverges; ``writer`` knows the last good checkpoint.
    """

    def __init__(
        self,
        prepared: Prepared,
        control: Control,
        emit: Callable[[Record], object],
        writer: CheckpointWriter,
        *,
        interactive: bool,
        first_step: int = 1,
        look_interval_seconds: float = LOOK_INTERVAL_SECONDS,
    ) -> None:
        self._prepared = prepared
        self._control = control
        self._emit = emit
        own_after_step = type(prepared.experiment).after_step is not Experiment.after_step
        self._after_step = prepared.experiment.after_step if own_after_step else None
        strategy = prepared.strategy
        gradients = strategy.gradients(prepared.model)
        self._norms = GradientNorms(prepared.device, gradients, enabled=prepared.probes)
        self.reporter = StepReporter(emit, gradients)
        self._readback = open_readback(
            prepared.device, clock=time.perf_counter, deliver_steps=self.reporter.steps
        )
        self.allocator = AllocatorWatch(prepared.device)
        self.step = first_step - 1
        """Steps sent to the device."""
        self.boundary = StepBoundary(self, prepared, control, self.reporter, self._norms, emit)
        self.switch, self._probes = self.boundary.switch, self.boundary.probes
        self._timeline = StepTimer(prepared.device, emit)
        self._updates = UpdateRatios(prepared.device, emit)
        has_weights = strategy.leads and not is_sharded(prepared.model)
        self._updates.follow(prepared.model, enabled=prepared.probes and has_weights)
        self._optimizer_step = strategy.optimizer_step(
            prepared, self._norms, self._probes, self._timeline, self._updates
        )
        self._ranks = control.ranks if gradients.together else None
        """Agrees with the other ranks on the steps to measure, where each has a part of the gradients."""
        self._agreed = 0
        """What all ranks measure in the next step."""
        self._kind = StepKind(0, "")
        self._look_interval_seconds = look_interval_seconds
        self._look_due = 0.0
        self._look_step = self._closer_until = 0
        self.in_step = False
        """Whether a step is running, to say what an exception interrupted."""
        self.in_after_step = False
        self.guard = DivergenceGuard(self.reporter, control, self._readback, writer, interactive=interactive)
        if self._ranks is not None:
            self.guard.ask_for_count = partial(self._ranks.want_probes, WEIGHTS)
        if strategy.leads:  # of several ranks rank 0 decides if training can go on
            self.boundary.guard = self.guard
        self.boundary.no_xray = strategy.needs_others
        if not strategy.needs_others:
            self.switch.can_retry, self.switch.agree = True, strategy.agree

    # ------------------------------------------------------------------------------ one step

    def train_step(
        self, micro_batches: Sequence[MicroBatch], *, epoch: int, load_start: float, data_seconds: float
    ) -> None:
        """Forward, backward, clip, update: enqueues the work, pushes its numbers and never waits.

        ``load_start`` is when loading the batches began, by ``perf_counter``; it took ``data_seconds``.
        Raises ExperimentError for a loss that cannot be trained on. Exceptions of the model pass through.
        """
        self.step += 1
        self.in_step = True
        warming_up = self.switch.begin_step()
        inputs = _inputs(micro_batches) if warming_up else None
        counts_flops = inputs is not None and self._probes.flops.is_due(self.switch.precision, inputs)
        if self.step > self._closer_until and not counts_flops:
            step_tensors = self._optimizer_step.make(self.switch.precision, micro_batches)
        else:
            step_tensors = self._make_observed(micro_batches, inputs, data_seconds)
        if self._after_step is not None:
            self.in_after_step = True
            with torch.no_grad():
                self._after_step(self._prepared.model)
            self.in_after_step = False
        count, samples = len(micro_batches), micro_batches[0].samples
        if count > 1:
            samples = sum([micro_batch.samples for micro_batch in micro_batches])
        precision, loss, parts, lrs, scaler, clip_norm, gradients, gradients_scaled = step_tensors
        layout, values = row_of(loss, parts, lrs.on_device, scaler, clip_norm, gradients)
        warming_up = warming_up or self._prepared.compilations.pending
        kind = self._kind
        common = epoch, precision, warming_up, layout, gradients_scaled, count
        if kind[:6] != common:
            kind = self._kind = StepKind(*common)
        facts = StepFacts(kind, self.step, samples, data_seconds, load_start, lrs.first, lrs.groups)
        row = self._readback.push_step(values, facts, timed=True)
        if row is not None and not math.isfinite(row[0]):
            self.look_at_once()  # on a CPU the loss is known before the next step
        self.in_step = False

    def _make_observed(
        self, micro_batches: Sequence[MicroBatch], inputs: StepInputs | None, data_seconds: float
    ) -> StepTensors:
        """The same step with what is due: timing marks, probes, gradient norms, a precision on trial.

        ``inputs`` are those of a warm-up step; None for other steps.
        """
        timeline, switch = self._timeline, self.switch
        if inputs is None:
            self._probes.flops.check(self.step, _inputs(micro_batches))
        timeline.begin(self.step, switch.precision.name, inputs is not None, data_seconds)
        timeline.mark("input")
        make = partial(
            self._optimizer_step.make_observed,
            micro_batches=micro_batches,
            step=self.step,
            inputs=inputs,
            norms=self._norms_are_due(self.step - 1) if self._ranks is None else bool(self._agreed & NORMS),
            window=None if self._ranks is None else bool(self._agreed & WINDOW),
            assumed_scale=self.boundary.loss_scale(),
        )
        self._agreed = 0
        self._prepared.strategy.on_trial = switch.on_trial and switch.can_retry
        step_tensors = switch.attempt(self.step, f"in step {self.step}", make)
        self._norms.scaled_steps += step_tensors.scaler is not None
        # Accumulated losses have no graph.
        loss = step_tensors.loss if step_tensors.loss.requires_grad else None
        self.boundary.break_down_memory(step_tensors.precision, loss)
        return step_tensors

    def _norms_are_due(self, step: int) -> bool:
        """Whether to measure all gradients in the step that follows ``step``."""
        return self._norms.are_due(step, is_scaled=self.switch.precision.scales)

    # ---------------------------------------------------------------------------- the look

    def look_is_due(self) -> bool:
        """Whether to look before the next step: it is time, or a request came in."""
        return (
            self._control.attention or self.step >= self._look_step or time.perf_counter() >= self._look_due
        )

    def check_last(self) -> None:
        """Check the weights after the last step. Raises ExperimentError if they are lost."""
        if self._ranks is not None:
            self.guard.count_weights()
        if self.boundary.guard is not None:
            self.guard.check_last()

    def plan(self, *, look_by: int | None = None) -> None:
        """Decide which of the next steps to observe, and when to look again: by step ``look_by``."""
        self._timeline.drain()
        schedule = self._prepared.lr_schedule
        applied = None if schedule is None else schedule.request_applied()
        if schedule is not None and applied is not None:
            refill = schedule.refill
            self.push([applied], lambda row, _seconds: None if row is None else refill(row[0]))
        step, steps = self.step, self.boundary.plan_look()
        self._look_step = step + steps if look_by is None else min(step + steps, look_by)
        self._look_due = time.perf_counter() + self._look_interval_seconds
        norms_are_due = self._norms_are_due(step)
        if self._ranks is not None:  # all ranks measure in the step they agree on
            self._ranks.want_probes(NORMS * norms_are_due | WINDOW * self._probes.window_is_due)
            agreed = self._ranks.take_probes()
            if agreed & WEIGHTS:
                self.guard.count_weights()
            self._agreed |= agreed & ~WEIGHTS
        closer = step == 0 or self.switch.needs_observation or self._timeline.armed or self._agreed > 0
        self._updates.look(step)
        observed = (step + self._probes.steps_due, self._norms.until, self._updates.until)
        self._closer_until = max(step + closer, *observed)

    # --------------------------------------------------------------------- around the steps

    def look_at_once(self) -> None:
        """Look at the next step boundary."""
        self._look_step = self.step

    def begin_interval(self) -> None:
        """Leave the time until now out of the next step's time."""
        self._readback.begin_interval()

    def push(self, values: list[Tensor], deliver: Callable[..., object]) -> None:
        """Send other numbers, such as a validation's, after those of the steps before."""
        self._readback.push(values, deliver, timed=False)
        self._readback.begin_interval()

    def drain(self) -> None:
        """Deliver the steps that have arrived."""
        self._readback.drain()

    def flush(self) -> None:
        """Deliver all numbers; waits for the device."""
        self._readback.flush()
        self._probes.flush()
        self._updates.flush()
        self._timeline.flush()

    def xray(self, batches: Sequence[Batch]) -> None:
        """Run the next step's batches in FP32 and in AMP and apply neither; an error does not end the run.

        With other ranks rank 0 does so alone, with its own batches, while they wait.
        """
        around = partial(self._prepared.strategy.on_rank_0, f"the X-ray before step {self.step + 1}")
        self.boundary.xray(batches, counts_operations=True, around=around)

    def state(self) -> dict[str, Any]:
        """Its counters and the user's decisions, as plain values for a checkpoint."""
        return {
            "reported": self.reporter.state(),
            "held_scale": self.switch.held_scale,
            "floor_accepted": self.guard.floor_accepted,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from the :meth:`state` of another engine."""
        self.reporter.restore(state["reported"])
        self.switch.hold_scale(state["held_scale"])
        self.guard.floor_accepted = state["floor_accepted"]


def _inputs(micro_batches: Sequence[MicroBatch]) -> StepInputs:
    return step_inputs([(micro_batch.samples, micro_batch.batch) for micro_batch in micro_batches])
