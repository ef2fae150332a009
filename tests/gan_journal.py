"""The records of a GAN with two optimizers."""

import math
from collections.abc import Iterator

import numpy as np

from amptui.records.run import DataInfo, PrecisionChanged, Record, RunFinished
from tests.builders import make_started as run
from tests.builders import make_step as step
from tests.telemetry.record_samples import device, dropped, followed, skip_row

DISCRIMINATOR = "discriminator"


def gan_records(steps: int = 1200) -> Iterator[Record]:
    """Two steps of the discriminator for one of the generator; a few skips, one batch left out."""
    noise = np.random.default_rng(7).normal(size=(3, steps + 1))
    yield run(
        model="dcgan.py",
        optimizer="generator",
        precision="bf16",
        data=DataInfo(name="CelebA", real=True, samples=202_599),
        batch_size=128,
        total_epochs=0,
        total_steps=None,
        steps_per_epoch=None,
        observed=True,
    )
    for number in range(1, steps + 1):
        time = 100 + number * 0.05
        if number == 2:
            yield followed(DISCRIMINATOR, time=time)
            yield followed("", time=time, model="Generator", parameters=3_576_704, step=1)
        for half in (1, 2) if number > 1 else ():
            own = 2 * (number - 2) + half
            skipped = own % 700 == 0 and number <= 800
            yield step(
                own,
                time=time - 0.02 * (3 - half),
                optimizer=DISCRIMINATOR,
                precision="fp16" if number <= 800 else "bf16",
                loss_form="sum",
                micro_batches=2,
                loss=max(0.05, 0.69 * math.exp(-own / 900) + 0.3 + 0.08 * float(noise[half, number])),
                samples=256,
                step_seconds=0.018,
                lr=4e-4,
                grad_norm=math.inf if skipped else 1.2 + 0.2 * float(noise[half, number]),
                grad_max=math.inf if skipped else 0.2,
                skipped=skipped,
            )
            if skipped:
                yield from skip_row(own, 1, 65536.0, optimizer=DISCRIMINATOR)
        yield step(
            number,
            time=time,
            precision="bf16",
            loss=1.5 + 2.0 * math.exp(-number / 300) + 0.2 * float(noise[0, number]),
            samples=128,
            step_seconds=0.05,
            lr=2e-4,
            grad_norm=3.0 + 0.4 * float(noise[0, number]),
            grad_max=0.5,
            settling=number <= 10,
        )
        if number == 600:
            yield dropped(number, time=time, passes=1)
        if number == 800:
            yield PrecisionChanged(
                time=time, step=1599, previous="fp16", current="bf16", optimizer=DISCRIMINATOR
            )
        if number % 20 == 0:
            yield device(time, "bf16", 3 * 2**30, 91.0, 400.0 * number * 0.05)
    yield RunFinished(time=100 + steps * 0.05 + 1, steps=steps, seconds=steps * 0.05, reason="ended")
