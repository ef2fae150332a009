"""Which of the sampler's looks at the training GPU tell of one precision's steps and of nothing else."""

from dataclasses import dataclass

from amptui.records import DeviceSample, RunStarted
from amptui.telemetry.view import SessionView


@dataclass(slots=True, eq=False)
class UtilizationWatch:
    """Attributes NVML's utilization to the precision that trained meanwhile.

    NVML's number is a mean over up to a second that lies behind. A look counts when this one and the one
    before it, a second earlier, found the same precision training: no switch, pause, validation or start
    is in it then.
    """

    _precision: str | None = None

    def add(
        self, sample: DeviceSample, run: RunStarted | None, *, training: bool
    ) -> tuple[str, float] | None:
        """The precision and the percent that this look counts for; None if it counts for none.

        ``training`` tells whether steps run. The precision is the allocator's word, which is of the sample's
        own moment.
        """
        before, self._precision = self._precision, None
        if not training or sample.allocator is None:
            return None
        self._precision = sample.allocator.precision
        gpu = SessionView(run=run, device=sample).training_gpu
        if self._precision != before or gpu is None or gpu.utilization_percent is None:
            return None
        return self._precision, gpu.utilization_percent
