"""One optimizer step: forward, backward, clip, update, of one batch or of several accumulated ones."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from torch import Tensor, nn

from amptui.device.accelerator import capabilities
from amptui.loops.prepared import Prepared
from amptui.monitor.lr_schedule import LearningRateReader, LearningRates, LrSchedule
from amptui.monitor.step_rows import StepTensors
from amptui.probes.flop_counter import StepInputs
from amptui.probes.gradient_norms import GradientNorms
from amptui.probes.schedule import Probes
from amptui.probes.step_timer import PhaseName, StepTimer
from amptui.probes.update_ratios import UpdateRatios
from amptui.recipe.loss import checked_loss, loss_weights
from amptui.recipe.precision import Precision, ScalerTensors

_NO_PARTS: Mapping[str, Tensor] = {}


ComputeLoss = Callable[[], object]
"""Runs the forward pass; returns what :meth:`amptui.Experiment.loss` may return."""


class MicroBatch(NamedTuple):
    """A batch of an optimizer step; most steps have one."""

    compute_loss: ComputeLoss
    samples: int
    batch: object
    """What the loss is computed of."""


class OptimizerStep:
    """Makes optimizer steps, plain ones and observed ones."""

    def __init__(
        self,
        prepared: Prepared,
        norms: GradientNorms,
        probes: Probes,
        timeline: StepTimer,
        updates: UpdateRatios,
    ) -> None:
        self._experiment = prepared.experiment
        self._optimizer = prepared.optimizer
        self._lr_schedule = prepared.lr_schedule
        self._clip_norm = prepared.request.clip_norm
        self._reads_later = capabilities(prepared.device).timed_events
        self._gradients = norms.probe
        self._measure = norms.measure
        self._probes = probes
        self._timeline = timeline
        self._updates = updates
        self._lrs = LearningRateReader()
        self._last_loss: object = None
        """Kept until the next forward pass, as a handwritten loop keeps it: freeing the graph first made a
        forward pass of 68 layers 5% slower on a CPU."""

    def make(self, precision: Precision, micro_batches: Sequence[MicroBatch]) -> StepTensors:
        """Make a step with only what training needs."""
        self._optimizer.zero_grad()
        if len(micro_batches) == 1:  # the usual case without a call
            with precision.forward_context():
                self._last_loss = result = micro_batches[0].compute_loss()
            if type(result) is Tensor and result.dim() == 0 and result.requires_grad:
                loss, parts = result, _NO_PARTS  # the usual case without a call
            else:
                loss, parts = checked_loss(self._experiment, result)
            precision.backward(loss)
        else:
            loss, parts = self._forward_backward(precision, micro_batches, lambda _phase: None)
        norm, gradients = (None, None) if self._clip_norm is None else self._clip(precision)
        if self._lr_schedule is None:
            lrs, scaler = self._lrs.read(self._optimizer), precision.step(self._optimizer)
        else:
            lrs, scaler = self._update(precision, self._lr_schedule)
        if scaler is not None and gradients is None:
            gradients = self._measure_overflow(scaler)
        before_unscaling = scaler is not None and norm is None
        return StepTensors(precision.name, loss, parts, lrs, scaler, norm, gradients, before_unscaling)

    def make_observed(
        self,
        precision: Precision,
        micro_batches: Sequence[MicroBatch],
        *,
        step: int,
        inputs: StepInputs | None,
        norms: bool,
        window: bool | None,
        assumed_scale: float,
    ) -> StepTensors:
        """The same step with timing marks and probes; ``norms`` asks for gradient norms.

        ``window``: whether all ranks measure the float16 window; None if it is measured when due.
        ``inputs`` are those of a warm-up step, whose operations may be counted; None for other steps.
        ``assumed_scale`` is the loss scale that float16 would start with.
        """
        timeline = self._timeline
        timeline.begin_attempt()
        self._optimizer.zero_grad()
        try:
            with self._probes.around_step(step, precision, inputs):
                loss, parts = self._forward_backward(precision, micro_batches, timeline.mark)
        except BaseException:
            self._last_loss = None  # its graph takes the memory that another attempt needs
            raise
        gradients = self._measure() if norms else None
        self._probes.after_backward(step, precision, assumed_scale=assumed_scale, window=window)
        timeline.mark(None)
        scaled, norm = precision.scales, None
        if self._clip_norm is not None:
            norm, measured_gradients = self._clip(precision)
            if gradients is None:
                gradients, scaled = measured_gradients, False
            timeline.mark("clip")
        if step <= self._updates.until:
            self._updates.copy(self._optimizer)
            timeline.mark(None)
        if self._lr_schedule is None:
            lrs, scaler = self._lrs.read(self._optimizer), precision.step(self._optimizer)
        else:
            lrs, scaler = self._update(precision, self._lr_schedule)
        timeline.mark("optimizer")
        if self._updates.is_open:
            self._updates.measure(step, None if scaler is None else scaler.found_inf)
        if scaler is not None and gradients is None:
            gradients = self._measure_overflow(scaler)
        return StepTensors(precision.name, loss, parts, lrs, scaler, norm, gradients, scaled)

    def _forward_backward(
        self,
        precision: Precision,
        micro_batches: Sequence[MicroBatch],
        mark: Callable[[PhaseName], object],
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Accumulate the gradients of all batches; return the loss and its parts, means over all samples."""
        sums: dict[str, Tensor] = {}
        copied_parameters: set[nn.Parameter] = set()
        weigh_functions = loss_weights([micro_batch.samples for micro_batch in micro_batches])
        for micro_batch, weigh in zip(micro_batches, weigh_functions, strict=True):
            with precision.forward_context():
                self._last_loss = result = micro_batch.compute_loss()
            loss, parts = checked_loss(self._experiment, result)
            mark("forward")
            loss = weigh(loss)
            precision.backward(loss)
            if precision.replays_graphs and len(micro_batches) > 1:
                # The next replay overwrites the memory of CUDA graphs. autograd takes the output of a graph
                # for a parameter's first gradient, and adds later ones to the copy in place
                # (torch/csrc/autograd/functions/accumulate_grad.h). Tensors that outlive a replay have to be
                # cloned (https://docs.pytorch.org/docs/stable/torch.compiler_cudagraph_trees.html).
                for parameter in self._gradients.parameters:
                    if parameter.grad is not None and parameter not in copied_parameters:
                        parameter.grad = parameter.grad.clone()
                        copied_parameters.add(parameter)
            mark("backward")
            if len(micro_batches) == 1:
                return loss, parts
            for name, part in {"loss": loss, **{name: weigh(part) for name, part in parts.items()}}.items():
                value = part.detach()
                sums[name] = sums[name] + value if name in sums else value
        return sums.pop("loss"), sums

    def _clip(self, precision: Precision) -> tuple[Tensor, Tensor | None]:
        """Clip as ``torch.nn.utils.clip_grad_norm_`` does, bit for bit; return its norm.

        On a CPU, where the norm is known, also gradients measured before an Inf norm makes all of them NaN.
        """
        precision.unscale(self._optimizer)
        parameters = self._gradients.parameters
        norm = self._gradients.total_norm()
        gradients = None
        if not self._reads_later and not math.isfinite(norm.item()):
            gradients = self._measure()
        assert self._clip_norm is not None, "set by --clip-norm"
        nn.utils.clip_grads_with_norm_(parameters, self._clip_norm, norm)
        return norm, gradients

    def _update(
        self, precision: Precision, schedule: LrSchedule
    ) -> tuple[LearningRates, ScalerTensors | None]:
        """Change the weights, unless the scaler skips the step, and advance the schedule if it did not."""
        schedule.before_update(scaled=precision.scales)
        lrs = self._lrs.read(self._optimizer)
        scaler = precision.step(self._optimizer)
        schedule.after_update(scaler)
        return lrs, scaler

    def _measure_overflow(self, scaler: ScalerTensors) -> Tensor | None:
        """Measure the gradients of a skipped step on a CPU, which knows it before they are gone."""
        return self._measure() if not self._reads_later and scaler.found_inf.item() else None
