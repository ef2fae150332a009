"""The loop of somebody else's script whose precision amptui owns: requests are handled after its steps.

It sees the steps as an observed loop does. Between two of them it switches precisions, pauses, compares,
traces and saves, in the thread that trains.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from amptui.base.script_signals import is_from_signal_handler, suppressed
from amptui.base.text import one_line
from amptui.engine.precision import Precision, ScalerTensors
from amptui.engine.readback import LOOK_INTERVAL_SECONDS
from amptui.engine.step_boundary import StepBoundary
from amptui.guest.loop.backward_pass import BackwardPass
from amptui.guest.loop.computed_precision import WEIGHTS_WORDS
from amptui.guest.loop.guard import harmless
from amptui.guest.loop.loop_hooks import HOOKS
from amptui.guest.loop.observed_loop import ObservedLoop
from amptui.guest.loop.optimizer_lanes import OptimizerLanes
from amptui.guest.loop.step_functions import ComputeLoss, CountedSteps, Pass
from amptui.guest.loop.switched_amp import SwitchedAmp
from amptui.guest.loop.trained_script import NO_SAVE, OwnLoop
from amptui.records.control import CheckpointRequest, Control, XRayRequest
from amptui.records.run import AMP_PRECISIONS, Note, Record, Severity

NO_LONGER_WATCHED = "amptui stopped watching this script"


def _hint(chosen: str, computed: str) -> str:
    """What to do about steps that were not computed in the chosen precision."""
    if computed in WEIGHTS_WORDS.values():
        return "that is what the weights are"
    if chosen in AMP_PRECISIONS:
        return "run each forward pass in a new `with monitor.autocast():`"
    return "leave autocast to amptui: use `with monitor.autocast():` for each forward pass"


def _unseen(take: Callable[[], str]) -> str:
    """Call it; its passes are none of the script's."""
    with HOOKS.suspended():
        return take()


