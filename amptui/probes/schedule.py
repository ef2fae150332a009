"""What is measured of one optimizer's steps: which of them, each measurement within its budget.

No measurement waits for the device: its numbers arrive a few steps later, through a readback of their own.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager

import torch

from amptui.probes.buffers import BufferProbe
from amptui.probes.float16_window import WindowProbe
from amptui.probes.flop_counter import FlopSchedule, StepInputs
from amptui.probes.gradients import GradientNorms, GradientProbe
from amptui.probes.module_trace import TraceProbe, infinite_names
from amptui.probes.probe import Moment, Probe, Sender
from amptui.probes.update_ratios import UpdateRatios
from amptui.recipe.precision import Precision
from amptui.recipe.trained import Trained
from amptui.records.run import Record


class Probes:
    """Decides when to measure, measures, and emits the results; used by the thread that trains.

    Of every optimizer it measures the gradients and the updates; :meth:`add` adds what knows the precision of
    a step. ``gradients`` measures them; without ``enabled`` only where a step itself has to know.
    ``optimizer``: under which name its updates are recorded.
    """

    window: WindowProbe
    trace: TraceProbe
    flops: FlopSchedule
    """Of these three there is none before :meth:`add`."""

    def __init__(
        self,
        device: torch.device,
        emit: Callable[[Record], object],
        *,
        gradients: GradientProbe | None = None,
        enabled: bool = True,
        optimizer: str = "",
    ) -> None:
        self._sender = Sender(device, emit)
        self.suppress_errors = self._sender.suppress_errors
        self.norms = GradientNorms(device, self.suppress_errors, gradients, enabled=enabled)
        self.updates = UpdateRatios(self._sender, optimizer)
        self._probes: list[Probe] = []
        self._enabled = False
        self.until = 1
        """The last step in which anything is to be measured, as planned so far."""

    def add(self, trained: Trained) -> None:
        """Measure what is ``trained`` with all probes from now on."""
        model, sender, gradients = trained.model, self._sender, self.norms.probe
        self._device = trained.device
        meant_infinite = infinite_names(model)
        self.flops = FlopSchedule(model, sender.emit)
        self.window = WindowProbe(gradients, sender, enabled=trained.probes)
        self.trace = TraceProbe(model, meant_infinite, sender)
        self._buffers = BufferProbe(model, meant_infinite, sender)
        self._probes = [self.window, self.trace, *([self._buffers] if trained.probes else [])]
        self._enabled = trained.probes

    def follow(self, trained: Trained) -> None:
        """Probe another model from now on; what was asked of the one before, and is not measured, too."""
        if trained.device != self._device:
            self.flush()
            self._sender.use(trained.device)
        window, trace = self.window, self.trace
        self.add(trained)
        self.window.answers, self.trace.answers = window.answers, trace.answers

    @contextmanager
    def around_step(self, step: int, precision: Precision, inputs: StepInputs | None) -> Iterator[None]:
        """The context of a step's forward and backward pass: traces modules and counts FLOPs where due.

        ``inputs`` are those of a warm-up step; None for other steps.
        """
        due = [probe for probe in self._probes if probe.is_due()]
        with ExitStack() as contexts:
            for probe in due:
                contexts.enter_context(probe.around())
            with self.flops.around(step, precision, inputs):
                yield
        for probe in due:
            probe.collect(Moment(step, precision))

    def plan(self, step: int, trouble_step: int, next_growth: int | None) -> int:
        """After ``step``: decide until when to measure; return after how many steps to look again.

        See :meth:`GradientNorms.plan`.
        """
        steps = self.norms.plan(step, trouble_step, next_growth)
        self.updates.plan(step)
        together = self.norms.probe.together  # when all ranks measure the window they agree on
        is_due = any(probe.is_due() for probe in self._probes if not (together and probe is self.window))
        self.until = max(step + is_due, self.norms.until, self.updates.until)
        return steps

    def after_backward(
        self, step: int, precision: Precision, *, assumed_scale: float, window: bool | None = None
    ) -> None:
        """Measure the float16 window of the gradients, as backward left them, and the buffers, where due.

        ``assumed_scale``: the loss scale that ``fp16`` would start with, for steps in other precisions.
        ``window``: whether all ranks have agreed to measure the window now; None to measure it when it is due
        here.
        """
        moment = Moment(step, precision, assumed_scale)
        for probe in self._probes:
            is_agreed = window if probe is self.window else None
            if probe.is_due() if is_agreed is None else is_agreed:
                probe.after_backward(moment)

    def between_steps(self, step: int, *, trouble_step: int, unexplained_step: int) -> None:
        """After trouble check the buffers and start a trace.

        ``trouble_step`` is the newest step with a NaN or Inf, ``unexplained_step`` the newest whose NaN or
        Inf is not just the scaler's search for its scale; 0 if there is none.
        """
        if self._enabled:
            self._buffers.check_after(trouble_step, step)
            self.trace.arm_after(unexplained_step)

    def explain(self, batches: Iterable[object], step: int, precision: str) -> None:
        """See :meth:`TraceProbe.explain`."""
        if self._enabled:
            self.trace.explain(batches, step, precision)

    def drain(self) -> None:
        """Deliver the numbers that have arrived."""
        self._sender.drain()

    def flush(self) -> None:
        """Deliver everything; waits for the device."""
        self._sender.flush()
