"""What can be asked for GPU figures: the protocol, and the probe of a machine that has none."""

from typing import Protocol

from amptui.records import GpuSample


class Probe(Protocol):
    """A source of GPU figures. None of its methods raises: what cannot be measured is None."""

    @property
    def note(self) -> str:
        """Why GPUs or some of their figures are missing as of the last sample, in one line; else ``""``."""
        ...

    def sample(self) -> tuple[GpuSample, ...]:
        """One look at every GPU. It may take as long as the driver does; one thread calls it."""
        ...

    def close(self) -> None:
        """Let go of the driver's library; the probe is not used afterwards."""
        ...


class NullProbe:
    """The probe where there is nothing to ask; ``note`` says why."""

    def __init__(self, note: str) -> None:
        self.note = note

    def sample(self) -> tuple[GpuSample, ...]:
        """No GPUs."""
        return ()

    def close(self) -> None:
        """Nothing to let go of."""