class WatchedLoop(ObservedLoop):
    """Watches one optimizer's steps and switches their precision; ``save`` is the script's own function."""

    def __init__(  # noqa: PLR0913 - by name
        self,
        own: OwnLoop,
        amp: SwitchedAmp,
        emit: Callable[[Record], object],
        *,
        samples_per_step: int | None,
        save: Callable[[], object] | None,
        control: Control | None = None,
        begins: Callable[[str], object],
        failed: Callable[[Exception], object],
        lanes: OptimizerLanes | None = None,
    ) -> None:
        super().__init__(
            own.model,
            own.optimizer,
            emit,
            samples_per_step=samples_per_step,
            begins=begins,
            failed=failed,
            lanes=lanes,
        )
        self._own = own
        self._amp = amp
        self._save = save
        self.control = control or Control(emit)
        self._boundary = StepBoundary(self, own, self.control, self._reporter, self._norms, emit)
        self._switch = self._boundary.switch
        self._switch.can_retry = False
        self.counted = CountedSteps(own, self._boundary.probes, self._note)
        self._observation = ExitStack()
        self._usual_passes = 0
        self._probes_until = 1
        """Up to which step something is to be measured in forward and backward passes."""
        self._ended_step = self._traced_step = self.step
        self._in_attempt = self._in_probes = self._is_deferred = False
        self._noted_precision = ""
        self._follow_switch()

    def follow(self, optimizer: Optimizer, model: nn.Module) -> None:
        """See :meth:`ObservedLoop.follow`; another model is probed from here on."""
        is_another = self.keeper is not None and self.keeper.model is not model
        super().follow(optimizer, model)
        if is_another:
            self._boundary.follow_model()
            self.counted = CountedSteps(self._own, self._boundary.probes, self._note)

    # --------------------------------------------------------------- what the boundary asks for

    def drain(self) -> None:
        """Deliver the steps that have arrived."""
        self._sender.drain()

    def flush(self) -> None:
        """Deliver all numbers; waits for the device."""
        self._sender.flush()
        self._boundary.probes.flush()

    def begin_interval(self) -> None:
        """Leave the time until now out of the next step's."""
        self._begin_interval()

    # ------------------------------------------------------------------- what the hooks call

    def forward_begins(self) -> None:
        """A forward pass begins, unless it is an evaluation's."""
        if not torch.is_grad_enabled():
            return
        self.work_begins()
        # The script may copy or save its model between two steps: there are no hooks in it then.
        is_observed = self.step < self._probes_until and not self._in_attempt
        if is_observed and self._boundary.probes.traces and self._traced_step != self.step + 1:
            self._enter_probes()

    def after_pass(self, backward: BackwardPass) -> None:
        """See :meth:`ObservedLoop.after_pass`; measures the float16 window where it is due."""
        if (counter := self.counted.counter) is not None:
            counter.paused = True
        super().after_pass(backward)
        # Those of accumulated batches are complete after as many backward passes as in the last step.
        if self.step < self._probes_until and self.account.passes.count == self._usual_passes:
            step, precision, boundary = self.step + 1, self._switch.precision, self._boundary
            boundary.probes.after_backward(step, precision, assumed_scale=boundary.loss_scale())
        if counter is not None:
            counter.paused = False

    def after_scaled_step(self, scaler: GradScaler) -> None:
        """See :meth:`ObservedLoop.after_scaled_step`; a trace shows the scale before its update."""
        if self._in_probes:
            self._leave_probes()
        super().after_scaled_step(scaler)

    # -------------------------------------------------------------------------- whole steps

    def attempt(self, passes: Sequence[ComputeLoss], run: Callable[[], Tensor]) -> Tensor:
        """Call ``run``, which makes a whole step of ``passes``; if a new precision fails, in the previous.

        Returns what ``run`` does. Exceptions of the script's functions pass through.
        """
        self._begin_attempt([Pass(each) for each in passes])
        if not self.active:
            return run()
        step = self.step + 1
        errors: list[Exception] = []
        made: list[Tensor] = []

        def make(_precision: Precision) -> None:
            errors.clear()  # their tracebacks keep the tensors of the attempt before
            self._follow_switch()
            self._begin_run()
            try:
                made.append(run())
            except Exception as error:
                errors.append(error)
                raise

        self._in_attempt = True
        try:
            attempt = partial(self.counted.attempt, make) if self.counted.inputs is not None else make
            self._switch.attempt(step, f"in step {step}", attempt)
        except Exception as error:
            if any(error is each for each in errors) or is_from_signal_handler(error):
                raise
            self.give_up(error)
            if not made:
                if errors:
                    raise errors[-1] from None
                return run()
        finally:
            self._in_attempt = False
        if self._look_is_due():
            self._look_unless_failed()
            self.counted.wants_shapes = True
        return made[-1]

    @harmless
    def _begin_attempt(self, passes: Sequence[Pass]) -> None:
        self._switch.can_retry = self.control.can_retry
        self._take_xray(passes)
        warms_up = self._switch.begin_step()
        if warms_up or self.counted.wants_shapes:
            samples, batches = self._sender.samples or self._loop_step.samples, self._loop_step.batches
            self.counted.plan(self.step + 1, self._switch, samples, batches, warms_up=warms_up)

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
            with suppressed(BaseException):  # it passes the error on
                self._observation.__exit__(type(error), error, error.__traceback__)
            raise
        self._leave_probes()

    @harmless
    def _enter_probes(self) -> None:
        self._traced_step = self.step + 1
        context = self._boundary.probes.around_step(self.step + 1, self._switch.precision, None)
        self._in_probes = True
        self._observation.enter_context(context)
        if self.counted.inputs is not None:
            context = self.counted.around_passes(self.step + 1, self._switch.precision)
            self._observation.enter_context(context)

    @harmless
    def _leave_probes(self) -> None:
        self._in_probes = False
        self._observation.close()

    def _forget_step_again(self) -> None:
        """Forget the parts of an attempt that failed; keep when its batches were loaded."""
        self.work_begins()
        self._loop_step = self._loop_step.again()

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
            if self.control.attention or super()._look_is_due():
                self._look()

    def _finish_step(self, scaler: ScalerTensors | None) -> None:
        self._usual_passes = self._loop_step.passes.count
        if self.step < self._probes_until:  # a look came before: nothing changes without one
            if self._in_probes:
                self._leave_probes()
            if self._switch.on_trial:
                self._switch.confirm()
        super()._finish_step(scaler)

    def _precision(self) -> str:
        """What the step was computed in: the chosen precision, unless the loop did something else."""
        chosen, computed = self._switch.precision.name, super()._precision()
        if computed == "fp32" and chosen in ("ieee", "tf32"):
            return chosen
        if computed != chosen:
            self._check_precision(computed)
        return computed

    def _begin_step(self) -> bool:
        warming_up = not self._switch.settled if self._in_attempt else self._switch.begin_step()
        if self.step <= self._probes_until:
            self._boundary.break_down_memory(self._switch.precision.name)
        return warming_up

    def _look_is_due(self) -> bool:
        due = self.step >= self._look_step or self._ended >= self._look_due or self.control.attention
        return due and not (self._in_attempt or self._own.ends_steps)

    @harmless
    def _look_unless_failed(self) -> None:
        self._look()

    def _look(self) -> None:
        """Deliver the numbers that have arrived, and handle the requests."""
        boundary = self._boundary
        boundary.look()
        boundary.pause_if_wanted(self._handle_requests)
        self._handle_requests()
        self._look_due = time.perf_counter() + LOOK_INTERVAL_SECONDS
        self._look_step = self.step + boundary.plan_look()
        self._probes_until = self.step + max(1, boundary.probes.steps_due)

    def _handle_requests(self) -> None:
        control = self.control
        if asked_to_save := control.take(CheckpointRequest):
            if self._save is None:
                control.refuse(asked_to_save, "unavailable", NO_SAVE)
            else:
                control.answer(asked_to_save, self._run_save(self._save))
        # Gradients of other optimizers are in the precision of now until their steps are made.
        self._is_deferred = self.lanes.await_steps
        if not self._is_deferred:
            self._boundary.no_xray = "" if self._switch.can_retry else self._own.no_closure
            self._boundary.handle_requests()
            self._follow_switch()

    def other_stepped(self) -> None:
        """See :meth:`ObservedLoop.other_stepped`; switches the precision where that had to wait for it."""
        if self._is_deferred and not self.lanes.await_steps:
            self._handle_requests()

    def _run_save(self, save: Callable[[], object]) -> str:
        """Call the script's own function; return its error, if it raised one."""
        began = time.perf_counter()
        try:
            path = save()
        except Exception as error:  # a full disk must not end a training
            if is_from_signal_handler(error):
                raise
            why = one_line(f"{type(error).__name__}: {error}")
            self._note("error", f"the script's save() failed: {why}")
            return why
        place = f" to {path}" if isinstance(path, str | Path) else ""
        self._note("info", f"the script saved its state{place} in {time.perf_counter() - began:.1f} s")
        self._begin_interval()
        return ""

    def _follow_switch(self) -> None:
        """Let autocast and scaler follow the precision of the next step."""
        if self._amp.precision is not self._switch.precision:
            self._amp.follow(self._switch.precision)

    def _take_reported(self, record: Record) -> None:
        self._boundary.report(record)

    def _check_precision(self, computed: str) -> None:
        """Say once in each stretch that its steps were ``computed`` in another precision than chosen."""
        chosen = self._switch.precision.name
        if computed in (chosen, "unknown") or self._noted_precision == chosen:
            return
        self._noted_precision = chosen
        self._note("warning", f"steps in {chosen} were computed in {computed}: {_hint(chosen, computed)}")
        self._switch.cannot_compare(f"steps in {chosen} compute in {computed}")

    def _note(self, severity: Severity, text: str) -> None:
        self._emit(Note(time=time.time(), severity=severity, text=text))

    def close(self, *, waits: bool = True) -> None:
        """See :meth:`ObservedLoop.close`; restores the flags of torch that a precision has changed."""
        was_active = self.active
        self._observation.close()
        super().close(waits=waits)
        if was_active:
            if waits:
                self._boundary.probes.flush()
            self._switch.finish(self.step)
        if self._switch.precision.name in ("ieee", "tf32"):
            self._own.precisions["fp32"].enter()

    def give_up(self, error: Exception) -> None:
        self.counted.inputs = None
        with suppressed(Exception):
            self._observation.close()
        super().give_up(error)
        self.control.close(NO_LONGER_WATCHED)
