"""The first optimizer of a script whose precision amptui switches: requests are handled after its steps.

Its steps are seen as those of an observed optimizer. Between two of them it switches precisions, pauses,
compares, traces and saves, in the thread that trains.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

from torch import Tensor, is_grad_enabled
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from amptui.base.script_signals import is_from_signal_handler
from amptui.base.text import one_line
from amptui.device.failure import explain, is_device_lost
from amptui.loops.script.backward_pass import WEIGHTS_WORDS, BackwardPass
from amptui.loops.script.guard import harmless
from amptui.loops.script.loop_hooks import HOOKS
from amptui.loops.script.observed_loop import ObservedLoop
from amptui.loops.script.observed_optimizer import ObservedOptimizer
from amptui.loops.script.pass_account import LoopStep
from amptui.loops.script.script import NO_SAVE, WatchedScript
from amptui.probes.flop_counter import StepInputs, is_anything_compiled, shapes_in
from amptui.probes.snapshot import Snapshot
from amptui.recipe.precision import Precision
from amptui.records.control import Control
from amptui.records.own_loop import FLOAT8_LAYERS
from amptui.records.run import LOW_PRECISIONS, Note, Severity

ComputeLoss = Callable[[], Tensor]
"""Runs a forward pass of the script's and returns its loss."""


def _hint(precision: str, computed_precision: str, weights_word: str) -> str:
    """What to do about steps that were not computed in the chosen precision."""
    if computed_precision in WEIGHTS_WORDS.values() or (weights_word and precision == "fp8"):
        return "that is what the weights are"
    if computed_precision == FLOAT8_LAYERS and precision != "fp8":
        return "the script has made them itself"
    if computed_precision == "bf16" and precision == "fp8":
        return "the model that is trained now has no float8 layers"
    if precision in LOW_PRECISIONS:
        return "run each forward pass in a new `with monitor.autocast():`"
    return "leave autocast to amptui: use `with monitor.autocast():` for each forward pass"


