"""Decides which steps' operations are counted: one of each precision and input shape, a warm-up step."""

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple

from torch import nn

from amptui.engine.precision import Precision
from amptui.engine.probes.flop_counter import is_compiled
from amptui.engine.probes.operators import tensors_in
from amptui.records.findings import FlopsCounted

MAX_SHAPES = 4
"""Counts of steps of one size in one precision: if so many agree, it is not the input that varies."""

MAX_SIZES = 4
"""Sizes of steps that are counted in one precision; most runs have a full step and an epoch's last one."""


class StepInputs(NamedTuple):
    """The batches of one step, as far as its number of operations depends on them."""

    samples: int
    batches: int
    shapes: tuple[tuple[int, ...], ...]
    """Of all tensors in the batches, in order."""

    @property
    def size(self) -> tuple[int, int]:
        """What is known of every step: samples and batches."""
        return self.samples, self.batches


def step_inputs(batches: Iterable[tuple[int, object]]) -> StepInputs:
    """The inputs of a step of these batches, each with its number of samples."""
    samples, nests = zip(*batches, strict=True)
    return StepInputs(sum(samples), len(samples), tuple(tuple(each.shape) for each in tensors_in(nests)))


class FlopSchedule:
    """Remembers which inputs were counted, and notices that others of the same size have other shapes.

    A count stands for the steps of its size. If two steps of one size and precision come to different numbers
    of operations, or a step after warm-up has a shape that was not counted, no count does.
    """

    def __init__(self, model: nn.Module, emit: Callable[[FlopsCounted], object]) -> None:
        self._emit = emit
        self._counts = not is_compiled(model)
        self._counts_eager = not is_compiled(model, inside=True)
        self._flops: dict[tuple[str, StepInputs], int] = {}
        self._newest: FlopsCounted | None = None
        self._vary = False

    def is_due(self, precision: Precision, inputs: StepInputs) -> bool:
        """Whether to count a step, which must be a warm-up step: counting makes it slower."""
        if self._vary or not (self._counts_eager if precision.eager else self._counts):
            return False
        counted = [each for name, each in self._flops if name == precision.name]
        if inputs in counted:
            return False
        of_size = sum(each.size == inputs.size for each in counted)
        return of_size < MAX_SHAPES if of_size else len({each.size for each in counted}) < MAX_SIZES

    def add(self, found: FlopsCounted, inputs: StepInputs) -> None:
        """Emit the count of a step."""
        others = {
            flops
            for (name, each), flops in self._flops.items()
            if name == found.precision and each.size == inputs.size
        }
        self._flops[found.precision, inputs] = found.flops
        self._vary = self._vary or bool(others - {found.flops})
        self._newest = replace(found, samples=inputs.samples, shapes_vary=self._vary)
        self._emit(self._newest)

    def check(self, step: int, inputs: StepInputs) -> None:
        """Look at a step that is not counted."""
        shapes = {each.shapes for _, each in self._flops if each.size == inputs.size}
        if self._vary or self._newest is None or not 0 < len(shapes) < MAX_SHAPES or inputs.shapes in shapes:
            return
        self._vary = True
        self._emit(replace(self._newest, time=time.time(), step=step, shapes_vary=True))
