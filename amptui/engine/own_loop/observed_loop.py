"""Reports the steps of somebody else's loop, seen through hooks: records as of a training of amptui's own.

It never waits for the device and changes nothing that the loop computes with. Any fault here takes the hooks
off, is told once, and leaves the loop alone.
"""

import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from amptui.engine.allocator import AllocatorWatch
from amptui.engine.lr_schedule import MAX_GROUPS
from amptui.engine.optimizer_step import learning_rates_of
from amptui.engine.own_loop.loop_hooks import FirstStep, LoopHooks, harmless, with_loss
from amptui.engine.own_loop.loop_step import LoopStep
from amptui.engine.precision import ScalerTensors, current_scale, found_inf, growth_tracker
from amptui.engine.probes.budget import GRADIENTS_BUDGET, SEARCH_STEPS, STEPS_AFTER_TROUBLE, Cadence
from amptui.engine.probes.gradients import GradientProbe
from amptui.engine.readback import LOOK_INTERVAL_SECONDS, MAX_STEPS_BETWEEN_LOOKS, open_readback
from amptui.engine.reporting import StepFacts, StepReporter
from amptui.engine.sharding import is_sharded
from amptui.engine.step_row import LearningRates
from amptui.engine.warm_up import WarmUp
from amptui.fork import in_forks
from amptui.records import Note, PhaseChanged, PrecisionChanged, Record, StepRecord


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
        self._optimizer = weakref.ref(optimizer, self._let_go)
        self._scaler = scaler
        self._emit = emit
        self._samples = samples_per_step or 0
        self._begins = begins
        self._failed = failed
        self.device = next((p.device for p in model.parameters()), torch.device("cpu"))
        self.on_cuda = self.device.type == "cuda"
        self._ended = time.perf_counter()
        self._readback = open_readback(self.device, clock=partial(getattr, self, "_ended"))
        self._gradients = GradientProbe(model)
        self._is_sharded = is_sharded(model)  # ranks measure at times of their own: no collectives
        self._cadence = Cadence(GRADIENTS_BUDGET)
        self._reporter = StepReporter(self._take_reported, self._gradients)
        self._warm_up = WarmUp()
        self.allocator = AllocatorWatch(self.device)
        self.step = 0
        """Steps that the loop has made; may be set before its first one, if it is resumed."""
        self.epoch = 1
        self._reported_precision = ""
        self._known_trouble = self._scaled_steps = 0
        self._norms_until = int(self._cadence.due())
        """Up to which step all gradients are measured."""
        self._look_step, self._look_due = 0, 0.0
        self._pending: Callable[[], object] | None = None
        self._logs = self._begun = False
        self._validation: dict[str, Tensor] | None = None
        self._made = LoopStep()
        """The step that is being made; until its numbers are sent, the one before."""
        self._lrs = LearningRates(None)
        self._timed = True
        self._other_optimizer = ""
        self.active = True
        in_forks(self._become_copy)
        self.hooks = LoopHooks(optimizer, scaler, self)

    @property
    def batches(self) -> int:
        """Batches loaded for the step that is being made."""
        return self._made.batches

    def _become_copy(self) -> None:
        """In a forked process: the hooks there belong to nobody."""
        self.active = False
        self.hooks.remove()

    def _let_go(self, _optimizer: object) -> None:
        """The script has dropped the optimizer: hold none of its memory, and see no other training's losses.

        This may be any thread, at any time.
        """
        self._gradients.parameters = ()
        self.hooks.remove()

    def begin_with(self, first: FirstStep) -> None:
        """Take over what was seen of the step that is being made; its time is not measured."""
        made = self._made
        made.loss, made.backwards, made.is_scaled = first.loss, first.backwards, first.is_scaled
        made.set_autocast(first.autocast.get(self.device.type))
        self._timed = False

    # ------------------------------------------------------------------- what the hooks call

    def after_autocast(self, _context: object) -> None:
        """Learn the precision; an evaluation's does not count."""
        kind = self.device.type
        if torch.is_grad_enabled() and torch.is_autocast_enabled(kind):
            if self._pending is not None:
                self._push_pending()
            self._made.set_autocast(torch.get_autocast_dtype(kind))

    def scaled(self, loss: object) -> None:
        """A loss on its way to the scaler: unscaled, as it was computed."""
        if self._pending is not None:
            self._push_pending()
        made = self._made
        if made.found_inf is None:
            made.is_scaled = True
            made.loss = with_loss(made.loss, loss)
            if self.on_cuda and self._scaled_steps < SEARCH_STEPS:
                self._norms_until = max(self._norms_until, self.step + 1)

    def after_backward(self, loss: Tensor) -> None:
        """Gradients are complete, still scaled and not clipped: measure them where that is due."""
        if self._pending is not None:
            self._push_pending()
        made = self._made
        if made.found_inf is not None:
            return  # the step is made, and waits for its update: another optimizer's loss
        made.backwards += 1
        if not made.is_scaled:
            made.loss = with_loss(made.loss, loss)
        # Of several batches' gradients only the last look is at their sum.
        if self.step < self._norms_until:
            made.norms, made.norms_scaled = self._measure(), made.is_scaled

    def after_step(self) -> None:
        """A step without a scaler is complete."""
        if self._pending is not None:
            self._push_pending()
        self._made.lrs = self._learning_rates()
        self._finish_step(None)

    def after_unscale(self) -> None:
        """Clipping may follow, which makes NaN of Inf."""
        found = self._made.unscaled_inf = self._overflow()
        self._name_overflow(found)

    def after_scaled_step(self) -> None:
        """The scaler has looked for overflows; its update follows."""
        if self._pending is not None:
            self._push_pending()
        made = self._made
        made.lrs = self._learning_rates()
        made.found_inf = made.unscaled_inf
        if made.found_inf is None:
            made.found_inf = self._overflow()
            self._name_overflow(made.found_inf)

    def before_update(self) -> None:
        """Keep the scale that this step ran with."""
        made = self._made
        made.unscaled_inf = None
        if made.found_inf is not None and self._scaler is not None:
            made.scale_before = current_scale(self._scaler).clone()

    def after_update(self) -> None:
        """A step with a scaler is complete."""
        scaler, found, before = self._scaler, self._made.found_inf, self._made.scale_before
        if scaler is not None and found is not None and before is not None:  # else another optimizer's
            self._scaled_steps += 1
            self._finish_step(ScalerTensors(before, found, current_scale(scaler), growth_tracker(scaler)))

    @harmless
    def before_other_step(self, kind: str) -> None:
        """An optimizer that is not observed, of class ``kind``, makes a step: with losses of its own."""
        if not self._other_optimizer:
            self._other_optimizer = kind
            ours = "" if (optimizer := self._optimizer()) is None else f" ({type(optimizer).__name__})"
            text = f"a second optimizer ({kind}) makes steps too: only those of the first{ours} are shown"
            self._emit(Note(time=time.time(), severity="info", text=text))
        if self._made.found_inf is None and self.step > 0:
            self._push_pending()
            self._made = LoopStep()

    # --------------------------------------------------------------------------- the step

    @harmless
    def loaded(self, asked: float, seconds: float, samples: int) -> None:
        """A batch for the next step took ``seconds`` to load, from ``asked``, by ``perf_counter``."""
        if self._pending is not None:
            self._push_pending()
        made = self._made
        if made.asked is None:
            made.asked = asked
        made.data_seconds += seconds
        made.samples += samples
        made.batches += 1

    @harmless
    def log(self, loss: Tensor | None, values: Mapping[str, Tensor]) -> None:
        """Add numbers, each a tensor without dimensions, to the step that is being made.

        Until the next one begins that is the last. Within a validation they are its results.
        """
        if self._validation is not None:
            self._validation.update(values if loss is None else {"loss": loss, **values})
            return
        self._logs, made = True, self._made
        if loss is not None:
            made.logged_loss = loss
        if values:
            made.parts = {**(made.parts or {}), **values}

    @harmless
    def begin_validation(self) -> None:
        """What is logged from here on belongs to a validation."""
        self._push_pending()
        self._validation = {}
        self._emit(PhaseChanged(time=time.time(), phase="validating", detail="validating"))

    @harmless
    def finish_validation(self) -> None:
        """Report it after the steps before, and leave its time out of the next step's."""
        values, self._validation = self._validation or {}, None
        if values:
            report = partial(self._reporter.validated_by_script, self.step, self.epoch, tuple(values))
            self._push_others([*values.values()], report)
        self._emit(PhaseChanged(time=time.time(), phase="training" if self._begun else "first step"))
        self._begin_interval()

    @harmless
    def finish_epoch(self) -> None:
        """Report the epoch once its last steps are delivered."""
        self._push_pending()
        report = partial(self._reporter.epoch, step=self.step, epoch=self.epoch, validation=None)
        self._push_others([], lambda _row, _seconds: report())
        self._begin_interval()
        self.epoch += 1

    def _push_others(self, values: list[Tensor], deliver: Callable[..., object]) -> None:
        self._readback.push(values, deliver, timed=False)
        self._look_step = self.step

    def _begin_interval(self) -> None:
        """Leave the time until now out of the next step's."""
        self._ended = time.perf_counter()
        self._readback.begin_interval()

    def close(self) -> None:
        """Take the hooks off and deliver what is left; waits for the device."""
        self.hooks.remove()
        if self.active:
            self._push_pending()
            self._readback.flush()
        self.active = False

    def give_up(self, error: Exception) -> None:
        """Observe nothing more."""
        self.active = False
        self.hooks.remove()
        with suppress(Exception):
            self._readback.drain()
        self._failed(error)

    @property
    def must_not_look(self) -> bool:
        """Whether anything done now would become a part of a CUDA graph."""
        return self.on_cuda and torch.cuda.is_current_stream_capturing()

    def _learning_rates(self) -> LearningRates:
        optimizer = self._optimizer()
        assert optimizer is not None, "its step"
        groups = optimizer.param_groups
        lr = groups[0].get("lr")
        if type(lr) is float and lr == self._lrs.first and len(groups) == 1:
            return self._lrs  # the usual case
        lrs = learning_rates_of(groups[:MAX_GROUPS])
        if type(lrs.first) is float and not lrs.groups:
            self._lrs = lrs
        return lrs

    def _overflow(self) -> Tensor:
        """Whether the scaler found one in the optimizer's gradients, which it was just called with."""
        optimizer = self._optimizer()
        assert self._scaler is not None and optimizer is not None, "its step"  # noqa: PT018
        return found_inf(self._scaler, optimizer)

    def _name_overflow(self, found: Tensor) -> None:
        """On a CPU a skip is known at once, while its gradients are there to name."""
        if not self.on_cuda and self._made.norms is None and found.item():
            self._made.norms, self._made.norms_scaled = self._measure(), False

    def _measure(self) -> Tensor | None:
        began, row = time.perf_counter(), None
        try:
            with torch.autocast(self.device.type, enabled=False):
                row = None if self._is_sharded else self._gradients.measure()
        except torch.OutOfMemoryError:  # a step without a norm is no reason to see nothing more
            pass
        self._cadence.measured(began)
        return row

    def _finish_step(self, scaler: ScalerTensors | None) -> None:
        """Count the step and send its numbers: if the loop logs more of them, when the next one begins."""
        self.step += 1
        precision, warming_up = self._precision(), self._begin_step()
        if first := not self._begun:
            self._begun = True
            self._begins(precision)
        self._ended = time.perf_counter()
        if self._logs or first:
            self._pending = partial(self._push, scaler, precision, warming_up)
        else:
            self._push(scaler, precision, warming_up)
        if self._look_is_due():
            self._look()

    def _look_is_due(self) -> bool:
        return self.step >= self._look_step or self._ended >= self._look_due

    def _push_pending(self) -> None:
        """Send the numbers of a finished step that waited for what the loop may log."""
        if self._pending is not None:
            push, self._pending = self._pending, None
            push()

    def _push(self, scaler: ScalerTensors | None, precision: str, warming_up: bool) -> None:
        made, self._made = self._made, LoopStep()
        lrs, asked = made.lrs, made.asked
        layout, values = made.row(scaler)
        facts = StepFacts(
            self.step,
            self.epoch,
            precision,
            self._samples or made.samples,
            None if asked is None else made.data_seconds,
            self._ended if asked is None else asked,
            lrs.first,
            warming_up,
            layout,
            made.norms_scaled,
            made.backwards or 1,
            lrs.groups,
        )
        self._readback.push(values, partial(self._reporter.step, facts), timed=self._timed)
        if not self._timed:
            self._timed = True
            self._readback.begin_interval()

    def _precision(self) -> str:
        made = self._made  # a loop that scales its loss may cast by itself
        return "fp16" if made.is_scaled and made.autocast == "fp32" else made.autocast

    def _begin_step(self) -> bool:
        """Count a step; return whether it is a warm-up step."""
        return self._warm_up.begin_step()

    def _look(self) -> None:
        """Deliver the numbers that have arrived."""
        self._readback.drain()
        reporter = self._reporter
        if reporter.trouble_step > self._known_trouble:
            self._known_trouble = reporter.trouble_step
            self._norms_until = self.step + STEPS_AFTER_TROUBLE
        elif self._cadence.due():
            self._norms_until = max(self._norms_until, self.step + 1)
        self._look_at_memory()
        self._look_due = time.perf_counter() + LOOK_INTERVAL_SECONDS
        self._look_step = self.step + (1 if reporter.in_trouble else MAX_STEPS_BETWEEN_LOOKS)

    def _look_at_memory(self) -> None:
        self.allocator.look(self._reported_precision, settled=False)

    def _take_reported(self, record: Record) -> None:
        if type(record) is StepRecord:
            before, now = self._reported_precision, record.precision
            self._reported_precision = now
            if before and before != now:
                self._emit(PrecisionChanged(time=record.time, step=record.step, previous=before, current=now))
            self._warm_up.add(record.step_seconds)
        self._emit(record)