class SwitchedOptimizer(ObservedOptimizer):
    """Watches one optimizer's steps, and switches their precision as ``control`` is asked."""

    _loop: ObservedLoop
    _in_probes = False
    """Whether probes are around the passes that run; after passes that failed, too."""
    _traced_step = 0
    """The newest step that was traced."""
    _switched_within = False
    """Whether the step that is being made has passes from before the newest switch."""

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
        self._observation = ExitStack()
        self.keeper = script.first
        self.take_requests(script.trained, control)
        self.switch.can_retry = False
        self.wants_shapes = False
        """Whether the shapes of the next step's batches are to be kept in it."""
        self._inputs: StepInputs | None = None
        """Those of the step that is being made, if its operations are counted."""
        self._undo: Snapshot | None = None
        """What it changes before its end, should its functions fail because they are counted."""
        self._counts = True
        """Whether operations can be counted: no step has failed for it."""
        self._ended_step = self.step
        self._is_deferred = False
        self._noted_precision = ""
        self._follow_switch()

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
            self._forget_step_again()
            try:
                losses.append(run())
            except Exception as error:
                errors.append(error)
                raise

        self._in_attempt = True
        try:
            attempt = make if self._undo is None else partial(self._make_counted, make, self._undo)
            self.switch.attempt(step, f"in step {step}", attempt)
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
    def _begin_attempt(self, passes: Sequence["Pass"]) -> None:
        self.switch.can_retry = self.control.can_retry
        if self.control.newest("x-ray") is not None:
            self.work_begins()
            with HOOKS.suspended():  # its passes are none of the script's
                self.xray(passes, counts_operations=False)
            self._forget_step_again()
        warms_up = self.switch.begin_step(self.step + 1)
        if warms_up or self.wants_shapes:
            self._plan_count(warms_up=warms_up)

    def keep_shapes(self, batch: object) -> None:
        """A batch was loaded for the next step."""
        try:
            shapes = shapes_in(batch)
        except Exception:  # noqa: BLE001 - a class of the script's own may raise anything
            shapes = ()
        self._loop_step.shapes = (*self._loop_step.shapes, shapes)

    def _plan_count(self, *, warms_up: bool) -> None:
        """Decide whether to count the operations of the step, which makes it slower: only in the warm-up.

        After that, check that its shapes are not new: a count stands for steps of the same. They are known of
        batches that the loop takes from the monitor; without these nothing is counted.
        """
        loop_step, flops, switch = self._loop_step, self.probes.flops, self.switch
        self._inputs = self._undo = None
        self.wants_shapes = warms_up and self._counts
        shapes, batches = loop_step.shapes, loop_step.batches
        if not self._counts or not shapes or len(shapes) != batches or not all(shapes):
            return
        inputs = StepInputs(self._samples or loop_step.samples, batches, tuple(chain(*shapes)))
        if not warms_up:
            flops.check(self.step + 1, inputs)
            return
        # A step on trial that fails is the precision's failure; other ranks cannot run a step again.
        may_count = self.step > 0 and switch.can_retry and not switch.on_trial
        if may_count and flops.is_due(switch.precision, inputs) and not is_anything_compiled():
            with self.probes.suppress_errors("FLOP/s"):
                self._undo = Snapshot(self._script.model, self.device)
                self._inputs = inputs

    def _make_counted(self, make: Callable[[Precision], None], undo: Snapshot, precision: Precision) -> None:
        """Make a step of which the operations are counted; if its passes fail, once more without."""
        try:
            make(precision)
            return
        except Exception as error:
            if not self._in_probes or is_device_lost(error) or is_from_signal_handler(error):
                raise
            why = explain(error, doing="while operations were counted", batch_size=None).what
        finally:
            self._inputs = self._undo = None
        # Outside the handler: the traceback would keep the failed pass's tensors alive.
        self._counts = self.wants_shapes = False
        undo.restore()
        make(precision)
        self._note("warning", f"no FLOP/s: {why}")  # else it was the script's own error

    @contextmanager
    def around_passes(self) -> Iterator[None]:
        """The context of a step's forward and backward passes in :meth:`attempt`: for its probes."""
        self._enter_probes(self._inputs)
        try:
            yield
        except BaseException as error:
            with suppress(BaseException):  # it passes the error on
                self._observation.__exit__(type(error), error, error.__traceback__)
            raise
        self._leave_probes()
        if self.passes:
            self._measure_gradients(self.passes[-1].scaler is not None)
            self._measure_window()

    @harmless
    def _forget_step_again(self) -> None:
        """Forget the parts of an attempt that failed; keep when its batches were loaded."""
        self.work_begins()
        self._begun, self._trained_samples = self._loop_step.again(), 0
        if self._fresh_samples.counts_inputs:
            self._fresh_samples.take()

    # ------------------------------------------------------------------- what the hooks call

    def forward_begins(self) -> None:
        """See :meth:`PassAccount.forward_begins`; traces the pass where that is due."""
        if self.pending is not None:
            super().forward_begins()
        # The script may copy or save its model between two steps: there are no hooks in it then.
        may_trace = self.step < self.probes.until and not self._in_attempt and is_grad_enabled()
        if may_trace and self._traced_step != self.step + 1 and self.probes.trace.is_due():
            self._enter_probes(None)

    @harmless
    def _enter_probes(self, inputs: StepInputs | None) -> None:
        """Trace the passes that follow, and count their operations, where that is due."""
        self._traced_step, self._in_probes = self.step + 1, True
        context = self.probes.around_step(self.step + 1, self.switch.precision, inputs)
        self._observation.enter_context(context)

    @harmless
    def _leave_probes(self) -> None:
        self._in_probes = False
        self._observation.close()

    @harmless
    def _measure_window(self) -> None:
        if self.step < self.probes.until:
            scale = self.loss_scale()
            self.probes.after_backward(self.step + 1, self.switch.precision, assumed_scale=scale)

    def after_scaled_step(self, scaler: GradScaler, optimizer: Optimizer) -> None:
        """See :meth:`ObservedOptimizer.after_scaled_step`. A trace shows the scale before the update."""
        if self._in_probes:
            self._leave_probes()
        super().after_scaled_step(scaler, optimizer)

    def _count_warm_up(self, loop_step: LoopStep) -> None:
        """See whether the precision is warming up; what was measured in the step has succeeded in it."""
        step, switch = self.step, self.switch
        loop_step.warming_up = not switch.settled if self._in_attempt else switch.begin_step(step)
        if step > self.probes.until:  # nothing changes without a look
            self._is_steady = switch.settled
            return
        if self._in_probes:
            self._leave_probes()
        if switch.on_trial:
            switch.confirm()
        self.break_down_memory(switch.precision.name)

    def _finish_step(self, passes: BackwardPass) -> None:
        super()._finish_step(passes)
        self._switched_within = False
        if self.control.attention:
            self._look()

    def _finish_usual_step(self, backward: BackwardPass) -> None:
        super()._finish_usual_step(backward)
        if self.control.attention:
            self._look()

    # ------------------------------------------------------------------------ after a step

    @harmless
    def end_step(self) -> None:
        """Handle the requests, if a step has ended since the last call: what the loop saves now is whole."""
        self.work_begins()
        if self.step != self._ended_step:
            self._ended_step = self.step
            self._look_if_due()

    def _precision(self, passes: BackwardPass) -> str:
        """What the step was computed in: the chosen precision, unless the loop did something else."""
        precision, computed_precision = self.switch.precision.name, super()._precision(passes)
        is_amp = passes.precisions == {precision, "fp32"} and not self._switched_within
        if computed_precision == "mixed" and is_amp:
            return precision  # what the script computes in float32 beside it is part of AMP
        if computed_precision == "fp32" and precision in ("ieee", "tf32"):
            return precision
        if computed_precision != precision:
            self._check_precision(computed_precision)
        return computed_precision

    def _look(self) -> None:
        """Unless the step is over only later: then :meth:`_look_if_due`."""
        if not (self._in_attempt or self._script.ends_steps):
            self._look_now()

    def _look_if_due(self) -> None:
        if self.step >= self._look_step or self._ended >= self._look_due or self.control.attention:
            self._look_now()
            self.wants_shapes = self._counts

    @harmless
    def _look_now(self) -> None:
        """Deliver the numbers that have arrived, and handle the requests."""
        linears = self._script.amp.linears
        if linears is not None and linears.follow(self._script.models):
            self._loop.layers_changed()
            self._follow_switch()
        self.look()
        self.pause_if_wanted(self._handle_requests)
        self._handle_requests()
        self.plan()
        self.probes.until = max(self.step + 1, self.probes.until)
        self._is_steady, self._usual_precision = False, ""

    def _handle_requests(self) -> None:
        control = self.control
        if save_request := control.take("checkpoint"):
            if self._script.save is None:
                control.refuse(save_request, "unavailable", NO_SAVE)
            else:
                control.answer(save_request, self._run_save(self._script.save))
        # Gradients of other optimizers are in the precision of now until their steps are made.
        self._is_deferred = self._loop.others_await_steps()
        if not self._is_deferred:
            self.no_xray = "" if self.switch.can_retry else self._script.no_closure
            self.switch_if_wanted()
            self._follow_switch()

    def other_stepped(self) -> None:
        """See :meth:`ObservedOptimizer.other_stepped`; switches the precision where that had to wait."""
        if self._is_deferred and not self._loop.others_await_steps():
            before = self.switch.precision
            self._handle_requests()
            self._switched_within = self.switch.precision is not before and bool(self.passes)

    def _run_save(self, save: Callable[[], object]) -> str:
        """Call the script's own function; return its error, if it raised one."""
        start, linears = time.perf_counter(), self._script.amp.linears
        try:
            with nullcontext() if linears is None else linears.kept():
                if linears is not None:
                    linears.become(on=False)  # a file of the script's own layers needs no torchao to be read
                path = save()
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
        precision, loop = self.switch.precision, self._loop
        if self._script.amp.precision is not precision:
            self._script.amp.follow(precision)
        self._expected, self._usual_precision = (precision.name,), ""
        linears = precision.linears
        if linears is not None:  # an alarm of the script's may have come while they changed
            linears.become(on=precision.float8)
        # None in FP8, too, if the model that is trained now has float8 layers of its own.
        float8_precision = precision.name if linears is not None and linears.is_on else ""
        if loop.float8_precision != float8_precision:
            loop.float8_precision = float8_precision
            loop.layers_changed()
            self.begin_interval()  # importing torchao took seconds

    def _check_precision(self, computed_precision: str) -> None:
        """Say once in each stretch that its steps were computed in another precision than the chosen one."""
        precision = self.switch.precision.name
        if computed_precision in (precision, "unknown") or self._noted_precision == precision:
            return
        self._noted_precision = precision
        weights_word = self.weights_word
        words = computed_precision
        if words == FLOAT8_LAYERS and precision == "fp8" and weights_word:
            words = f"{FLOAT8_LAYERS} and {weights_word}"  # FP8 is more than its layers
        hint = _hint(precision, computed_precision, weights_word)
        self._note("warning", f"steps in {precision} were computed in {words}: {hint}")
        self.switch.cannot_compare(f"steps in {precision} compute in {words}")

    def _note(self, severity: Severity, text: str) -> None:
        self._emit(Note(time=time.time(), severity=severity, text=text))

    def stop(self) -> None:
        """See :meth:`ObservedOptimizer.stop`."""
        with suppress(Exception):
            self._observation.close()
        super().stop()

    def close(self, *, waits: bool) -> None:
        """See :meth:`ObservedOptimizer.close`; restores the flags and the layers that a precision changed."""
        was_active = self.active
        self._observation.close()
        super().close(waits=waits)
        if was_active:
            self.switch.finish(self.step)
        if self.switch.precision.name in ("ieee", "tf32"):
            self._script.amp.precisions["fp32"].enter()
        self._script.amp.leave_float8()


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """A forward pass of the script's, which a probe may run again but not copy."""

    compute_loss: ComputeLoss

    def __call__(self) -> Tensor:
        return self.compute_loss()

    def __deepcopy__(self, _memo: object) -> "Pass":
        return self
