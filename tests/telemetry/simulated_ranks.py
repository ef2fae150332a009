"""A distributed run made up by a seeded generator: noisy ranks, one of which may be slow."""

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from amptui.records.ranks import RankPlace, RanksSampled, RanksStarted
from amptui.records.run import Record
from tests.telemetry.record_samples import run, step

Slow = Literal["", "input", "compute", "clocks"]

STEP_SECONDS = 0.012
"""Of equal ranks, without noise: data wait 2%, local compute 80%, the rest is waiting for communication."""


class SimulatedRanks:
    """Samples of ``world_size`` ranks, once a second.

    Each second's means have independent lognormal noise, and now and then a hiccup on a rank; ranks differ by
    ``spread`` for good. ``slow`` makes rank ``slow_rank`` slower by a quarter of a step. DDP makes the step
    time of all that of the slowest.
    """

    def __init__(
        self,
        world_size: int,
        seed: int,
        *,
        slow: Slow = "",
        slow_rank: int = 0,
        noise: float = 0.03,
        spread: float = 0.01,
        fsdp: bool = False,
    ) -> None:
        self._random = np.random.default_rng(seed)
        self.world_size, self._noise, self._fsdp = world_size, noise, fsdp
        self._compute = STEP_SECONDS * 0.8 * (1 + spread * self._random.standard_normal(world_size))
        self._data = np.full(world_size, STEP_SECONDS * 0.02)
        self._clocks = np.full(world_size, 1980.0)
        self._throttled: dict[str, tuple[int, ...]] = {}
        if slow == "input":
            self._data[slow_rank] += 0.25 * STEP_SECONDS
        elif slow:
            self._compute[slow_rank] += 0.25 * STEP_SECONDS
        if slow == "clocks":
            self._clocks[slow_rank] *= 0.75
            self._throttled = {"thermal (hw)": (slow_rank,)}
        self._skipped = 0

    def started(self, time: float = 100.0) -> RanksStarted:
        """Where the ranks run: hosts of 8 GPUs each."""
        return RanksStarted(
            time=time,
            ranks=tuple(
                RankPlace(
                    rank=rank,
                    host=f"node-{rank // 8 + 1}",
                    device=f"cuda:{rank % 8}",
                    device_name="NVIDIA H200",
                    gpu_uuid=f"GPU-{rank:08}",
                    memory_total_bytes=150_754_820_096,
                )
                for rank in range(self.world_size)
            ),
        )

    def samples(self, seconds: int, time: float = 100.0) -> Iterator[RanksSampled]:
        """A sample for each second, with all ranks."""
        step = 0
        for second in range(1, seconds + 1):
            compute = self._compute * self._lognormal()
            compute[self._random.random(self.world_size) < 0.02] *= 2.0
            data = self._data * self._lognormal()
            seconds_of_step = float((compute + data).max()) + 0.18 * STEP_SECONDS
            steps = max(1, round(1 / seconds_of_step))
            step += steps
            self._skipped += int(self._random.random() < 0.02)
            yield RanksSampled(
                time=time + second,
                step=step,
                steps=steps,
                world_size=self.world_size,
                step_seconds=_floats(np.full(self.world_size, seconds_of_step)),
                data_seconds=_floats(data),
                compute_seconds=() if self._fsdp else _floats(compute),
                peak_allocated_bytes=(int(61.2 * 2**30),) * self.world_size,
                memory_used_bytes=tuple(
                    int(gib * 2**30) for gib in 66 + 4 * self._random.random(self.world_size)
                ),
                grad_norm=_floats(np.full(self.world_size, 1.25 * self._random.lognormal(0, 0.05))),
                skipped=(self._skipped,) * self.world_size,
                overflowed=(0,) * self.world_size,
                sm_clock_mhz=_floats(15 * np.round(self._clocks * self._lognormal(0.01) / 15)),
                throttled=self._throttled,
            )

    def _lognormal(self, noise: float | None = None) -> Any:
        return self._random.lognormal(0, self._noise if noise is None else noise, self.world_size)


def _floats(values: Any) -> tuple[float, ...]:
    return tuple(float(f"{value:.4g}") for value in values)  # as rank 0 records them


def run_of(
    simulated: SimulatedRanks, seconds: int, *, time: float = 100.0, **changes: Any
) -> Iterator[Record]:
    """A run of these ranks under DDP: a step record for each step, and a sample each second."""
    size = simulated.world_size
    parallel = {"world_size": size, "parallel": "ddp", "global_batch_size": 256 * size}
    yield run(**({"time": time, "gpu_uuid": "GPU-00000000", "precision": "fp16"} | parallel | changes))
    yield simulated.started(time)
    last = 0
    for sample in simulated.samples(seconds, time):
        for number in range(last + 1, sample.step + 1):
            part = (number - last) / sample.steps
            yield step(
                number,
                time=sample.time - 1 + part,
                precision="fp16",
                loss=2.3 / (1 + number / 200),
                samples=256 * size,
                step_seconds=sample.step_seconds[0],
                data_seconds=sample.data_seconds[0],
                loss_scale=65536.0,
                growth_tracker=number,
                settling=number <= 20,
            )
        last = sample.step
        yield sample
