"""The step engine: one optimizer step in the current precision, and the measurements around it.

A loop drives it. Between two looks, some ten a second, a step does what training needs, pushes its numbers
and nothing else; records, budgets, probes and switches are worked off at the look. ``Control.attention``,
one plain attribute, brings a look at the very next step boundary.
"""

import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor, nn

from amptui.control import Control, TraceRequest, XRayRequest
from amptui.data.batches import Batch
from amptui.engine.allocator import AllocatorWatch
from amptui.engine.checkpoint.writer import CheckpointWriter
from amptui.engine.divergence_guard import DivergenceGuard
from amptui.engine.failure import explain
from amptui.engine.precision import MIN_SOUND_SCALE, Precision, ScalerTensors
from amptui.engine.precision_switch import PrecisionSwitch
from amptui.engine.probes.budget import GRADIENTS_BUDGET, Cadence
from amptui.engine.probes.gradients import GradientProbe
from amptui.engine.probes.memory_breakdown import break_down
from amptui.engine.probes.schedule import Probes
from amptui.engine.probes.step_timer import StepTimer
from amptui.engine.probes.xray import take_xray
from amptui.engine.readback import open_readback
from amptui.engine.reporting import StepFacts, StepReporter
from amptui.engine.setup import Prepared
from amptui.engine.validation import checked_loss
from amptui.records import AMP_PRECISIONS, Note, Record, StepRecord

LOOK_INTERVAL_SECONDS = 0.08
"""A dozen looks a second: more than a screen draws."""

MAX_STEPS_BETWEEN_LOOKS = 64
"""A quarter of the readback's ring: tiny steps are looked at before rows must be dropped."""

_SEARCH_STEPS = 20
"""The first steps with a scaler: its search for a scale begins at 65,536 and takes fewer skips than that."""

_STEPS_AFTER_TROUBLE = 5
"""After a skip or a growth the next skip comes at once or not soon: these steps name its gradient."""

_NO_PARTS: Mapping[str, Tensor] = {}

ComputeLoss = Callable[[], object]
"""Runs the forward pass; returns what :meth:`amptui.Experiment.loss` may return."""


class _Made(NamedTuple):
    """What one step left on the device."""

    precision: str
    loss: Tensor
    parts: Mapping[str, Tensor]
    scaler: ScalerTensors | None
    norm: Tensor | None
    """The norm that clipping used, of unscaled gradients."""
    gradients: Tensor | None
    """What the gradient probe measured."""
    gradients_scaled: bool
    """It measured before unscaling."""


