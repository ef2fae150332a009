"""Reports the steps of somebody else's loop, seen through hooks: records as of a training of amptui's own.

It never waits for the device and changes nothing that the loop computes with. Any fault here takes the hooks
off, is told once, and leaves the loop alone.
"""

import functools
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Concatenate, ParamSpec

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from amptui.engine.allocator import AllocatorWatch
from amptui.engine.loop_hooks import LoopHooks
from amptui.engine.lr_schedule import MAX_GROUPS
from amptui.engine.optimizer_step import learning_rates_of
from amptui.engine.precision import ScalerTensors, current_scale, found_inf, growth_tracker
from amptui.engine.probes.budget import GRADIENTS_BUDGET, Cadence
from amptui.engine.probes.gradients import GradientProbe
from amptui.engine.readback import open_readback
from amptui.engine.reporting import StepFacts, StepReporter
from amptui.engine.step_row import LearningRates, RowLayout
from amptui.engine.warm_up import WarmUp
from amptui.fork import in_forks
from amptui.records import PrecisionChanged, Record, StepRecord

LOOK_INTERVAL_SECONDS = 0.08
"""Time between two deliveries of numbers: a dozen a second is more than a screen draws."""

MAX_STEPS_BETWEEN_LOOKS = 64
"""A quarter of the readback's ring: tiny steps are delivered before rows must be dropped."""

_SEARCH_STEPS = 20
"""The first scaled steps, in which the scaler searches for its scale: their gradients are measured."""

_STEPS_AFTER_TROUBLE = 5

_AUTOCAST_PRECISIONS = {torch.float16: "fp16", torch.bfloat16: "bf16"}


_P = ParamSpec("_P")


