"""Reports the steps of one optimizer in somebody else's loop, seen through hooks.

It never waits for the device and changes nothing that the loop computes with. Any fault here takes the hooks
off, is told once, and leaves the loop alone.
"""

import math
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from amptui.device.accelerator import capture_check
from amptui.loops.script.backward_pass import WEIGHTS_WORDS, BackwardPass
from amptui.loops.script.guard import harmless
from amptui.loops.script.listener import Listener
from amptui.loops.script.loop_hooks import HOOKS
from amptui.loops.script.model_inputs import FreshSamples, NonFiniteOrigin
from amptui.loops.script.pass_account import LoopStep, PassAccount
from amptui.loops.script.script_model import LooseParameters, kind_of
from amptui.monitor.monitor import Monitor
from amptui.recipe.float8 import has_float8_layers
from amptui.recipe.lr_schedule import LearningRateReader, LearningRates
from amptui.recipe.precision import ScalerTensors, current_scale, found_inf, growth_tracker
from amptui.recipe.sharding import is_sharded
from amptui.records.own_loop import FLOAT8_LAYERS, GradientsDropped
from amptui.records.run import Phase, PhaseChanged

if TYPE_CHECKING:
    from amptui.recipe.trained import NamedOptimizer

_STEPS_OF_A_RULE = 3
"""A loop that drops gradients before so many steps in a row does so as a rule, as from its first step on."""

_MAX_MEASURED_OPTIMIZERS = 8
"""A loop that makes a new optimizer all the time (for an inner loop) gets no gradient norms after so many."""


