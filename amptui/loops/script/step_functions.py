"""The functions that a script's steps are made of: probes run them again, and count their operations."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain

from torch import Tensor

from amptui.base.script_signals import is_from_signal_handler
from amptui.device.failure import explain, is_device_lost
from amptui.monitor.precision_switch import PrecisionSwitch
from amptui.probes.flop_counter import FlopCounter, StepInputs, is_anything_compiled, shapes_in
from amptui.probes.schedule import Probes
from amptui.probes.snapshot import Snapshot
from amptui.recipe.precision import Precision
from amptui.recipe.trained import Trained
from amptui.records.run import Severity

ComputeLoss = Callable[[], Tensor]
"""Runs a forward pass of the script's and returns its loss."""

Make = Callable[[Precision], None]
"""Makes a whole step."""

_WHAT = "FLOP/s"

_MAX_BATCHES = 1024
"""Of one step: a loop that loads more does not make its steps of functions any more."""


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """A forward pass of the script's, which a probe may run again but not copy."""

    compute_loss: ComputeLoss

    def __call__(self) -> Tensor:
        return self.compute_loss()

    def __deepcopy__(self, _memo: object) -> "Pass":
        return self


class CountedSteps:
    """Counts the operations of some of the script's own steps, all in a warm-up: counting makes them slower.

    A step computes the same while it is counted. Should its functions fail then, buffers and random
    generators are put back, it runs again uncounted, and nothing is counted any more.

    A count stands for steps of the same input shapes. They are known of the batches that the loop takes from
    the monitor; without these nothing is counted.
    """

    def __init__(self, own: Trained, probes: Probes, note: Callable[[Severity, str], None]) -> None:
        self._own = own
        self._probes = probes
        self._note = note
        self._shapes: list[tuple[tuple[int, ...], ...]] = []
        self._undo: Snapshot | None = None
        self._failed = self._ended = False
        self.inputs: StepInputs | None = None
        """Those of the step that is being made, if it is counted."""
        self.counter: FlopCounter | None = None
        """What counts now; to be paused where something else runs than the script's own operations."""
        self.wants_shapes = False
        """Whether the batches of the next step are to be shown to :meth:`see`."""

    def see(self, batch: object) -> None:
        """A batch was loaded for the next step; keeps its shapes only."""
        if len(self._shapes) == _MAX_BATCHES:
            self.wants_shapes = False
            return
        try:
            self._shapes.append(shapes_in(batch))
        except Exception:  # noqa: BLE001 - a class of the script's own may raise anything
            self._shapes.append(())

    def plan(self, step: int, switch: PrecisionSwitch, samples: int, batches: int, *, warms_up: bool) -> None:
        """Before ``step``, of so many ``samples`` and ``batches``: decide whether to count it.

        After the warm-up, check that its shapes are not new.
        """
        shapes, self._shapes, self.inputs = self._shapes, [], None
        self.wants_shapes = warms_up and not self._ended
        if self._ended or not shapes or len(shapes) != batches or not all(shapes):
            return
        flops, inputs = self._probes.flops, StepInputs(samples, batches, tuple(chain(*shapes)))
        if not warms_up:
            flops.check(step, inputs)
            return
        # A step on trial that fails is the precision's failure; other ranks cannot run a step again.
        may_count = step > 1 and switch.can_retry and not switch.on_trial
        if may_count and flops.is_due(switch.precision, inputs) and not is_anything_compiled():
            with self._probes.suppress_errors(_WHAT):
                self._undo = Snapshot(self._own.model, self._own.device)
                self._failed, self.inputs = False, inputs

    @contextmanager
    def around_passes(self, step: int, precision: Precision) -> Iterator[None]:
        """The context of a step's forward and backward passes, which are counted."""
        inputs = self.inputs
        with self._probes.suppress_errors(_WHAT):
            self.counter = FlopCounter(self._own.model)
        counter = self.counter
        if counter is None:
            yield
            return
        try:
            with counter:
                yield
        except Exception:
            self._failed = True
            raise
        finally:
            self.counter = None
        if inputs is None or inputs is not self.inputs:
            return  # the watching has ended before the passes
        with self._probes.suppress_errors(_WHAT):
            self._probes.flops.add(counter.record(step=step, precision=precision.name), inputs)

    def attempt(self, make: Make, precision: Precision) -> None:
        """Call ``make``; if its passes fail while they are counted, again without."""
        undo, self._undo = self._undo, None
        try:
            make(precision)
            return
        except Exception as error:
            if undo is None or not self._failed or is_device_lost(error) or is_from_signal_handler(error):
                raise
            why = explain(error, doing="while operations were counted", batch_size=None).what
        finally:
            self.inputs = None
        # Outside the handler: the traceback would keep the failed pass's tensors alive.
        self._ended, self.wants_shapes = True, False
        undo.restore()
        make(precision)
        self._note("warning", f"no {_WHAT}: {why}")  # else it was the script's own error
