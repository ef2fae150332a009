"""What is trained for the benchmarks, alike under a plain loop and under the whole app."""

import os
from dataclasses import dataclass
from pathlib import Path

from tests.checkout import ROOT

WARM_UP_STEPS = 10
"""Steps that no rate counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One training; every side gets its data, seed, batch size, device and number of threads."""

    name: str
    model: str
    """As `amptui train` takes it."""
    timed_class: str
    """The same experiment in ``tests/benchmarks/timed.py``."""
    batch_size: int
    threads: int
    """OMP_NUM_THREADS."""
    min_rate_ratio: float
    """The aim: the app's step rate by the plain loop's."""
    turn_seconds: float
    """How long one side trains before the next does."""
    settle_part: float = 0.25
    """The first part of a turn, which does not count."""
    timed_steps: int = 3000
    """Of a run that is not timed in turns."""
    precision: str = "fp32"
    compiles: bool = False
    """Whether the app's model is compiled."""
    device: str = "auto"
    mnist: Path | None = None
    """Where MNIST's files are that a tutorial's loop reads."""

    @property
    def steps(self) -> int:
        """All steps of such a run, the warm-up's too."""
        return WARM_UP_STEPS + self.timed_steps

    @property
    def timed_model(self) -> str:
        """The experiment that stamps its steps, as `amptui train` takes it."""
        return f"{ROOT / 'tests' / 'benchmarks' / 'timed.py'}:{self.timed_class}"

    @property
    def options(self) -> list[str]:
        """What every side's command line says."""
        found = ["--batch-size", str(self.batch_size), "--precision", self.precision]
        return [*found, "--device", self.device]

    @property
    def environment(self) -> dict[str, str]:
        """What every side finds in its environment."""
        return {"OMP_NUM_THREADS": str(self.threads)}


def workloads(*, on_gpu: bool, quick: bool, precision: str = "fp32") -> dict[str, Workload]:
    """By name. ``quick`` shows that everything runs; its figures say little."""
    device = "cuda" if on_gpu else "cpu"
    found = (
        Workload(
            name="launch_bound",
            model=str(ROOT / "tests" / "benchmarks" / "launch_bound.py"),
            timed_class="TimedLaunchBound",
            batch_size=16,
            threads=1,
            min_rate_ratio=0.970,
            turn_seconds=0.6 if quick else 2.0,
            timed_steps=400 if quick else 3000,
            precision=precision,
            device=device,
        ),
        Workload(
            name="mnist_deep",
            model="mnist-deep",
            timed_class="TimedMnistDeep",
            batch_size=256 if on_gpu else 32,
            threads=len(os.sched_getaffinity(0)),  # OpenMP's own default
            min_rate_ratio=0.995,
            turn_seconds=2.0 if on_gpu else 6.0,
            precision=precision,
            device=device,
        ),
    )
    return {workload.name: workload for workload in found}