class ObservedOptimizer(PassAccount, Monitor):
    """Watches one optimizer's steps; the loop's thread calls it through the hooks.

    ``name``: under which its steps are recorded; empty for the loop's first optimizer, which alone counts
    epochs, memory and what the script logs.
    """

    _in_attempt = False
    """Whether the step is made of functions, which may run again."""
    _usual_passes = 0
    """Backward passes of the step before."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        loop: Listener,
        *,
        samples_per_step: int | None = None,
        name: str = "",
        data_parallel: int = 0,
    ) -> None:
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        Monitor.__init__(self, device, loop.emit, name=name)
        PassAccount.__init__(self, optimizer)
        self._loop = loop
        self.may_capture = device.type != "cpu"
        self.is_capturing = capture_check(device)
        """Whether the stream is being recorded as a graph."""
        self._samples = samples_per_step or 0
        """Of each step; 0 if they are counted."""
        self._origin = NonFiniteOrigin(device, self._readback, emit=loop.emit)
        self._origin_step = 0
        self._logs = False
        self._validation: dict[str, Tensor] | None = None
        self._begun: LoopStep | None = None
        self._trained_samples: int | None = 0
        """Of the batches whose gradients the step uses; None if those of any are not known."""
        self._loop_step.is_timed = not loop.is_listening
        self._fresh_samples = FreshSamples()
        self._data_parallel = 0 if samples_per_step else data_parallel
        self._expected: tuple[str, ...] = "fp32", "bf16", "fp16"
        """What a graph may show if the step ran in that."""
        self._last_dropped_step = -1
        self._dropping_since = 0
        """The first of the newest steps in a row after each of which gradients were dropped."""
        self._optimizers = 0
        self.keeper: NamedOptimizer | None = None
        """What keeps model and optimizer alive, if anything of ours does."""
        self.active = True
        self.follow(optimizer, model)

    def follow(self, optimizer: Optimizer, model: nn.Module) -> None:
        """Watch the steps of ``optimizer`` from now on, which changes parameters of ``model``."""
        self._optimizers += 1
        self._is_new = True
        """Whether no step of this optimizer has ended."""
        is_another = self.takes_requests and self.keeper is not None and self.keeper.model is not model
        if self._optimizers > 1:
            self._end_step()
            self._loop_step.is_timed, self._usual_precision = False, ""
            self._add_samples(self._fresh_samples.take())
            if self.keeper is not None:
                self.keeper.model, self.keeper.optimizer = model, optimizer
        self.model_kind, self.kind = kind_of(model), type(optimizer).__name__
        self.is_sharded = is_sharded(model)
        self._model = weakref.ref(model)
        self._has_float8 = isinstance(model, LooseParameters) and model.has_float8_layers
        self._look_at_layers()
        self._has_frozen_parts = not all(parameter.requires_grad for parameter in model.parameters())
        has_norms = self._optimizers <= _MAX_MEASURED_OPTIMIZERS
        self._follow_norms(model if has_norms else nn.Module(), optimizer)
        # Each rank would measure steps of its own, and the others would wait for it in each of them.
        has_updates = has_norms and self._loop.leads and not self.is_sharded
        self.probes.updates.follow(model, enabled=has_updates)
        self._lrs, self._step_lrs = LearningRateReader(), LearningRates(None)
        if is_another:
            self._has_parts = self.is_sharded
            self.probes.follow(self._trained)

    def _follow_norms(self, model: nn.Module, optimizer: Optimizer) -> None:
        self._readback.flush()  # names of parameters are those of the newest groups
        self.probes.norms.follow(model, optimizer, is_sharded=self.is_sharded)
        self.reporter.gradients = self.probes.norms.probe
        self._measured_groups = len(optimizer.param_groups)

    @property
    def _loop_step(self) -> LoopStep:
        """The step that is being made. Of most there is none before they end: nothing is said of them."""
        if self._begun is None:
            self._begun, self._usual_precision = LoopStep(), ""
        return self._begun

    @property
    def is_dropped(self) -> bool:
        """Whether the script has dropped the optimizer."""
        return self._optimizer() is None or (self.keeper is not None and self.keeper.is_dropped)

    @property
    def unproven_precision(self) -> str:
        """The precision that a switch has chosen and no step has been made in; empty if there is none."""
        return self.switch.precision.name if self.takes_requests and self.switch.on_trial else ""

    @property
    def batches(self) -> int:
        """Batches loaded for the step that is being made."""
        return 0 if self._begun is None else self._begun.batches

    # ------------------------------------------------------------------- what the hooks call

    def work_begins(self) -> None:
        if (step := self.pending) is not None:
            self.pending = None
            self.send(step)

    def forward_begins(self) -> None:
        """See :meth:`PassAccount.forward_begins`."""
        if self.pending is not None and torch.is_grad_enabled():
            self.work_begins()

    def after_pass(self, backward: BackwardPass) -> None:
        """See :meth:`PassAccount.after_pass`; measures the gradients where that is due."""
        if self._begun is not None and self._begun.awaits_update:
            return
        fresh = self._fresh_samples
        samples, fresh.samples, fresh.calls = fresh.samples, fresh.rest, 0
        if self.first_closure is None:
            total = self._trained_samples
            self._trained_samples = None if samples is None or total is None else total + samples
        is_due = self.step < self.probes.until
        if is_due or backward.scaler is not None:
            # Of several batches' gradients only the last look is at their sum. An attempt knows which it is.
            is_due |= self.probes.norms.are_due(self.step, is_scaled=True)
            if is_due and not self._in_attempt:
                self._measure_gradients(backward.scaler is not None)
                if len(self.passes) == self._usual_passes:  # those of accumulated batches are complete
                    self._measure_window()

    def _add_samples(self, samples: int | None) -> None:
        """A backward pass used so many, or an unknown number."""
        total = self._trained_samples
        self._trained_samples = None if samples is None or total is None else total + samples

    def _measure_window(self) -> None:
        """Measure the float16 window of the step's gradients, where that is due."""

    @harmless
    def _measure_gradients(self, is_scaled: bool) -> None:
        """Measure the gradients as the passes so far have left them."""
        loop_step, norms = self._loop_step, self.probes.norms
        if self.step < norms.until or (is_scaled and norms.are_due(self.step, is_scaled=True)):
            optimizer, model = self._optimizer(), self._model()
            groups = 0 if optimizer is None else len(optimizer.param_groups)
            if optimizer is not None and model is not None and groups != self._measured_groups:
                self._follow_norms(model, optimizer)
            loop_step.gradients, loop_step.gradients_scaled = norms.measure(), is_scaled

    def take_dropped(self, passes: BackwardPass) -> None:
        """See :meth:`PassAccount.take_dropped`; tells a bad batch, which the loop leaves out.

        Not passes with a finite loss, as an adversarial one's, nor what the loop does as a rule.
        """
        step = self.step
        self._trained_samples, self._loop_step.gradients, self._look_step = 0, None, step
        if step > self._last_dropped_step + 1:
            self._dropping_since = step
        self._last_dropped_step = step
        is_rule = self._dropping_since == 0 or step - self._dropping_since >= _STEPS_OF_A_RULE
        if is_rule or passes.is_used:  # with what is left over another optimizer has made a step
            return

        def report(row: Sequence[float] | None, _seconds: float | None) -> None:
            loss = None if row is None or not len(row) else float(row[0])
            if loss is None or not math.isfinite(loss):
                now, count = time.time(), passes.count
                self._emit(
                    GradientsDropped(time=now, step=step, loss=loss, passes=count, optimizer=self.name)
                )

        self._readback.push([] if passes.loss is None else [passes.loss], report, timed=False)

    def before_step(self, optimizer: Optimizer, *, has_closure: bool) -> None:
        """See :meth:`PassAccount.before_step`: some optimizers and schedules change their rates within it."""
        if self.pending is not None or (self._begun is not None and self._begun.awaits_update):
            self._end_step()
        groups = optimizer.param_groups
        if len(groups) != 1 or groups[0].get("lr") is not self._step_lrs.first:
            lrs = self._step_lrs = self._lrs.read(optimizer)
            if lrs.on_device:
                self._usual_precision = ""
        # A step before may have raised: what its closure computed is no part of this one.
        self._in_step, self.first_closure = False, None
        if self._current is not None:
            self.after()  # a step in the middle of a backward pass
        if (witness := self.witness) is not None:
            gradient = witness.grad
            is_same = gradient is self._witness_gradient
            if gradient is None or not is_same or gradient._version != self._witness_version:
                self.check_gradients()
        if has_closure:
            self._in_step, self._usual_precision = True, ""
        if self.step < self.probes.updates.until:
            self.probes.updates.copy(optimizer)

    def after_step(self) -> None:
        """See :meth:`PassAccount.after_step`; a step is complete, unless a scaler's update follows it."""
        parts = self.passes
        if len(parts) == 1 and (only := parts[0]).is_plain and only.precision == self._usual_precision:
            self._finish_usual_step(only)
            return
        begun, passes = self._begun, self.end_passes()
        if self.step < self.probes.until:
            self.probes.updates.measure(self.step + 1, None)
        if begun is None or begun.found_inf is None:
            self._finish_step(passes)
        else:  # whatever unscaling found
            begun.found_inf, begun.awaits_update = torch.zeros_like(begun.found_inf), True
            begun.passes = passes

    def other_stepped(self) -> None:
        """Another optimizer of the run has made a step."""

    def after_unscale(self, scaler: GradScaler, optimizer: Optimizer) -> None:
        """Clipping may follow, which makes NaN of Inf."""
        if self._loop_step.awaits_update:
            self._end_step()
        overflow = self._loop_step.found_inf = found_inf(scaler, optimizer)
        self._loop_step.scaler = scaler
        self.after_known_edit()
        self._name_overflow(overflow)

    def after_scaled_step(self, scaler: GradScaler, optimizer: Optimizer) -> None:
        """The scaler has looked for overflows; its update follows."""
        loop_step = self._loop_step
        loop_step.scaler, loop_step.passes = scaler, self.end_passes(is_scaled=True)
        loop_step.awaits_update = True
        if loop_step.found_inf is None:
            loop_step.found_inf = found_inf(scaler, optimizer)
            self._name_overflow(loop_step.found_inf)
        if self.step < self.probes.until:
            self.probes.updates.measure(self.step + 1, loop_step.found_inf)

    def before_update(self, scaler: GradScaler) -> None:
        """Keep the scale that this step ran with."""
        loop_step = self._loop_step
        if loop_step.scaler is scaler and loop_step.awaits_update and loop_step.found_inf is not None:
            loop_step.scale_before = current_scale(scaler).clone()
            if len(scaler._per_optimizer_states) > 1:  # the update adds up all of theirs, in place
                loop_step.found_inf = loop_step.found_inf.clone()

    def after_update(self, scaler: GradScaler) -> None:
        """A step with a scaler is complete."""
        loop_step = self._loop_step
        if loop_step.scaler is not scaler:
            return
        if not loop_step.awaits_update:  # no step was made of what it has unscaled
            loop_step.scaler = loop_step.found_inf = None
        elif loop_step.scale_before is not None:
            self.probes.norms.scaled_steps += 1
            self._finish_scaled_step(loop_step.scale_before)

    def _end_step(self) -> None:
        """Report a step that still waits: for what is logged with it, or for an update that never came."""
        self.work_begins()
        if self._loop_step.awaits_update and (scaler := self._loop_step.scaler) is not None:
            self._finish_scaled_step(current_scale(scaler))
            self.work_begins()

    def _finish_scaled_step(self, scale_before: Tensor) -> None:
        loop_step, scaler, overflow = self._loop_step, self._loop_step.scaler, self._loop_step.found_inf
        assert scaler is not None, "a scaled step has one"
        assert overflow is not None, "it has looked for overflows"
        loop_step.awaits_update, scale = False, current_scale(scaler)
        loop_step.scale = ScalerTensors(scale_before, overflow, scale, growth_tracker(scaler))
        loop_step.scaler = loop_step.found_inf = loop_step.scale_before = None
        passes = loop_step.passes
        del loop_step.passes  # which hold the scaler; sent, a step holds nothing of the loop
        self._finish_step(passes)

    def take_batch(self, load_start: float, seconds: float, samples: int) -> None:
        """A batch for the next step took ``seconds`` to load, from ``load_start``, by ``perf_counter``."""
        self.work_begins()
        loop_step = self._loop_step
        if loop_step.load_start is None:
            loop_step.load_start = load_start
        loop_step.data_seconds += seconds
        loop_step.samples += samples
        loop_step.batches += 1
        # Another optimizer's steps may have used the batches before this one.
        self._fresh_samples.load(samples, adds=self._loop.is_alone)

    @harmless
    def log(self, loss: Tensor | None, values: Mapping[str, Tensor]) -> None:
        """Add numbers, each a tensor without dimensions, to the step that is being made.

        Until the next one begins that is the last. Within a validation they are its results.
        """
        if self._validation is not None:
            self._validation.update(values if loss is None else {"loss": loss, **values})
            return
        self._logs, self._usual_precision, loop_step = True, "", self.pending or self._loop_step
        if loss is not None:
            loop_step.loss, loop_step.form, loop_step.logs_loss = loss, "", True
        if values:
            loop_step.parts = {**(loop_step.parts or {}), **values}

    @harmless
    def begin_validation(self) -> None:
        """What is logged from here on belongs to a validation."""
        self.work_begins()
        self._validation = {}
        self._emit(PhaseChanged(time=time.time(), phase="validating", detail="validating"))

    @harmless
    def finish_validation(self) -> None:
        """Report it after the steps before, and leave its time out of the next step's."""
        values, self._validation = self._validation or {}, None
        if values:
            report = partial(self.reporter.validated_by_script, self.step, self.epoch, tuple(values))
            self.push([*values.values()], report)
        phase: Phase = "training" if self._loop.has_begun else "first step"
        self._emit(PhaseChanged(time=time.time(), phase=phase))
        self.begin_interval()

    def finish_epoch(self) -> None:
        """Report the epoch once its last steps are delivered."""
        self.work_begins()
        report = partial(self.reporter.epoch, step=self.step, epoch=self.epoch, validation=None)
        self.push([], lambda _row, _seconds: report())

    def close(self, *, waits: bool) -> None:
        """Deliver what is left, or without ``waits`` what the device has finished."""
        self._fresh_samples.close()
        self.probes.updates.forget()
        if self.active:
            self._end_step()
            if not HOOKS.trains_elsewhere:
                self._measure_origin(self._reported_precision, is_last=True)
            if self.passes:
                self.take_dropped(self.abandoned())
            if waits:
                self.flush()
            else:
                self.drain()
        self.active = False

    def stop(self) -> None:
        """Observe nothing more, after a fault."""
        self.active = False
        self.probes.updates.forget()
        with suppress(Exception):
            self.drain()

    def give_up(self, error: Exception) -> None:
        """A fault of ours: observe nothing more, of any optimizer."""
        self._loop.give_up(error)

    @property
    def must_not_look(self) -> bool:
        """Whether anything done now would become a part of a CUDA graph."""
        return self.may_capture and self.is_capturing()

    def _name_overflow(self, overflow: Tensor) -> None:
        """On a CPU a skip is known at once, while its gradients are there to name."""
        loop_step = self._loop_step
        if not self._reads_later and loop_step.gradients is None and overflow.item():
            loop_step.gradients, loop_step.gradients_scaled = self.probes.norms.measure(), False

    def _finish_step(self, passes: BackwardPass) -> None:
        """Count the step and send its numbers: if the loop logs more of them, when the next one begins."""
        loop_step, count = self._loop_step, passes.count
        self.step += 1
        loop_step.lrs, self._usual_passes = self._step_lrs, count
        if self._layer_changes != self._loop.layer_changes:
            self._look_at_layers()
        if not self._is_steady:
            self._count_warm_up(loop_step)
        is_plain = passes.precision in self._expected and not (passes.may_be_lower or self._has_float8)
        is_known = is_plain and not self.weights_word
        loop_step.precision = passes.precision if is_known else self._precision(passes)
        is_first = not self._loop.has_begun
        if self._is_new:
            self._finish_first_step()
        if not loop_step.logs_loss:
            loop_step.loss, loop_step.form = passes.loss, passes.form
        loop_step.micro_batches = count or 1
        if passes.is_edited or (loop_step.gradients_scaled and loop_step.scale is None):
            loop_step.gradients = None  # measured before the loop divided, or added to, the gradients itself
        samples = self._trained_samples or 0 if count else loop_step.samples
        loop_step.samples = self._samples or samples
        self._begun, self._trained_samples = None, 0
        self._ended = time.perf_counter()
        if self._logs or (is_first and not self.name):
            self.pending = loop_step
        else:
            self.send(loop_step)
            is_steady = self._is_steady and self.step >= self.probes.until and not self._step_lrs.on_device
            if is_steady and is_known and passes.is_plain:
                self._usual_precision = passes.precision
        if (loss := passes.loss) is not None and not (self._reads_later or math.isfinite(loss)):
            self._measure_origin(loop_step.precision, at_once=True)
        self._fresh_samples.begins_step, self._fresh_samples.may_feed_itself = True, False
        if self.step >= self._look_step or self._ended >= self._look_due:
            self._look()

    def _finish_usual_step(self, backward: BackwardPass) -> None:
        """As :meth:`_finish_step`: what can differ here from the step before are its numbers."""
        step = self.step = self.step + 1
        loop_step, loss, ended = LoopStep(), backward.loss, time.perf_counter()
        assert loss is not None, "a plain pass has one"
        loop_step.number, loop_step.epoch, loop_step.ended = step, self.epoch, ended
        loop_step.precision, loop_step.lrs = backward.precision, self._step_lrs
        loop_step.samples = self._samples or self._trained_samples or 0
        self._ended, self._trained_samples = ended, 0
        backward.is_used, self.passes, self.witness, self._witness_gradient = True, [], None, None
        self._readback.push((loss,), loop_step, timed=True)
        if not (self._reads_later or math.isfinite(loss)):
            self._measure_origin(backward.precision, at_once=True)
        self._fresh_samples.begins_step, self._fresh_samples.may_feed_itself = True, False
        if step >= self._look_step or ended >= self._look_due:
            self._look()

    def _count_warm_up(self, loop_step: LoopStep) -> None:
        """See whether the step is one of the warm-up."""
        loop_step.warming_up = warms_up = self._warm_up.begin_step()
        self._is_steady = not warms_up

    def _finish_first_step(self) -> None:
        """The first step of the optimizer ends: begin the run, if it is the first of all."""
        loop_step, self._is_new = self._loop_step, False
        if not self._loop.has_begun:
            self._loop.begin_run(loop_step.precision)
        if self._data_parallel and (model := self._model()) is not None and not self._fresh_samples.is_told:
            # Not before: the script may have its model compiled until now.
            self._fresh_samples.count_inputs(model, self._data_parallel)
            self._add_samples(None)
        self._data_parallel = 0
        if not loop_step.is_timed and self._trained_samples is not None:
            # It was begun before it was seen, and so were its batches.
            self._add_samples(self._fresh_samples.take())

    def _precision(self, passes: BackwardPass) -> str:
        precision = self.weights_word or passes.precision or "unknown"
        if passes.may_be_lower and precision == "fp32" and self._has_frozen_parts:
            precision = "unknown"  # what needs no gradients leaves no graph
        if not self._has_float8:
            return precision
        # A model that watch() was not given has only float8 layers of the script's own.
        if not self._loop.float8_precision or self.keeper is None:
            return FLOAT8_LAYERS
        if precision == "bf16":
            return self._loop.float8_precision
        # Out of autocast the layers are plain. With weights of another dtype the graph does not show it.
        return FLOAT8_LAYERS if precision in WEIGHTS_WORDS.values() else precision

    def _look_at_layers(self) -> None:
        """See whether layers of the model multiply in float8: compiled graphs do not show it."""
        self._layer_changes = self._loop.layer_changes
        model = self._model()
        if model is not None and not isinstance(model, LooseParameters):
            self._has_float8 = has_float8_layers(model)

    def _look(self) -> None:
        """Deliver the numbers that have arrived."""
        self._usual_precision = ""
        self.look()
        if self.reporter.unexplained_step > self._origin_step:
            self._origin_step = self.reporter.unexplained_step
            self._measure_origin(self._reported_precision)
        self.plan()

    def _measure_origin(self, precision: str, *, at_once: bool = False, is_last: bool = False) -> None:
        """Once something is not finite, and at the end; ``at_once``: the host knows while the batch is there.

        A monitor that traces modules only looks at the batch.
        """
        traces, fresh = self.keeper is not None, self._fresh_samples
        inputs = fresh.newest_batch() if at_once else fresh.newest_inputs()
        if at_once and not self._loop.is_alone:
            inputs = []  # of a model that another one feeds
        if not (self.name or self.is_sharded) and (inputs if at_once else not traces):
            model = None if traces else self._model()
            self._origin.measure(model, inputs, self.step, precision, is_last=is_last)
