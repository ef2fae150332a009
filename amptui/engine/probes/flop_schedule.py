"""Decides in which steps operations are counted: one warm-up step for each precision and input shape."""

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple

from torch import nn

from amptui.engine.precision import Precision
from amptui.engine.probes.flop_counter import is_compiled
from amptui.engine.probes.operators import tensors_in
from amptui.records.findings import FlopsCounted
from amptui.records.run import FP8_PRECISIONS, Note, base_precision

MAX_SHAPES = 4
"""How many shapes of one size and precision are counted: if all come to the same operations, others will
too."""

MAX_SIZES = 4
"""How many sizes of steps are counted in one precision; most runs have two, a full step and an epoch's
last."""


class StepInputs(NamedTuple):
    """What the number of a step's operations depends on."""

    samples: int
    batches: int
    shapes: tuple[tuple[int, ...], ...]
    """Of all tensors in the batches, in order."""

    @property
    def size(self) -> tuple[int, int]:
        """Samples and batches: what every step records."""
        return self.samples, self.batches


def step_inputs(batches: Iterable[tuple[int, object]]) -> StepInputs:
    """The inputs of a step of these batches, each with its number of samples."""
    samples, nests = zip(*batches, strict=True)
    return StepInputs(sum(samples), len(samples), shapes_in(nests))


def shapes_in(nest: object) -> tuple[tuple[int, ...], ...]:
    """The shapes of all tensors in nested tuples, lists and mappings, in order."""
    return tuple(tuple(tensor.shape) for tensor in tensors_in(nest))


class FlopSchedule:
    """Remembers the counted inputs, and whether one count can stand for all steps of its size.

    It cannot if two steps of one size and precision come to different numbers of operations, or if a step
    after the warm-up has a shape that was not counted.
    """

    def __init__(self, model: nn.Module, emit: Callable[[FlopsCounted | Note], object]) -> None:
        self._emit = emit
        self._counts = not is_compiled(model)
        self._counts_eager = not is_compiled(model, inside=True)
        self._flops: dict[tuple[str, StepInputs], int] = {}
        self._newest: FlopsCounted | None = None
        self._vary = False
        self._no_float8_reported = False

    def is_due(self, precision: Precision, inputs: StepInputs) -> bool:
        """Whether to count a step, which must be a warm-up step: counting makes it slower."""
        if self._vary or not (self._counts_eager if precision.eager else self._counts):
            return False
        earlier_inputs = [earlier for name, earlier in self._flops if name == precision.name]
        if inputs in earlier_inputs:
            return False
        sizes = [earlier.size for earlier in earlier_inputs]
        of_size = sizes.count(inputs.size)
        return of_size < MAX_SHAPES if of_size else len(set(sizes)) < MAX_SIZES

    def add(self, count: FlopsCounted, inputs: StepInputs) -> None:
        """Emit the count of a step; and say once if it was to run in FP8, and nothing was multiplied so."""
        others = {
            flops
            for (name, earlier), flops in self._flops.items()
            if name == count.precision and earlier.size == inputs.size
        }
        self._flops[count.precision, inputs] = count.flops
        self._vary = self._vary or bool(others - {count.flops})
        self._newest = replace(count, samples=inputs.samples, shapes_vary=self._vary)
        self._emit(self._newest)
        is_float8 = base_precision(count.precision) not in FP8_PRECISIONS or "float8" in count.flops_by_type
        if not is_float8 and not self._no_float8_reported:
            self._no_float8_reported = True
            text = (
                f"no float8 layer ran in step {count.step:,}: are Linear layers called, and within autocast?"
            )
            self._emit(Note(time=time.time(), severity="warning", text=text))

    def check(self, step: int, inputs: StepInputs) -> None:
        """Check the inputs of a step that is not counted."""
        shapes = {earlier.shapes for _, earlier in self._flops if earlier.size == inputs.size}
        if self._vary or self._newest is None or not 0 < len(shapes) < MAX_SHAPES or inputs.shapes in shapes:
            return
        self._vary = True
        self._emit(replace(self._newest, time=time.time(), step=step, shapes_vary=True))
