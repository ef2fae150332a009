"""How busy the training GPU was in each precision, and the energy that it used."""

import math
from dataclasses import dataclass, replace

from amptui.records.findings import ModulesTraced, XRayTaken
from amptui.records.run import PauseChanged, PhaseChanged, PrecisionChanged, RunResumed, RunStarted
from amptui.records.samples import DeviceSample
from amptui.telemetry.view import training_gpu

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
class GpuUse:
    """What a sample says of the training GPU while one precision trained."""

    precision: str
    utilization_percent: float | None = None
    """NVML's, a mean over up to the last second."""
    joules: float = 0.0
    """Of the whole GPU, including its idle power and other programs, as are the next two."""
    seconds: float = 0.0
    samples: int = 0
    """Training samples meanwhile; 0 if the energy is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    precision: str
    joules: float | None
    time: float
    samples: int


@dataclass(slots=True, eq=False)
class GpuWatch:
    """Attributes NVML's utilization and energy to the precision that trained meanwhile.

    A sample counts if it and the one before it, a second earlier, found the same precision training, and
    nothing interrupted that between them, however briefly. Energy that finds no new training samples waits
    for a sample that does: it fell into a long step, unless an interruption such as an X-ray comes first.
    """

    _before: _Reading | None = None

    def interrupt(self) -> None:
        """Count nothing between the last sample and the next."""
        self._before = None

    def add(
        self, sample: DeviceSample, run: RunStarted | None, *, training: bool, samples_trained: int
    ) -> GpuUse | None:
        """What the GPU did since the last sample; None if that is unknown.

        ``training``: whether steps run. ``samples_trained`` is the total over all precisions; steps are
        reported a little late, which cancels out between two samples. A counter that is missing or went
        back, because the driver was reloaded, tells no energy.
        """
        before, self._before = self._before, None
        gpu = training_gpu(run, sample)
        if not training or sample.allocator is None or gpu is None:
            return None
        precision = sample.allocator.precision  # read at the same moment
        now = _Reading(
            precision=precision, joules=gpu.energy_joules, time=sample.time, samples=samples_trained
        )
        self._before = now
        if before is None or before.precision != precision:
            return None
        use = GpuUse(precision=precision, utilization_percent=gpu.utilization_percent)
        if now.joules is None or before.joules is None:
            return use
        joules, seconds = now.joules - before.joules, now.time - before.time
        samples = now.samples - before.samples
        if samples == 0 and joules >= 0.0:
            self._before = before  # in a step
        elif samples > 0 and 0.0 <= joules < math.inf and 0.0 <= seconds < math.inf:
            return replace(use, joules=joules, seconds=seconds, samples=samples)
        return use
