"""The first optimizer of a script whose precision amptui switches: requests are handled after its steps.

Its steps are seen as those of an observed optimizer. Between two of them it switches precisions, pauses,
compares, traces and saves, in the thread that trains.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from amptui.base.script_signals import is_from_signal_handler
from amptui.base.text import one_line
from amptui.device.readback import LOOK_INTERVAL_SECONDS
from amptui.loops.script.backward_pass import BackwardPass
from amptui.loops.script.computed_precision import WEIGHTS_WORDS
from amptui.loops.script.guard import harmless
from amptui.loops.script.loop_hooks import HOOKS
from amptui.loops.script.observed_loop import ObservedLoop
from amptui.loops.script.observed_optimizer import ObservedOptimizer
from amptui.loops.script.script import NO_SAVE, WatchedScript
from amptui.loops.script.step_functions import ComputeLoss, CountedSteps, Pass
from amptui.monitor.step_boundary import StepBoundary
from amptui.recipe.precision import Precision, ScalerTensors
from amptui.records.control import CheckpointRequest, Control, XRayRequest
from amptui.records.own_loop import FLOAT8_LAYERS
from amptui.records.run import FP8_PRECISIONS, LOW_PRECISIONS, Note, Severity


def _hint(precision: str, computed_precision: str, weights_word: str) -> str:
    """What to do about steps that were not computed in the chosen precision."""
    if computed_precision in WEIGHTS_WORDS.values() or (weights_word and precision in FP8_PRECISIONS):
        return "that is what the weights are"
    if computed_precision == FLOAT8_LAYERS and precision not in FP8_PRECISIONS:
        return "the script has made them itself"
    if computed_precision == "bf16" and precision in FP8_PRECISIONS:
        return "the model that is trained now has no float8 layers"
    if precision in LOW_PRECISIONS:
        return "run each forward pass in a new `with monitor.autocast():`"
    return "leave autocast to amptui: use `with monitor.autocast():` for each forward pass"


def _unseen(take: Callable[[], str]) -> str:
    """Call it; its passes are none of the script's."""
    with HOOKS.suspended():
        return take()