def _harmless(
    method: "Callable[Concatenate[ObservedLoop, _P], None]",
) -> "Callable[Concatenate[ObservedLoop, _P], None]":
    """Call it while the loop is observed; an error there ends the observation, not the training."""

    @functools.wraps(method)
    def harmless(loop: "ObservedLoop", /, *args: _P.args, **kwargs: _P.kwargs) -> None:
        if not loop.active:
            return
        try:
            if not loop.must_not_look:
                method(loop, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - whatever fails here, the script goes on
            loop.give_up(error)

    return harmless


class ObservedLoop:
    """Watches one optimizer's steps; the loop's thread calls it through its hooks.

    ``begins`` is called once, at the end of the first step, before anything is emitted. ``failed`` gets the
    one fault after which nothing more is observed.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        scaler: GradScaler | None,
        emit: Callable[[Record], object],
        *,
        samples_per_step: int | None,
        begins: Callable[[str], object],
        failed: Callable[[Exception], object],
    ) -> None:
        self._optimizer = optimizer
        self._scaler = scaler
        self._emit = emit
        self._samples = samples_per_step or 0
        self._begins = begins
        self._failed = failed
        self.device = next((p.device for p in model.parameters()), torch.device("cpu"))
        self._on_cuda = self.device.type == "cuda"
        self._ended = time.perf_counter()
        self._readback = open_readback(self.device, clock=lambda: self._ended)
        self._gradients = GradientProbe(model)
        self._cadence = Cadence(GRADIENTS_BUDGET)
        self._reporter = StepReporter(self._take_reported, self._gradients)
        self._warm_up = WarmUp()
        self.allocator = AllocatorWatch(self.device)
        self.step = 0
        """Steps that the loop has made."""
        self.epoch = 1
        self._reported_precision = ""
        self._norms_until = self._known_trouble = self._scaled_steps = 0
        self._look_step = 0
        self._look_due = 0.0
        self._pending: Callable[[], object] | None = None
        self._logs = False
        self._forget_step()
        self.active = True
        in_forks(self._become_copy)
        self._hooks = LoopHooks(optimizer, scaler, self)

    def _forget_step(self) -> None:
        """Begin to collect what belongs to the next step."""
        self._loss: Tensor | None = None
        self._parts: dict[str, Tensor] = {}
        self._logged_loss: Tensor | None = None
        self._autocast = "fp32"
        self._is_scaled = False
        self._backwards = 0
        self._norms: Tensor | None = None
        self._norms_scaled = False
        self._found_inf: Tensor | None = None
        self._scale_before: Tensor | None = None
        self._lrs = LearningRates(None)

    def _become_copy(self) -> None:
        """In a forked process: the hooks there belong to nobody."""
        self.active = False

    # ------------------------------------------------------------------- what the hooks call

    @_harmless
    def after_autocast(self) -> None:
        """Learn the precision; an evaluation's does not count."""
        kind = self.device.type
        if torch.is_grad_enabled() and torch.is_autocast_enabled(kind):
            self._push_pending()
            self._autocast = _AUTOCAST_PRECISIONS.get(torch.get_autocast_dtype(kind), "fp32")

    @_harmless
    def scaled(self, loss: object) -> None:
        """A loss on its way to the scaler: unscaled, as it was computed."""
        self._push_pending()
        self._is_scaled = True
        if isinstance(loss, Tensor):
            self._add_loss(loss)

    @_harmless
    def after_backward(self, loss: Tensor) -> None:
        """Gradients are complete, still scaled and not clipped: measure them where that is due."""
        self._push_pending()
        self._backwards += 1
        if not self._is_scaled:
            self._add_loss(loss)
        # Of several batches' gradients only the last look is at their sum.
        if self._norms is not None or self._wants_norms():
            self._norms, self._norms_scaled = self._measure(), self._is_scaled

    @_harmless
    def after_step(self) -> None:
        """A step without a scaler is complete."""
        self._lrs = learning_rates_of(self._optimizer.param_groups[:MAX_GROUPS])
        self._finish_step(None)

    @_harmless
    def after_unscale(self) -> None:
        """Clipping may follow, which makes NaN of Inf."""
        if self._scaler is not None:
            self._name_overflow(found_inf(self._scaler, self._optimizer))

    @_harmless
    def after_scaled_step(self) -> None:
        """The scaler has looked for overflows; its update follows."""
        assert self._scaler is not None, "its hook"
        self._lrs = learning_rates_of(self._optimizer.param_groups[:MAX_GROUPS])
        self._found_inf = found_inf(self._scaler, self._optimizer)
        self._name_overflow(self._found_inf)

    @_harmless
    def before_update(self) -> None:
        """Keep the scale that this step ran with."""
        if self._found_inf is not None and self._scaler is not None:
            self._scale_before = current_scale(self._scaler).clone()

    @_harmless
    def after_update(self) -> None:
        """A step with a scaler is complete."""
        scaler, found, before = self._scaler, self._found_inf, self._scale_before
        if scaler is None or found is None or before is None:
            return  # another optimizer's
        self._scaled_steps += 1
        self._finish_step(ScalerTensors(before, found, current_scale(scaler), growth_tracker(scaler)))

    # --------------------------------------------------------------------------- the step

    @_harmless
    def log(self, loss: Tensor | None, values: Mapping[str, Tensor]) -> None:
        """Add numbers, each a tensor without dimensions, to the step that is being made.

        Until the next one begins that is the last.
        """
        self._logs = True
        if loss is not None:
            self._logged_loss = loss
        self._parts.update(values)

    @_harmless
    def finish_epoch(self) -> None:
        """Report the epoch once its last steps are delivered."""
        self._push_pending()
        report = partial(self._reporter.epoch, step=self.step, epoch=self.epoch, validation=None)
        self._readback.push([], lambda _row, _seconds: report(), timed=False)
        self._ended = time.perf_counter()
        self._readback.begin_interval()
        self._look_step = self.step
        self.epoch += 1

    def close(self) -> None:
        """Take the hooks off and deliver what is left; waits for the device."""
        self._hooks.remove()
        if self.active:
            self._push_pending()
            self._readback.flush()
        self.active = False

    def give_up(self, error: Exception) -> None:
        """Observe nothing more."""
        self.active = False
        self._hooks.remove()
        with suppress(Exception):
            self._readback.drain()
        self._failed(error)

    @property
    def must_not_look(self) -> bool:
        """Whether anything done now would become a part of a CUDA graph."""
        return self._on_cuda and torch.cuda.is_current_stream_capturing()

    def _add_loss(self, loss: Tensor) -> None:
        """Losses of one step add up as their gradients do."""
        if loss.numel() == 1:
            value = loss.detach().reshape(())
            self._loss = value if self._loss is None else self._loss + value

    def _wants_norms(self) -> bool:
        search = self._on_cuda and self._is_scaled and self._scaled_steps < _SEARCH_STEPS
        return search or self.step < self._norms_until or self._cadence.due()

    def _name_overflow(self, found: Tensor) -> None:
        """On a CPU a skip is known at once, while its gradients are there to name."""
        if self._norms is None and not found.is_cuda and found.item():
            self._norms, self._norms_scaled = self._measure(), False

    def _measure(self) -> Tensor | None:
        began = time.perf_counter()
        row = None
        try:
            with torch.autocast(self.device.type, enabled=False):
                row = self._gradients.measure()
        except torch.OutOfMemoryError:
            pass  # a step without a norm is no reason to see nothing more
        self._cadence.measured(began)
        return row

    def _finish_step(self, scaler: ScalerTensors | None) -> None:
        """Count the step and send its numbers: if the loop logs more of them, when the next one begins."""
        self.step += 1
        if self.step == 1:
            self._begins(self._precision())
        self._ended = time.perf_counter()
        if self._logs or self.step == 1:
            self._pending = partial(self._push, scaler)
        else:
            self._push(scaler)
        if self.step >= self._look_step or self._ended >= self._look_due:
            self._look()

    def _push_pending(self) -> None:
        """Send the numbers of a finished step that waited for what the loop may log."""
        if self._pending is not None:
            push, self._pending = self._pending, None
            push()

    def _push(self, scaler: ScalerTensors | None) -> None:
        loss = self._loss if self._logged_loss is None else self._logged_loss
        norms, lrs = self._norms, self._lrs
        values = [] if loss is None else [loss]
        values += [*self._parts.values(), *lrs.on_device]
        if scaler is not None:
            values += scaler
        if norms is not None:
            values.append(norms)
        facts = StepFacts(
            self.step,
            self.epoch,
            self._precision(),
            self._samples,
            None,
            self._ended,
            lrs.first,
            self._warm_up.begin_step(),
            RowLayout(tuple(self._parts), len(lrs.on_device), scaler is not None, loss=loss is not None),
            self._norms_scaled,
            max(1, self._backwards),
            lrs.groups,
        )
        self._forget_step()
        self._readback.push(values, partial(self._reporter.step, facts), timed=True)

    def _precision(self) -> str:
        return "fp16" if self._is_scaled and self._autocast == "fp32" else self._autocast

    def _look(self) -> None:
        """Deliver the numbers that have arrived."""
        self._readback.drain()
        reporter = self._reporter
        if reporter.trouble_step > self._known_trouble:
            self._known_trouble = reporter.trouble_step
            self._norms_until = self.step + _STEPS_AFTER_TROUBLE
        self.allocator.look(self._reported_precision, settled=False)
        self._look_due = time.perf_counter() + LOOK_INTERVAL_SECONDS
        self._look_step = self.step + (1 if reporter.in_trouble else MAX_STEPS_BETWEEN_LOOKS)

    def _take_reported(self, record: Record) -> None:
        if type(record) is StepRecord:
            before, self._reported_precision = self._reported_precision, record.precision
            if before and before != record.precision:
                now, step = record.time, record.step
                self._emit(PrecisionChanged(time=now, step=step, previous=before, current=record.precision))
            self._warm_up.add(record.step_seconds)
        self._emit(record)


def one_number(name: str, value: Tensor | float) -> Tensor:
    """A number that was logged, as a tensor wherever it is. Raises ValueError if there are several."""
    tensor = value.detach() if isinstance(value, Tensor) else torch.tensor(float(value), device="cpu")
    if tensor.numel() != 1:
        raise ValueError(f"log({name}=...) takes one number, not a tensor of shape {tuple(tensor.shape)}")
    return tensor.reshape(())
