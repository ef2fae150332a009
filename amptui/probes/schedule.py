"""The probes of one training: which of them measure which steps, each within its budget.

No measurement waits for the device: its numbers arrive a few steps later, through a readback of their own.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from amptui.probes.buffers import BufferProbe
from amptui.probes.float16_window import WindowProbe
from amptui.probes.flop_counter import FlopSchedule, StepInputs
from amptui.probes.gradients import GradientProbe
from amptui.probes.module_trace import TraceProbe, infinite_names
from amptui.probes.probe import Moment, Probe, Sender
from amptui.recipe.precision import Precision
from amptui.recipe.trained import Trained
from amptui.records.run import Record


class Probes:
    """Decides when to measure, measures, and emits the results; used by the thread that trains."""

    def __init__(self, trained: Trained, gradients: GradientProbe, emit: Callable[[Record], object]) -> None:
        self._sender = Sender(trained.device, emit)
        self.suppress_errors = self._sender.suppress_errors
        self._begin(trained, gradients)

    def _begin(self, trained: Trained, gradients: GradientProbe) -> None:
        model, sender = trained.model, self._sender
        self._device, self._together = trained.device, gradients.together
        meant_infinite = infinite_names(model)
        self.flops = FlopSchedule(model, sender.emit)
        self.window = WindowProbe(gradients, sender, enabled=trained.probes)
        self.trace = TraceProbe(model, meant_infinite, sender)
        self._buffers = BufferProbe(model, meant_infinite, sender)
        self._probes: list[Probe] = [self.window, self.trace, *([self._buffers] if trained.probes else [])]
        self._enabled = trained.probes

    def follow(self, trained: Trained, gradients: GradientProbe) -> None:
        """Probe another model from now on; what was asked of the one before, and is not measured, too."""
        if trained.device != self._device:
            self.flush()
            self._sender.use(trained.device)
        window, trace = self.window, self.trace
        self._begin(trained, gradients)
        self.window.answers = window.answers
        for answer in trace.open_answers():
            self.trace.arm(answer)

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

    @property
    def steps_due(self) -> int:
        """How many of the next steps are measured."""
        if self.trace.steps_left:
            return self.trace.steps_left
        others = (probe for probe in self._probes if not (self._together and probe is self.window))
        return int(any(probe.is_due() for probe in others))

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
        """Deliver the numbers that have arrived; after trouble check the buffers and start a trace.

        ``trouble_step`` is the newest step with a NaN or Inf, ``unexplained_step`` the newest whose NaN or
        Inf is not just the scaler's search for its scale; 0 if there is none.
        """
        self._sender.drain()
        if self._enabled:
            self._buffers.check_after(trouble_step, step)
            self.trace.arm_after(unexplained_step)

    def flush(self) -> None:
        """Deliver everything; waits for the device."""
        self._sender.flush()
