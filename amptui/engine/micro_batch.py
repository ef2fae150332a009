"""A batch of an optimizer step, and what it counts for among the others of that step."""

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from torch import Tensor

ComputeLoss = Callable[[], object]
"""Runs the forward pass; returns what :meth:`amptui.Experiment.loss` may return."""


class MicroBatch(NamedTuple):
    """A batch of an optimizer step; most steps have one."""

    compute_loss: ComputeLoss
    samples: int
    batch: object
    """What the loss is computed of."""


def weights(samples: Sequence[int]) -> list[Callable[[Tensor], Tensor]]:
    """One function per batch that weighs its mean; the sum is the mean over all ``samples``.

    The means of equal batches are divided by their number, bit for bit as in a handwritten loop.
    """
    count, total = len(samples), sum(samples)
    if count == 1:
        return [_unchanged]
    if all(each * count == total for each in samples):
        return [partial(_divide, count)] * count
    return [partial(operator.mul, each / total) for each in samples]


def _unchanged(mean: Tensor) -> Tensor:
    return mean


def _divide(count: int, mean: Tensor) -> Tensor:
    return mean / count
