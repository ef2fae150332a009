"""The step times of one precision as a bounded number of block medians, however long the run."""

from collections.abc import Iterable
from math import exp, log
from statistics import fmean, median

from amptui.estimate import BLOCK_STEPS, MOST_BLOCKS


class StepBlocks:
    """Cuts counted steps into blocks: of ``BLOCK_STEPS`` at first, twice as long whenever they get many.

    At ``2 * MOST_BLOCKS`` each two neighbours become one. A longer block is the geometric mean of the
    medians of its ``BLOCK_STEPS`` steps: ratios are taken between mean logarithms, and those stay what they
    were whenever blocks are joined. Steps from both sides of a switch may share a block.
    """

    _seconds: list[float]
    """Of the steps that make no median yet."""
    _medians: list[float]
    """Logarithms of the medians that make no block yet."""
    _blocks: list[float]
    """Logarithms, oldest first."""
    _medians_a_block: int

    def __init__(self) -> None:
        self._seconds = []
        self._medians = []
        self._blocks = []
        self._medians_a_block = 1

    def add(self, step_seconds: Iterable[float]) -> None:
        """Take in the seconds of steps in their order; all are positive and finite."""
        self._seconds.extend(step_seconds)
        whole = len(self._seconds) // BLOCK_STEPS * BLOCK_STEPS
        for start in range(0, whole, BLOCK_STEPS):
            self._add_median(log(median(self._seconds[start : start + BLOCK_STEPS])))
        del self._seconds[:whole]

    def medians(self) -> list[float]:
        """Seconds of a step in each block, oldest first; fewer than ``2 * MOST_BLOCKS``."""
        return [exp(block) for block in self._blocks]

    def _add_median(self, median_log: float) -> None:
        self._medians.append(median_log)
        if len(self._medians) < self._medians_a_block:
            return
        self._blocks.append(fmean(self._medians))
        self._medians.clear()
        if len(self._blocks) == 2 * MOST_BLOCKS:
            self._blocks = [fmean(self._blocks[i : i + 2]) for i in range(0, len(self._blocks), 2)]
            self._medians_a_block *= 2
