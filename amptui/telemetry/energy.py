"""The energy that the training GPU took for one precision's steps and for nothing else."""

import math
from dataclasses import dataclass

from amptui.findings import ModulesTraced, XRayTaken
from amptui.records import (
    DeviceSample,
    PauseChanged,
    PhaseChanged,
    PrecisionChanged,
    RunResumed,
    RunStarted,
)
from amptui.telemetry.view import SessionView

INTERRUPTIONS = (
    RunStarted,
    RunResumed,
    PhaseChanged,
    PrecisionChanged,
    PauseChanged,
    ModulesTraced,
    XRayTaken,
)
"""The records beside which a GPU does something else than the steps of one precision."""

MIN_SECONDS = 10.0
"""What the looks of a precision must amount to before its energy is told.

The counter moves every 20 to 100 ms (arXiv:2312.02741, and PETSc's manual page of
``PetscLogGpuEnergyMeter``), so each end of a row of looks is off by as much: 1% of ten seconds.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergySpent:
    """What the training GPU took between two looks, and the samples that were trained meanwhile."""

    precision: str
    joules: float
    """Of the whole GPU: what it takes when idle is in it, and what other programs run there."""
    seconds: float
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """One look at the counters."""

    time: float
    precision: str
    joules: float
    samples: int


@dataclass(slots=True, eq=False)
class EnergyWatch:
    """Attributes NVML's energy to the precision that trained meanwhile.

    Two looks in a row count when both found the same precision training, and when nothing interrupted the
    training between them, be it shorter than the time between two looks. Looks that find no more samples
    wait for one that does: it was a long step, unless an interruption, an X-ray say, is told before it.
    """

    _before: _Look | None = None

    def interrupt(self) -> None:
        """Count nothing from the look before to the next one."""
        self._before = None

    def add(
        self, sample: DeviceSample, run: RunStarted | None, *, training: bool, samples_trained: int
    ) -> EnergySpent | None:
        """What was spent since the look before; None where that cannot be said.

        ``training`` tells whether steps run. ``samples_trained`` counts up over all precisions; that steps
        are told a little late cancels out between two looks. A counter that is missing or that went back,
        because the driver was loaded anew, says nothing.
        """
        before, self._before = self._before, None
        gpu = SessionView(run=run, device=sample).training_gpu
        if not training or sample.allocator is None or gpu is None or gpu.energy_joules is None:
            return None
        precision = sample.allocator.precision
        now = _Look(time=sample.time, precision=precision, joules=gpu.energy_joules, samples=samples_trained)
        if before is None or before.precision != precision:
            self._before = now
            return None
        in_a_step = now.samples == before.samples and now.joules >= before.joules
        self._before = before if in_a_step else now
        return None if in_a_step else _spent(before, now)


@dataclass(slots=True, eq=False)
class EnergySum:
    """One precision's energy over the run."""

    _joules: float = 0.0
    _seconds: float = 0.0
    _samples: int = 0

    def add(self, spent: EnergySpent) -> None:
        """Count what was spent in this precision."""
        self._joules += spent.joules
        self._seconds += spent.seconds
        self._samples += spent.samples

    def joules_per_1000_samples(self) -> float | None:
        """Over all that was counted; None until it amounts to ``MIN_SECONDS``."""
        return None if self._seconds < MIN_SECONDS else 1000 * self._joules / self._samples


def _spent(before: _Look, now: _Look) -> EnergySpent | None:
    """The differences; None if a counter or the clock went back, or holds no number."""
    joules, seconds = now.joules - before.joules, now.time - before.time
    if not (0.0 <= joules < math.inf and 0.0 <= seconds < math.inf and now.samples > before.samples):
        return None
    return EnergySpent(
        precision=now.precision, joules=joules, seconds=seconds, samples=now.samples - before.samples
    )
