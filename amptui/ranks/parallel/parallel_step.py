"""Optimizer steps of one rank among several."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import Tensor

from amptui.engine.optimizer_step import OptimizerStep
from amptui.engine.precision import Precision
from amptui.engine.prepared import Prepared
from amptui.engine.step_row import StepTensors


class ParallelStep(OptimizerStep):
    """Optimizer steps that report the loss of the global batch."""

    def __init__(self, prepared: Prepared, *given: Any) -> None:
        super().__init__(prepared, *given)
        assert prepared.parallel is not None, "there are other ranks"
        self._parallel = prepared.parallel

    def make(self, precision: Precision, *given: Any, **named: Any) -> StepTensors:
        self._parallel.compiles_first = False  # a resumed run's first step
        self._parallel.own_overflows.begin(None, scaled=precision.scales)
        return self._with_mean_loss(super().make(precision, *given, **named))

    def make_observed(self, precision: Precision, *given: Any, step: int, **named: Any) -> StepTensors:
        self._parallel.own_overflows.begin(step, scaled=precision.scales)
        return self._with_mean_loss(super().make_observed(precision, *given, step=step, **named))

    def _forward_backward(self, *given: Any) -> tuple[Tensor, Mapping[str, Tensor]]:
        run, parallel = partial(super()._forward_backward, *given), self._parallel
        undone, first = parallel.on_trial, parallel.compiles_first
        parallel.on_trial = parallel.compiles_first = False
        return parallel.try_alone(run, undone=undone) if undone or first else run()

    def _with_mean_loss(self, made: StepTensors) -> StepTensors:
        self._parallel.own_overflows.keep(made.loss)
        mean = self._parallel.take_mean_loss()
        return made if mean is None else made._replace(loss=mean)
