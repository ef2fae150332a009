"""How the training loop makes an optimizer step: in the current precision, without ever waiting.

The passes call :meth:`TrainMonitor.autocast` and :meth:`TrainMonitor.backward`, as a handwritten loop does.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from amptui.checkpoint.file import Checkpoint
from amptui.checkpoint.writer import CheckpointWriter
from amptui.loops.compilation import CompiledIn, CompileWatch
from amptui.loops.setup import Prepared
from amptui.loops.strategy import MicroBatch
from amptui.monitor.divergence_guard import DivergenceGuard
from amptui.monitor.monitor import Monitor
from amptui.monitor.step_rows import Step
from amptui.probes.flop_counter import StepInputs, step_inputs
from amptui.probes.step_timer import StepTimer
from amptui.recipe.experiment import Experiment
from amptui.recipe.precision import Precision
from amptui.recipe.sharding import is_sharded
from amptui.recipe.trained import checked_loss
from amptui.records.control import Control
from amptui.records.run import Record

NORMS, WINDOW, WEIGHTS = 1, 2, 4
"""What all ranks measure in the same step where each has a part of it, as bits of one number: gradient norms,
the float16 window, and how many weights are lost."""

_NO_PARTS: Mapping[str, Tensor] = {}


class TrainMonitor(Monitor):
    """The monitor of a loop of ours, which makes its steps.

    The loop calls :meth:`make_step` with the passes of each step, which call :meth:`autocast` and
    :meth:`backward`. If :meth:`look_is_due`, it first looks, and calls :meth:`plan` last, before it loads the
    batch. ``interactive``: whether to ask the user if training diverges; ``writer`` knows the last good
    checkpoint, ``start`` is the one that a resumed run continues from.
    """

    in_step = in_after_step = False
    """Whether a step is running, to say what an exception interrupted, and in it the experiment's own end."""
    validated_in = ""
    """The precision of the newest validation."""
    _is_observed = False
    """Whether the step that is being made is timed and measured."""
    _agreed = 0
    """What all ranks measure in the next step."""

    def __init__(
        self,
        prepared: Prepared,
        control: Control,
        emit: Callable[[Record], object],
        writer: CheckpointWriter,
        *,
        interactive: bool,
        start: Checkpoint | None,
        look_interval_seconds: float,
    ) -> None:
        strategy = prepared.strategy
        self._gradients = strategy.gradients(prepared.model)
        super().__init__(prepared.device, emit, gradients=self._gradients, probes=prepared.probes)
        self.look_interval_seconds = look_interval_seconds
        self._prepared = prepared
        self._optimizer, self._lr_schedule = prepared.optimizer, prepared.lr_schedule
        self._clip_norm = prepared.request.clip_norm
        own_after_step = type(prepared.experiment).after_step is not Experiment.after_step
        self._after_step = prepared.experiment.after_step if own_after_step else None
        self._together = strategy if strategy.kind else None
        """How several processes make a step; a single one calls nothing of it."""
        self.step = start.step if start else 0
        self.compilations = CompileWatch(self._compiled_in, emit, strategy.tell_compiling)
        self.take_requests(prepared, control)
        self._timeline = StepTimer(prepared.device, emit)
        has_weights = strategy.leads and not is_sharded(prepared.model)
        self.probes.updates.follow(prepared.model, enabled=prepared.probes and has_weights)
        self._ranks = control.ranks if self._gradients.together else None
        """Agrees with the other ranks on the steps to measure, where each has a part of the gradients."""
        self._current = Step()
        """The step that is being made: its loss is that of the passes so far, the mean over their samples."""
        self._result: object = None
        """Kept until the next forward pass, as a handwritten loop keeps it: freeing the graph first made a
        forward pass of 68 layers 5% slower on a CPU."""
        self._copied: set[nn.Parameter] = set()
        """Those whose gradients are no longer in the memory of a CUDA graph."""
        self.divergence = DivergenceGuard(
            self.reporter, control, self._readback, writer, interactive=interactive
        )
        if self._ranks is not None:
            self.divergence.ask_for_count = partial(self._ranks.want_probes, WEIGHTS)
        if strategy.leads:  # of several ranks rank 0 decides if training can go on
            self.guard = self.divergence
        if not strategy.needs_others:
            self.switch.can_retry, self.switch.agree = True, strategy.agree
        if start is not None:
            self.reporter.restore(start.loop["reported"])
            self.switch.hold_scale(start.loop["held_scale"])
            self.divergence.floor_accepted = start.loop["floor_accepted"]

    # ------------------------------------------------------------- what the passes of a step call

    def autocast(self) -> AbstractContextManager[object]:
        """The context of a forward pass and its loss in the current precision."""
        return self.switch.precision.forward_context

    def backward(self, result: object, weigh: Callable[[Tensor], Tensor] | None = None) -> None:
        """Add the gradients of the loss that ``result``, from :meth:`amptui.Experiment.loss`, is or holds.

        ``weigh``: what the loss counts for, where a step has several batches. Raises ExperimentError for a
        loss that cannot be trained on.
        """
        self._result, precision = result, self.switch.precision
        if type(result) is Tensor and result.dim() == 0 and result.requires_grad:
            loss, parts = result, _NO_PARTS  # the usual case without a call
        else:
            loss, parts = checked_loss(self._prepared.experiment, result)
        if self._is_observed:
            self._timeline.mark("forward")
        if weigh is None:
            self._current.loss, self._current.parts = loss, parts
            precision.backward(loss)
        else:
            loss = weigh(loss)
            precision.backward(loss)
            self._accumulate(loss.detach(), {name: weigh(part).detach() for name, part in parts.items()})
        if self._is_observed:
            self._timeline.mark("backward")

    def _accumulate(self, loss: Tensor, parts: Mapping[str, Tensor]) -> None:
        """Add the loss of one of several batches, and keep its gradients."""
        before, sums = self._current.loss, self._current.parts or _NO_PARTS
        if self.switch.precision.replays_graphs:
            if before is None:
                self._copied = set()
            # The next replay overwrites the memory of CUDA graphs. autograd takes the output of a graph
            # for a parameter's first gradient, and adds later ones to the copy in place
            # (torch/csrc/autograd/functions/accumulate_grad.h). Tensors that outlive a replay have to be
            # cloned (https://docs.pytorch.org/docs/stable/torch.compiler_cudagraph_trees.html).
            for parameter in self._gradients.parameters:
                if parameter.grad is not None and parameter not in self._copied:
                    parameter.grad = parameter.grad.clone()
                    self._copied.add(parameter)
        self._current.loss = loss if before is None else before + loss
        more = {name: sums[name] + part if name in sums else part for name, part in parts.items()}
        self._current.parts = {**sums, **more}

    # ------------------------------------------------------------------------------ one step

    def make_step(
        self,
        passes: Callable[[], object],
        micro_batches: Sequence[MicroBatch],
        *,
        epoch: int,
        load_start: float,
        data_seconds: float,
    ) -> None:
        """Run the ``passes``, clip, update: enqueues the work, pushes its numbers and never waits.

        ``passes`` are those of ``micro_batches``, forward and backward, after the gradients were zeroed; they
        may be called again if the first step in a precision fails. ``load_start`` is when loading the batches
        began, by ``perf_counter``; it took ``data_seconds``. Exceptions of the model pass through.
        """
        self.step += 1
        self.epoch, self.in_step = epoch, True
        switch = self.switch
        warming_up = switch.begin_step(self.step)
        inputs = _inputs(micro_batches) if warming_up else None
        counts_flops = inputs is not None and self.probes.flops.is_due(switch.precision, inputs)
        if self.step > self.probes.until and not counts_flops:
            self._current = Step()
            if self._together is None:
                passes()
            else:
                self._together.run_passes(passes, None)
            self._update(switch.precision)
        else:
            self._make_observed(passes, micro_batches, inputs, data_seconds)
        if self._after_step is not None:
            self.in_after_step = True
            with torch.no_grad():
                self._after_step(self._prepared.model)
            self.in_after_step = False
        current = self._current
        current.micro_batches, current.samples = len(micro_batches), micro_batches[0].samples
        if current.micro_batches > 1:
            current.samples = sum([micro_batch.samples for micro_batch in micro_batches])
        current.load_start, current.data_seconds, self._ended = load_start, data_seconds, time.perf_counter()
        current.warming_up = warming_up or self.compilations.pending
        row = self.send(current)
        if row is not None and not math.isfinite(row[0]):
            self.look_at_once()  # on a CPU the loss is known before the next step, while its batch is there
            batches = [micro_batch.batch for micro_batch in micro_batches]
            self.probes.explain(batches, self.step, current.precision)
        self.in_step = False

    def _make_observed(
        self,
        passes: Callable[[], object],
        micro_batches: Sequence[MicroBatch],
        inputs: StepInputs | None,
        data_seconds: float,
    ) -> None:
        """The same step with what is due: timing marks, probes, gradient norms, a precision on trial.

        ``inputs`` are those of a warm-up step; None for other steps.
        """
        timeline, switch, probes, agreed = self._timeline, self.switch, self.probes, self._agreed
        self._agreed = 0
        if inputs is None:
            probes.flops.check(self.step, _inputs(micro_batches))
        timeline.begin(self.step, switch.precision.name, inputs is not None, data_seconds)
        timeline.mark("input")
        measures_norms = self._norms_are_due(self.step - 1) if self._ranks is None else bool(agreed & NORMS)
        window = None if self._ranks is None else bool(agreed & WINDOW)
        assumed_scale, strategy = self.loss_scale(), self._prepared.strategy

        def make(precision: Precision) -> None:
            timeline.begin_attempt()
            self._current = Step()
            try:
                with probes.around_step(self.step, precision, inputs):
                    strategy.run_passes(passes, self.step)
            except BaseException:
                # Its graph takes the memory that another attempt needs.
                self._result, self._current = None, Step()
                raise
            self._current.gradients = probes.norms.measure() if measures_norms else None
            probes.after_backward(self.step, precision, assumed_scale=assumed_scale, window=window)
            timeline.mark(None)
            self._update(precision)

        strategy.on_trial = switch.on_trial and switch.can_retry
        self._is_observed = True
        try:
            switch.attempt(self.step, f"in step {self.step}", make)
        finally:
            self._is_observed = False
        current = self._current
        probes.norms.scaled_steps += current.scale is not None
        self.break_down_memory(current.precision)

    def _update(self, precision: Precision) -> None:
        """Clip, and change the weights unless the scaler skips the step."""
        current, updates, schedule = self._current, self.probes.updates, self._lr_schedule
        current.precision, current.gradients_scaled = precision.name, precision.scales
        if self._clip_norm is not None:
            self._clip(precision, self._clip_norm)
        if self._is_observed:
            if current.clip_norm is not None:
                self._timeline.mark("clip")
            if self.step <= updates.until:
                updates.copy(self._optimizer)
                self._timeline.mark(None)
        if schedule is not None:
            schedule.before_update(scaled=precision.scales)
        current.lrs, current.scale = self._lrs.read(self._optimizer), precision.step(self._optimizer)
        if schedule is not None:
            schedule.after_update(current.scale)  # it advances if the scaler did not skip the step
        found_inf = None if current.scale is None else current.scale.found_inf
        if self._is_observed:
            self._timeline.mark("optimizer")
            updates.measure(self.step, found_inf)
        if found_inf is not None and current.gradients is None and not self._reads_later and found_inf.item():
            current.gradients = self.probes.norms.measure()  # on a CPU a skip is known before they are gone
        assert isinstance(current.loss, Tensor), "the passes have called backward()"
        if self._together is not None:
            current.loss = self._together.mean_loss(current.loss)

    def _clip(self, precision: Precision, clip_norm: float) -> None:
        """Clip as ``torch.nn.utils.clip_grad_norm_`` does, bit for bit.

        On a CPU, where the norm is known, gradients are measured before an Inf norm makes all of them NaN.
        """
        precision.unscale(self._optimizer)
        norm = self._current.clip_norm = self._gradients.total_norm()
        if self._current.gradients is None:
            self._current.gradients_scaled = False
            if not self._reads_later and not math.isfinite(norm.item()):
                self._current.gradients = self.probes.norms.measure()
        nn.utils.clip_grads_with_norm_(self._gradients.parameters, clip_norm, norm)

    def _norms_are_due(self, step: int) -> bool:
        """Whether to measure all gradients in the step that follows ``step``."""
        return self.probes.norms.are_due(step, is_scaled=self.switch.precision.scales)

    # ---------------------------------------------------------------------------- the look

    def look_is_due(self) -> bool:
        """Whether to look before the next step: it is time, or a request came in."""
        if self._together is not None:
            self.control.at_boundary()  # all ranks come here equally often
        return self.control.attention or self.step >= self._look_step or time.perf_counter() >= self._look_due

    def look_at_once(self) -> None:
        """Look at the next step boundary."""
        self._look_step = self.step

    def check_last(self) -> None:
        """Check the weights after the last step. Raises ExperimentError if they are lost."""
        if self._ranks is not None:
            self.divergence.count_weights()
        if self.guard is not None:
            self.guard.check_last()

    def plan(self, *, look_after: Iterable[int | None] = ()) -> None:
        """Decide which of the next steps to observe, and when to look again.

        At the latest after a step that is a multiple of a number in ``look_after``.
        """
        self._timeline.drain()
        super().plan()
        step = self.step
        for every in look_after:
            if every is not None:
                self._look_step = min(self._look_step, step + every - step % every)
        norms_are_due = self._norms_are_due(step)
        if self._ranks is not None:  # all ranks measure in the step they agree on
            self._ranks.want_probes(NORMS * norms_are_due | WINDOW * self.probes.window.is_due())
            agreed = self._ranks.take_probes()
            if agreed & WEIGHTS:
                self.divergence.count_weights()
            self._agreed |= agreed & ~WEIGHTS
        closer = step == 0 or self.switch.needs_observation(step) or self._timeline.armed or self._agreed > 0
        self.probes.until = max(step + closer, self.probes.until, self.probes.norms.until)

    # --------------------------------------------------------------------- around the steps

    def flush(self) -> None:
        """Deliver all numbers; waits for the device."""
        super().flush()
        self._timeline.flush()

    def state(self) -> dict[str, Any]:
        """Its counters and the user's decisions, as plain values for a checkpoint."""
        return {
            "reported": self.reporter.state(),
            "held_scale": self.switch.held_scale,
            "floor_accepted": self.divergence.floor_accepted,
        }

    def _compiled_in(self) -> CompiledIn:
        training = self._prepared.model.training
        precision = self.switch.precision.name if training else self.validated_in
        return CompiledIn(self.step, precision, training)


def _inputs(micro_batches: Sequence[MicroBatch]) -> StepInputs:
    return step_inputs([(micro_batch.samples, micro_batch.batch) for micro_batch in micro_batches])