class StepEngine:
    """Makes optimizer steps and keeps track of them; used by the one thread that trains.

    The loop calls :meth:`train_step` for each batch. Before it, whenever :meth:`look_is_due`, it calls
    :meth:`deliver`, then :meth:`obey`, and :meth:`plan` as the last thing before it asks for the batch.
    ``interactive``: somebody can answer where the run cannot go on by itself; ``keeper`` knows the way back.
    """

    def __init__(
        self,
        prepared: Prepared,
        control: Control,
        emit: Callable[[Record], object],
        keeper: CheckpointWriter,
        *,
        interactive: bool,
        first_step: int = 1,
        look_interval_seconds: float = LOOK_INTERVAL_SECONDS,
    ) -> None:
        self._prepared = prepared
        self._control = control
        self._emit = emit
        self._on_cuda = prepared.device.type == "cuda"
        self._optimizer = prepared.optimizer
        self._readback = open_readback(prepared.device, clock=time.perf_counter)
        self._gradients = GradientProbe(prepared.model)
        self._gradients_cadence = Cadence(GRADIENTS_BUDGET)
        self._probes = Probes(prepared, self._gradients, emit)
        self._timeline = StepTimer(prepared.device, emit)
        self._look_interval_seconds = look_interval_seconds
        self._look_due = 0.0
        self._look_step = 0
        self._closer_until = self._norms_until = 0
        self._scaled_steps = self._known_trouble = 0
        self._next_growth: int | None = None
        self._last_loss: object = None
        """Kept until the next one is there, as a handwritten loop keeps it: where the last graph was freed
        first, a forward pass of 68 layers took 5% longer on a CPU."""
        self.step = first_step - 1
        """Steps sent to the device."""
        self.in_step = False
        """Whether a step is being made: tells what an exception interrupted."""
        self.allocator = AllocatorWatch(prepared.device)
        self.reporter = StepReporter(self._take_reported, self._gradients)
        self.guard = DivergenceGuard(self.reporter, control, self._readback, keeper, interactive=interactive)
        self.switch = PrecisionSwitch(prepared, control, self.allocator, emit)

    # ------------------------------------------------------------------------------ one step

    def train_step(
        self, compute_loss: ComputeLoss, *, epoch: int, samples: int, asked: float, data_seconds: float
    ) -> None:
        """Forward, backward, clip, step: enqueued on the device, its numbers pushed, nothing waited for.

        ``asked``: when the batch was asked for, by ``perf_counter``; that took ``data_seconds``.
        Raises ExperimentError for a loss that cannot be trained on; whatever the model raises passes through.
        """
        self.step += 1
        self.in_step = True
        warming_up = self.switch.begin_step()
        if self.step > self._closer_until:
            made = self._make(self.switch.precision, compute_loss)
        else:
            made = self._make_observed(compute_loss, warming_up, data_seconds)
        lr = self._optimizer.param_groups[0].get("lr")
        lr_sent = type(lr) is not float and isinstance(lr, Tensor) and lr.is_cuda
        facts = StepFacts(
            self.step,
            epoch,
            made.precision,
            samples,
            data_seconds,
            asked,
            None if lr is None or lr_sent else float(lr),
            warming_up,
            tuple(made.parts),
            lr_sent,
            made.scaler is not None,
            made.norm is not None,
            made.gradients is not None,
            made.gradients_scaled,
        )
        row = self._readback.push(
            _values(made, lr if lr_sent else None), partial(self.reporter.step, facts), timed=True
        )
        if row is not None and not math.isfinite(row[0]):
            self.look_at_once()  # on a CPU it is known before the next step
        self.in_step = False

    def _make(self, precision: Precision, compute_loss: ComputeLoss) -> _Made:
        """What training needs, and no more."""
        self._optimizer.zero_grad(set_to_none=True)
        with precision.forward_context():
            self._last_loss = result = compute_loss()
        loss, parts = self._checked(result)
        precision.backward(loss)
        norm, gradients = (None, None) if self._prepared.clip_norm is None else self._clip(precision)
        scaler = precision.step(self._optimizer)
        if scaler is not None and gradients is None:
            gradients = self._name_overflow(scaler)
        before_unscaling = scaler is not None and norm is None
        return _Made(precision.name, loss, parts, scaler, norm, gradients, before_unscaling)

    def _make_observed(self, compute_loss: ComputeLoss, warming_up: bool, data_seconds: float) -> _Made:
        """The same step with all that may be due in it: marks, probes, norms, a precision on trial."""
        timeline, switch = self._timeline, self.switch
        timeline.begin(self.step, switch.precision.name, warming_up, data_seconds)
        timeline.mark("input")
        make = partial(self._make_marked, compute_loss=compute_loss)
        made = switch.attempt(self.step, f"in step {self.step}", make)
        timeline.mark("optimizer")
        if switch.breakdown_is_due:
            self._break_down_memory(made)
        return made

    def _make_marked(self, precision: Precision, compute_loss: ComputeLoss) -> _Made:
        timeline = self._timeline
        self._optimizer.zero_grad(set_to_none=True)
        with self._probes.around_step(self.step, precision):
            with precision.forward_context():
                result = compute_loss()
            loss, parts = self._checked(result)
            timeline.mark("forward")
            precision.backward(loss)
            timeline.mark("backward")
        gradients = self._measure() if self._wants_norms() else None
        self._probes.after_backward(self.step, precision, assumed_scale=self._loss_scale())
        timeline.leave_out()
        scaled, norm = precision.scales, None
        if self._prepared.clip_norm is not None:
            norm, found = self._clip(precision)
            if gradients is None:
                gradients, scaled = found, False
            timeline.mark("clip")
        self._scaled_steps += precision.scales
        scaler = precision.step(self._optimizer)
        if scaler is not None and gradients is None:
            gradients = self._name_overflow(scaler)
        return _Made(precision.name, loss, parts, scaler, norm, gradients, scaled)

    def _checked(self, result: object) -> tuple[Tensor, Mapping[str, Tensor]]:
        """The loss and its parts; raises ExperimentError for what cannot be trained on."""
        if type(result) is Tensor and result.numel() == 1 and result.requires_grad:
            return result, _NO_PARTS  # the usual case without a call
        return checked_loss(self._prepared.experiment, result)

    def _clip(self, precision: Precision) -> tuple[Tensor, Tensor | None]:
        """Clip as ``torch.nn.utils.clip_grad_norm_`` does, bit for bit: its norm; and what overflowed.

        The latter is measured on a CPU only, where the norm is known: clipping by Inf makes NaN of all.
        """
        precision.unscale(self._optimizer)
        parameters = self._gradients.parameters
        norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        found = None
        if not self._on_cuda and not math.isfinite(norm.item()):
            found = self._measure()
        clip_norm = self._prepared.clip_norm
        assert clip_norm is not None, "asked for by --clip-norm"
        nn.utils.clip_grads_with_norm_(parameters, clip_norm, norm)
        return norm, found

    def _name_overflow(self, scaler: ScalerTensors) -> Tensor | None:
        """On a CPU a skipped step is known at once, and still has its gradients to name."""
        return self._measure() if not self._on_cuda and scaler.found_inf.item() else None

    def _wants_norms(self) -> bool:
        if not self._prepared.probes:
            return False
        likely = self.step <= self._norms_until or not self.reporter.loss_is_finite
        return likely or self._gradients_cadence.due()

    def _measure(self) -> Tensor | None:
        """All gradients measured; None where there was no memory for it, say, which costs no run."""
        began = time.perf_counter()
        row = None
        with self._probes.unharmed("gradient norms"):
            row = self._gradients.measure()
        self._gradients_cadence.measured(began)
        return row

    def _break_down_memory(self, made: _Made) -> None:
        with self._probes.unharmed("memory breakdown"):
            found = break_down(
                self._prepared.model,
                self._optimizer,
                step=self.step,
                precision=made.precision,
                peak_allocated_bytes=self.allocator.peak_bytes(),
                loss=made.loss,
            )
            self._emit(found)

    def _take_reported(self, record: Record) -> None:
        """Pass a step's record on, and learn from it."""
        self._emit(record)
        if type(record) is StepRecord:
            self.switch.take(record)

    def _loss_scale(self) -> float:
        """The scale that the next ``fp16`` step would begin with, as far as is known here."""
        scale = self.reporter.loss_scale
        collapsed = scale is not None and scale < MIN_SOUND_SCALE and not self.switch.precision.scales
        return self._prepared.first_scale if scale is None or collapsed else scale

    # ---------------------------------------------------------------------------- the look

    def look_is_due(self) -> bool:
        """Whether the loop shall look before the next step: it is time, or somebody asked for something."""
        return (
            self._control.attention or self.step >= self._look_step or time.perf_counter() >= self._look_due
        )

    def deliver(self) -> None:
        """Report the numbers that have arrived, and check them.

        Raises ExperimentError where going on would be a waste.
        """
        self._control.look(self.step)  # before requests are taken: the next boundary sees later ones
        self._readback.drain()
        reporter = self.reporter
        self.guard.look(self.switch.precision)
        self.allocator.look(self.switch.precision.name, settled=self.switch.settled)
        if asked := self._control.take(TraceRequest):
            self._probes.arm_trace(partial(self._control.answer, asked))
        self._probes.between_steps(
            self.step, trouble_step=reporter.trouble_step, unexplained_step=reporter.unexplained_step
        )

    def obey(self) -> None:
        """Switch precisions as requested."""
        self.switch.between_steps(self.step)

    def plan(self, *, look_by: int | None = None) -> None:
        """Decide how close the next steps are looked at, and when the next look is: by step ``look_by``."""
        self._timeline.drain()
        step, switch = self.step, self.switch
        steps = min(MAX_STEPS_BETWEEN_LOOKS, switch.steps_to_news, self._plan_norms())
        if self.reporter.in_trouble:
            steps = 1
        self._look_step = step + steps if look_by is None else min(step + steps, look_by)
        self._look_due = time.perf_counter() + self._look_interval_seconds
        closer = step == 0 or switch.needs_care or self._timeline.armed or self._wants_norms()
        self._closer_until = max(step + closer, step + self._probes.steps_due, self._norms_until)

    def _plan_norms(self) -> int:
        """Have gradients measured where an overflow is likely; the steps until that may be likely again.

        On CUDA a skip is known only some steps later, when its gradients are gone.
        """
        reporter, step = self.reporter, self.step
        if reporter.trouble_step > self._known_trouble:
            self._known_trouble = reporter.trouble_step
            self._norms_until = step + _STEPS_AFTER_TROUBLE
        if not (self._on_cuda and self.switch.precision.scales and self._prepared.probes):
            return MAX_STEPS_BETWEEN_LOOKS
        self._norms_until = max(self._norms_until, step + _SEARCH_STEPS - self._scaled_steps)
        if self._next_growth is not None and self._next_growth <= step:
            self._norms_until = max(self._norms_until, self._next_growth + _STEPS_AFTER_TROUBLE)
        self._next_growth = reporter.next_growth(self._prepared.scaler.get_growth_interval(), step)
        return MAX_STEPS_BETWEEN_LOOKS if self._next_growth is None else max(1, self._next_growth - step)

    # --------------------------------------------------------------------- around the steps

    def look_at_once(self) -> None:
        """Let the next boundary be one to look at."""
        self._look_step = self.step

    def begin_interval(self) -> None:
        """What came before this moment is no part of the next step's time."""
        self._readback.begin_interval()

    def push(self, values: list[Tensor], deliver: Callable[..., object]) -> None:
        """Send numbers that are no step's, a validation's, after those of the steps before."""
        self._readback.push(values, deliver, timed=False)
        self._readback.begin_interval()

    def drain(self) -> None:
        """Deliver the steps that have arrived, and decide nothing."""
        self._readback.drain()

    def flush(self) -> None:
        """Deliver all numbers that are still on their way; waits for the device."""
        self._readback.flush()
        self._probes.flush()
        self._timeline.flush()

    def xray(self, batch: Batch) -> None:
        """The next step's batch in FP32 and in AMP, neither applied; training goes on whatever happens."""
        asked, why = self._control.take(XRayRequest), ""
        self.flush()
        prepared, name = self._prepared, self.switch.precision.name
        precision = name if name in AMP_PRECISIONS else prepared.amp_precision
        scale = self._loss_scale() if prepared.precisions[precision].scales else None
        try:
            with self.allocator.left_out():
                found = take_xray(prepared, batch, step=self.step + 1, precision=precision, loss_scale=scale)
                self._emit(found)
        except Exception as error:  # noqa: BLE001 - a person's code may raise anything; the run must go on
            size = prepared.experiment.batch_size
            why = str(explain(error, doing="in the X-ray", batch_size=size, precision=precision))
            self._emit(Note(time=time.time(), severity="warning", text=f"no X-ray: {why}"))
        self._control.answer(asked, why)
        self._readback.begin_interval()

    def state(self) -> dict[str, Any]:
        """What it has counted and been told, as plain values for a checkpoint."""
        return {
            "reported": self.reporter.state(),
            "held_scale": self.switch.held_scale,
            "floor_accepted": self.guard.floor_accepted,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from another's :meth:`state`."""
        self.reporter.restore(state["reported"])
        self.switch.hold_scale(state["held_scale"])
        self.guard.floor_accepted = state["floor_accepted"]


def _values(made: _Made, lr: Tensor | None) -> list[Tensor]:
    """A step's row, in the order in which :meth:`StepReporter.step` reads it."""
    values = [made.loss, *made.parts.values()]
    if lr is not None:
        values.append(lr)
    if made.scaler is not None:
        values += made.scaler
    if made.norm is not None:
        values.append(made.norm)
    if made.gradients is not None:
        values.append(made.gradients)
    return values
