"""What is trained for the benchmarks, alike under a plain loop and under the whole app."""

import os
from dataclasses import dataclass

from tests.checkout import ROOT

WARM_UP_STEPS = 10
"""Steps that no rate counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One training; both sides get its data, seed, batch size, device and number of threads."""

    name: str
    model: str
    """As `amptui train` takes it."""
    batch_size: int
    timed_steps: int
    threads: int
    """OMP_NUM_THREADS."""
    least_rate_ratio: float
    """The aim: the app's step rate by the plain loop's."""

    @property
    def steps(self) -> int:
        """All steps, the warm-up's too."""
        return WARM_UP_STEPS + self.timed_steps

    @property
    def environment(self) -> dict[str, str]:
        """What both sides find in their environment."""
        return {"OMP_NUM_THREADS": str(self.threads)}


def workloads(*, on_gpu: bool, quick: bool) -> dict[str, Workload]:
    """By name. ``quick`` shows that everything runs; its figures say little."""
    mnist_steps, launch_steps = (1000, 3000) if on_gpu else (25, 3000)
    if quick:
        mnist_steps, launch_steps = (200 if on_gpu else 3), 400
    found = (
        Workload(
            name="mnist_deep",
            model="mnist-deep",
            batch_size=256 if on_gpu else 32,
            timed_steps=mnist_steps,
            threads=len(os.sched_getaffinity(0)),  # OpenMP's own default
            least_rate_ratio=0.995,
        ),
        Workload(
            name="launch_bound",
            model=str(ROOT / "tests" / "recipes" / "launch_bound.py"),
            batch_size=16,
            timed_steps=launch_steps,
            threads=1,
            least_rate_ratio=0.985,
        ),
    )
    return {workload.name: workload for workload in found}
