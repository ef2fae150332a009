"""Attributes samples of GPU utilization to the precision that was training."""

from dataclasses import dataclass

from amptui.records import RunStarted
from amptui.samples import DeviceSample
from amptui.telemetry.view import SessionView


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
