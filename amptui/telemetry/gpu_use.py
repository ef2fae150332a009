"""How busy the training GPU was in each precision, and the energy that it used."""

import math
from dataclasses import dataclass

from amptui.records.findings import ModulesTraced, XRayTaken
from amptui.records.run import PauseChanged, PhaseChanged, PrecisionChanged, RunResumed, RunStarted
from amptui.records.samples import DeviceSample
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
"""Records around which the GPU does something other than steps of one precision."""

MIN_SECONDS = 10.0
"""A precision's energy is shown once its samples cover so many seconds.

The counter moves every 20 to 100 ms (arXiv:2312.02741, and PETSc's manual page of
``PetscLogGpuEnergyMeter``), so each end of a row of samples is off by as much: 1% of ten seconds.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergySpent:
    """The energy between two samples of the training GPU, and the training samples processed meanwhile."""

    precision: str
    joules: float
    """Of the whole GPU, including its idle power and other programs."""
    seconds: float
    samples: int


@dataclass(slots=True, eq=False)
class EnergyWatch:
    """Attributes NVML's energy to the precision that trained meanwhile.

    Two readings in a row count if both found the same precision training and nothing interrupted training
    between them, however briefly. A reading that finds no new training samples waits for one that does: it
    fell into a long step, unless an interruption such as an X-ray is reported first.
    """

    _before: EnergySpent | None = None
    """The last reading of the counters, at ``seconds`` of the clock."""

    def interrupt(self) -> None:
        """Count nothing between the last reading and the next."""
        self._before = None

    def add(
        self, sample: DeviceSample, run: RunStarted | None, *, training: bool, samples_trained: int
    ) -> EnergySpent | None:
        """The energy spent since the last reading; None if it is unknown.

        ``training``: whether steps run. ``samples_trained`` is the total over all precisions; steps are
        reported a little late, which cancels out between two readings. A counter that is missing or went
        back, because the driver was reloaded, gives None.
        """
        before, self._before = self._before, None
        gpu = SessionView(run=run, device=sample).training_gpu
        if not training or sample.allocator is None or gpu is None or gpu.energy_joules is None:
            return None
        precision = sample.allocator.precision
        now = EnergySpent(
            precision=precision, joules=gpu.energy_joules, seconds=sample.time, samples=samples_trained
        )
        if before is None or before.precision != precision:
            self._before = now
            return None
        if now.samples == before.samples and now.joules >= before.joules:
            self._before = before  # in a step
            return None
        self._before = now
        joules, seconds = now.joules - before.joules, now.seconds - before.seconds
        samples = now.samples - before.samples
        if not (0.0 <= joules < math.inf and 0.0 <= seconds < math.inf and samples > 0):
            return None  # a counter or the clock went back or is not finite
        return EnergySpent(precision=precision, joules=joules, seconds=seconds, samples=samples)


@dataclass(slots=True, eq=False)
class EnergySum:
    """One precision's energy over the run."""

    _joules: float = 0.0
    _seconds: float = 0.0
    _samples: int = 0

    def add(self, spent: EnergySpent) -> None:
        """Add energy spent in this precision."""
        self._joules += spent.joules
        self._seconds += spent.seconds
        self._samples += spent.samples

    def joules_per_1000_samples(self) -> float | None:
        """Over everything counted; None until that covers ``MIN_SECONDS``."""
        return None if self._seconds < MIN_SECONDS else 1000 * self._joules / self._samples


@dataclass(slots=True, eq=False)
class UtilizationWatch:
    """Attributes NVML's utilization to the precision that was training.

    NVML's value is a mean over up to the last second. A sample counts if it and the one before it, a second
    earlier, found the same precision training: it then includes no switch, pause, validation or start.
    """

    _precision: str | None = None

    def add(
        self, sample: DeviceSample, run: RunStarted | None, *, training: bool
    ) -> tuple[str, float] | None:
        """The precision and the percentage of this sample; None if it does not count.

        ``training``: whether steps run. The precision is the allocator's, which was read at the same moment.
        """
        before, self._precision = self._precision, None
        if not training or sample.allocator is None:
            return None
        self._precision = sample.allocator.precision
        gpu = SessionView(run=run, device=sample).training_gpu
        if self._precision != before or gpu is None or gpu.utilization_percent is None:
            return None
        return self._precision, gpu.utilization_percent
