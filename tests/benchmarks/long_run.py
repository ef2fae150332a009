"""The records of a long run as a quick training writes them: blocks of steps, and what comes between."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from amptui.records.run import EpochFinished, PrecisionChanged, Record, RunFinished, Validation
from amptui.records.steps import Steps
from tests.telemetry.record_samples import backoff, device, growth, run, skip

BLOCK_STEPS = 32
"""Steps in one look of the recorder, of which there are a dozen a second."""

STEP_SECONDS = 0.0026

WARM_UP_STEPS = 10

GROWTH_INTERVAL = 2000

FIRST_SCALE = 65536.0

EPOCHS = 20

FP32_SHARE = 0.3
"""The run begins in FP32 and goes on in fp16."""


def records(steps: int, *, seed: int = 0, ends: bool = True) -> Iterator[Record]:
    """All records of a run of so many steps, in order; without the last one unless it ``ends``."""
    return _LongRun(steps, np.random.default_rng(seed)).records(ends=ends)


@dataclass(slots=True)
class _LongRun:
    """A run under way. The scale doubles when it may, and the step after that overflows."""

    steps: int
    rng: np.random.Generator
    time: float = 100.0
    step: int = 1
    """The next one."""
    sampled: float = 0.0
    scale: float = FIRST_SCALE
    tracker: int = 0

    def records(self, *, ends: bool) -> Iterator[Record]:
        of_epoch = -(-self.steps // EPOCHS)
        yield run(steps_per_epoch=of_epoch, total_epochs=EPOCHS, total_steps=self.steps)
        switch = int(FP32_SHARE * self.steps) + 1
        while self.step <= self.steps:
            if self.step == switch:
                yield PrecisionChanged(time=self.time, step=self.step, previous="fp32", current="fp16")
            yield from self._look(switch, of_epoch)
        if ends:
            yield RunFinished(time=self.time, steps=self.steps, seconds=self.time - 100.0, reason="done")

    def _look(self, switch: int, of_epoch: int) -> Iterator[Record]:
        """One block, and the records of its last step."""
        first, scaled = self.step, self.step >= switch
        epoch = 1 + (first - 1) // of_epoch
        warm = switch + WARM_UP_STEPS if scaled else 1 + WARM_UP_STEPS
        overflows = scaled and self.scale > FIRST_SCALE
        bounds = [first + BLOCK_STEPS, self.steps + 1, epoch * of_epoch + 1]
        bounds += [bound for bound in (switch, warm) if bound > first]
        if scaled:
            bounds.append(first + (1 if overflows else GROWTH_INTERVAL - self.tracker))
        count = min(bounds) - first
        block = self._block(count, epoch, scaled=scaled, settling=first < warm, skipped=overflows)
        self.time, self.step = block.time, first + count
        yield block
        if scaled:
            yield from self._scale_changes(block.last_step, count, overflows=overflows)
        if self.time - self.sampled >= 1.0:
            self.sampled = self.time
            yield device(self.time, block.precision, 2 * 2**30, 80.0, 300.0 * self.time)
        if block.last_step == epoch * of_epoch:
            yield EpochFinished(
                time=self.time,
                step=block.last_step,
                epoch=epoch,
                seconds=of_epoch * STEP_SECONDS,
                mean_loss=1.0,
                validation=Validation(loss=1.0 / epoch, accuracy=0.5, samples=1000),
            )

    def _scale_changes(self, step: int, count: int, *, overflows: bool) -> Iterator[Record]:
        if overflows:
            yield skip(step, loss_scale=self.scale)
            yield backoff(step, self.scale)
            self.scale, self.tracker = self.scale / 2, 0
            return
        self.tracker += count
        if self.tracker == GROWTH_INTERVAL:
            yield growth(step, self.scale)
            self.scale, self.tracker = self.scale * 2, 0

    def _block(self, count: int, epoch: int, *, scaled: bool, settling: bool, skipped: bool) -> Steps:
        noise, steps = self.rng.normal(size=(4, count)), np.arange(self.step, self.step + count)
        seconds = np.round(STEP_SECONDS * np.exp(0.05 * noise[0]), 9)
        norm = _float32(np.exp(0.3 * noise[2]))
        trackers: list[Any] = list(range(self.tracker, self.tracker + count)) if scaled else [None] * count
        return Steps(
            time=self.time + float(seconds.sum()),
            first_step=self.step,
            count=count,
            epoch=epoch,
            precision="fp16" if scaled else "fp32",
            skipped=skipped,
            settling=settling,
            loss=_float32(2.3 * (steps / 100 + 1) ** -0.3 * np.exp(0.1 * noise[1])),
            samples=[256] * count,
            step_seconds=seconds.tolist(),
            data_seconds=np.round(1e-5 * np.exp(0.3 * noise[3]), 9).tolist(),
            lr=(1e-3 * 0.5 * (1 + np.cos(np.pi * steps / self.steps))).tolist(),
            loss_scale=[self.scale if scaled else None] * count,
            growth_tracker=trackers,
            grad_norm=[float("inf")] if skipped else norm,
            nonfinite_gradients=[3 if skipped else 0] * count,
            grad_max=[float("inf")] if skipped else _float32(0.1 * np.array(norm)),
        )


def _float32(values: Any) -> list[float]:
    """As they arrive from the device."""
    found: list[float] = values.astype(np.float32).tolist()
    return found