class SwitchedOptimizer(ObservedOptimizer):
    """Watches one optimizer's steps, and switches their precision as ``control`` is asked."""

    def __init__(
        self,
        script: WatchedScript,
        loop: ObservedLoop,
        *,
        samples_per_step: int | None,
        data_parallel: int,
        control: Control,
    ) -> None:
        super().__init__(
            script.model,
            script.optimizer,
            loop,
            samples_per_step=samples_per_step,
            data_parallel=data_parallel,
        )
        self._script = script
        self.keeper = script.first
        self.control = control
        self._boundary = StepBoundary(self, script, control, self._reporter, self._norms, self._emit)
        self._switch = self._boundary.switch
        self._switch.can_retry = False
        self.operation_counts = CountedSteps(script, self._boundary.probes, self._note)
        self._observation = ExitStack()
        self._usual_passes = 0
        self._probes_until = 1
        """Up to which step something is to be measured in forward and backward passes."""
        self._ended_step = self._traced_step = self.step
        self._in_attempt = self._in_probes = self._is_deferred = False
        self._switched_within = False
        """Whether the step that is being made has passes from before the newest switch."""
        self._noted_precision = ""
        self._follow_switch()

    def follow(self, optimizer: Optimizer, model: nn.Module) -> None:
        """See :meth:`ObservedOptimizer.follow`; another model is probed from here on."""
        is_another = self.keeper is not None and self.keeper.model is not model
        super().follow(optimizer, model)
        if is_another:
            self._boundary.follow_model()
            self.operation_counts = CountedSteps(self._script, self._boundary.probes, self._note)

    @property
    def unproven_precision(self) -> str:
        return self._switch.precision.name if self._switch.on_trial else ""

    # --------------------------------------------------------------- what the boundary asks for

    def drain(self) -> None:
        """Deliver the steps that have arrived."""
        self._readback.drain()

    def flush(self) -> None:
        """Deliver all numbers; waits for the device."""
        self._readback.flush()
        self._boundary.probes.flush()
        self.updates.flush()

    # ------------------------------------------------------------------- what the hooks call

    def forward_begins(self) -> None:
        """A forward pass begins, unless it is an evaluation's."""
        if not torch.is_grad_enabled():
            return
        if self.pending is not None:
            self.work_begins()
        # The script may copy or save its model between two steps: there are no hooks in it then.
        is_observed = self.step < self._probes_until and not self._in_attempt
        if is_observed and self._traced_step != self.step + 1 and self._boundary.probes.traces:
            self._enter_probes()

    def after_pass(self, backward: BackwardPass) -> None:
        """See :meth:`ObservedOptimizer.after_pass`; measures the float16 window where it is due."""
        if (counter := self.operation_counts.counter) is not None:
            counter.paused = True
        super().after_pass(backward)
        # Those of accumulated batches are complete after as many backward passes as in the last step.
        if self.step < self._probes_until and len(self.account.passes) == self._usual_passes:
            step, precision, boundary = self.step + 1, self._switch.precision, self._boundary
            boundary.probes.after_backward(step, precision, assumed_scale=boundary.loss_scale())
        if counter is not None:
            counter.paused = False

    def after_scaled_step(self, scaler: GradScaler, optimizer: Optimizer) -> None:
        """See :meth:`ObservedOptimizer.after_scaled_step`; a trace shows the scale before its update."""
        if self._in_probes:
            self._leave_probes()
        super().after_scaled_step(scaler, optimizer)

    # -------------------------------------------------------------------------- whole steps

    def attempt(self, passes: Sequence[ComputeLoss], run: Callable[[], Tensor]) -> Tensor:
        """Call ``run``, which makes a whole step of ``passes``; if a new precision fails, in the previous.

        Returns what ``run`` does. Exceptions of the script's functions pass through.
        """
        self._begin_attempt([Pass(compute_loss) for compute_loss in passes])
        if not self.active:
            return run()
        step = self.step + 1
        errors: list[Exception] = []
        losses: list[Tensor] = []

        def make(_precision: Precision) -> None:
            errors.clear()  # their tracebacks keep the tensors of the attempt before
            self._follow_switch()
            self._begin_run()
            try:
                losses.append(run())
            except Exception as error:
                errors.append(error)
                raise

        self._in_attempt = True
        try:
            attempt = (
                partial(self.operation_counts.attempt, make)
                if self.operation_counts.inputs is not None
                else make
            )
            self._switch.attempt(step, f"in step {step}", attempt)
        except Exception as error:
            if any(error is script_error for script_error in errors) or is_from_signal_handler(error):
                raise
            self.give_up(error)
            if not losses:
                if errors:
                    raise errors[-1] from None
                return run()
        finally:
            self._in_attempt = False
        self._look_if_due()
        return losses[-1]

    @harmless
    def _begin_attempt(self, passes: Sequence[Pass]) -> None:
        self._switch.can_retry = self.control.can_retry
        self._take_xray(passes)
        warms_up = self._switch.begin_step()
        if warms_up or self.operation_counts.wants_shapes:
            samples, batches = self._samples or self._loop_step.samples, self._loop_step.batches
            self.operation_counts.plan(self.step + 1, self._switch, samples, batches, warms_up=warms_up)

    @harmless
    def _begin_run(self) -> None:
        self._forget_step_again()

    @contextmanager
    def around_passes(self) -> Iterator[None]:
        """The context of a step's forward and backward passes in :meth:`attempt`: for a trace."""
        self._enter_probes()
        try:
            yield
        except BaseException as error:
            with suppress(BaseException):  # it passes the error on
                self._observation.__exit__(type(error), error, error.__traceback__)
            raise
        self._leave_probes()

    @harmless
    def _enter_probes(self) -> None:
        self._traced_step = self.step + 1
        context = self._boundary.probes.around_step(self.step + 1, self._switch.precision, None)
        self._in_probes = True
        self._observation.enter_context(context)
        if self.operation_counts.inputs is not None:
            context = self.operation_counts.around_passes(self.step + 1, self._switch.precision)
            self._observation.enter_context(context)

    @harmless
    def _leave_probes(self) -> None:
        self._in_probes = False
        self._observation.close()

    def _forget_step_again(self) -> None:
        """Forget the parts of an attempt that failed; keep when its batches were loaded."""
        self.work_begins()
        self._loop_step = self._loop_step.again()
        if self._fresh_samples.counts_inputs:
            self._fresh_samples.take()

    def _take_xray(self, passes: Sequence[Pass]) -> None:
        """Compare the step's passes in FP32 and AMP if that was asked for."""
        if self.control.newest(XRayRequest) is None:
            return
        self.work_begins()
        self._boundary.xray(passes, counts_operations=False, around=_unseen)
        self._forget_step_again()

    # ------------------------------------------------------------------------ after a step

    @harmless
    def end_step(self) -> None:
        """Handle the requests, if a step has ended since the last call: what the loop saves now is whole."""
        self.work_begins()
        if self.step != self._ended_step:
            self._ended_step = self.step
            self._look_if_due()

    def _finish_step(self, scaler: ScalerTensors | None) -> None:
        self._usual_passes = self._loop_step.passes.count
        if self.step < self._probes_until:  # a look came before: nothing changes without one
            if self._in_probes:
                self._leave_probes()
            if self._switch.on_trial:
                self._switch.confirm()
        super()._finish_step(scaler)
        self._switched_within = False
        if self.control.attention:
            self._look()

    def _precision(self) -> str:
        """What the step was computed in: the chosen precision, unless the loop did something else."""
        precision, computed_precision = self._switch.precision.name, super()._precision()
        is_amp = self._loop_step.passes.precisions == {precision, "fp32"} and not self._switched_within
        if computed_precision == "mixed" and is_amp:
            return precision  # what the script computes in float32 beside it is part of AMP
        if computed_precision == "fp32" and precision in ("ieee", "tf32"):
            return precision
        if computed_precision != precision:
            self._check_precision(computed_precision)
        return computed_precision

    def _begin_step(self) -> bool:
        warming_up = not self._switch.settled if self._in_attempt else self._switch.begin_step()
        if self.step <= self._probes_until:
            self._boundary.break_down_memory(self._switch.precision.name)
        return warming_up

    def _look(self) -> None:
        """Unless the step is over only later: then :meth:`_look_if_due`."""
        if not (self._in_attempt or self._script.ends_steps):
            self._look_now()

    def _look_if_due(self) -> None:
        if self.step >= self._look_step or self._ended >= self._look_due or self.control.attention:
            self._look_now()
            self.operation_counts.wants_shapes = True

    @harmless
    def _look_now(self) -> None:
        """Deliver the numbers that have arrived, and handle the requests."""
        boundary = self._boundary
        linears = self._script.amp.linears
        if linears is not None and linears.follow(self._script.models):
            self._loop.layer_changes += 1
            self._follow_switch()
        boundary.look()
        boundary.pause_if_wanted(self._handle_requests)
        self._handle_requests()
        self._look_due = time.perf_counter() + LOOK_INTERVAL_SECONDS
        self._look_step = self.step + boundary.plan_look()
        self._probes_until = self.step + max(1, boundary.probes.steps_due)
        self.updates.look(self.step)

    def _handle_requests(self) -> None:
        control = self.control
        if save_request := control.take(CheckpointRequest):
            if self._script.save is None:
                control.refuse(save_request, "unavailable", NO_SAVE)
            else:
                control.answer(save_request, self._run_save(self._script.save))
        # Gradients of other optimizers are in the precision of now until their steps are made.
        self._is_deferred = self._loop.others_await_steps()
        if not self._is_deferred:
            self._boundary.no_xray = "" if self._switch.can_retry else self._script.no_closure
            self._boundary.handle_requests()
            self._follow_switch()

    def other_stepped(self) -> None:
        """See :meth:`ObservedOptimizer.other_stepped`; switches the precision where that had to wait."""
        if self._is_deferred and not self._loop.others_await_steps():
            before = self._switch.precision
            self._handle_requests()
            self._switched_within = self._switch.precision is not before and bool(self.account.passes)

    def _run_save(self, save: Callable[[], object]) -> str:
        """Call the script's own function; return its error, if it raised one."""
        start = time.perf_counter()
        try:
            path = self._script.amp.without_float8(save)
        except Exception as error:  # a full disk must not end a training
            if is_from_signal_handler(error):
                raise
            why = one_line(f"{type(error).__name__}: {error}")
            self._note("error", f"the script's save() failed: {why}")
            return why
        place = f" to {path}" if isinstance(path, str | Path) else ""
        self._note("info", f"the script saved its state{place} in {time.perf_counter() - start:.1f} s")
        self.begin_interval()
        return ""

    def _follow_switch(self) -> None:
        """Let autocast and scaler follow the precision of the next step."""
        precision, loop = self._switch.precision, self._loop
        if self._script.amp.precision is not precision:
            self._script.amp.follow(precision)
        self._expected = (precision.name,)
        linears = precision.linears
        if linears is not None:  # an alarm of the script's may have come while they changed
            linears.become(precision.float8)
        # None in FP8, too, if the model that is trained now has float8 layers of its own.
        float8_precision = "" if linears is None or linears.form is None else precision.name
        if loop.float8_precision != float8_precision:
            loop.float8_precision = float8_precision
            loop.layer_changes += 1
            self.begin_interval()  # importing torchao took seconds

    def _check_precision(self, computed_precision: str) -> None:
        """Say once in each stretch that its steps were computed in another precision than the chosen one."""
        precision = self._switch.precision.name
        if computed_precision in (precision, "unknown") or self._noted_precision == precision:
            return
        self._noted_precision = precision
        weights_word = self.account.weights_word
        words = computed_precision
        if words == FLOAT8_LAYERS and precision in FP8_PRECISIONS and weights_word:
            words = f"{FLOAT8_LAYERS} and {weights_word}"  # FP8 is more than its layers
        hint = _hint(precision, computed_precision, weights_word)
        self._note("warning", f"steps in {precision} were computed in {words}: {hint}")
        self._switch.cannot_compare(f"steps in {precision} compute in {words}")

    def _note(self, severity: Severity, text: str) -> None:
        self._emit(Note(time=time.time(), severity=severity, text=text))

    def close(self, *, waits: bool) -> None:
        """See :meth:`ObservedOptimizer.close`; restores the flags and the layers that a precision changed."""
        was_active = self.active
        self._observation.close()
        super().close(waits=waits)
        if was_active:
            if waits:
                self._boundary.probes.flush()
            self._switch.finish(self.step)
        if self._switch.precision.name in ("ieee", "tf32"):
            self._script.precisions["fp32"].enter()
        self._script.amp.leave_float8()

    def stop(self) -> None:
        self.operation_counts.inputs = None
        with suppress(Exception):
            self._observation.close()
        super().stop()
