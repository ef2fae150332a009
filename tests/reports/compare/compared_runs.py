"""Runs to compare, made from records: journals in folders, and figures without any file."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from amptui.records.run import DataInfo, EpochFinished, Record, RunFinished, RunStarted, Validation
from amptui.records.steps import Steps
from amptui.reports.compare.trace import RunFigures, figures_of
from tests.builders import make_finished
from tests.checkout import ROOT
from tests.telemetry import record_samples

DEMO = ROOT / "demo" / "compare"
FP32 = [DEMO / f"fp32-seed{seed}.jsonl" for seed in range(3)]
BF16 = [DEMO / f"bf16-seed{seed}.jsonl" for seed in range(3)]


def started(*, seed: int | None = 0, precision: str = "fp32", **changes: Any) -> RunStarted:
    config = {"learning_rate": 0.1, "seed": seed} if seed is not None else {"learning_rate": 0.1}
    config |= changes.pop("config", {})
    return record_samples.run(
        **{"precision": precision, "config": config, "amp_precision": "bf16", **changes}
    )


def trained(
    losses: Sequence[float | None], *, precision: str = "fp32", first: int = 1, **changes: Any
) -> list[Steps]:
    """A step for each loss, of 10 samples and 0.5 s, one a second from 101 s on."""
    return [
        record_samples.step(
            number, **{"time": 100.0 + number, "precision": precision, "loss": loss, "samples": 10,
                       "step_seconds": 0.5, **changes},
        )
        for number, loss in enumerate(losses, first)
    ]  # fmt: skip


def finished(steps: int, *, time: float = 1000.0) -> RunFinished:
    return make_finished(steps, time=time, seconds=float(steps))


def validated(step: int, loss: float | None) -> EpochFinished:
    result = Validation(loss=loss, accuracy=None, samples=100)
    return EpochFinished(
        time=100.0 + step, step=step, epoch=1, seconds=1.0, mean_loss=None, validation=result
    )


def whole_run(
    loss: float | Sequence[float | None] = 1.0,
    *,
    seed: int | None = 0,
    precision: str = "fp32",
    steps: int = 30,
    **changes: Any,
) -> list[Record]:
    """A run that ends as asked, of one loss or of several."""
    losses = [loss] * steps if isinstance(loss, float) else list(loss)
    return [
        started(seed=seed, precision=precision, batch_size=10, **changes),
        *trained(losses, precision=precision),
        finished(len(losses)),
    ]


def figures(
    records: Sequence[Record],
    *,
    name: str = "run",
    is_live: bool = False,
    passed_over: str = "",
) -> RunFigures:
    return replace(figures_of(records, "runs/x", name, is_live=is_live), passed_over=passed_over)


def seeds(
    losses: Sequence[float],
    *,
    precision: str = "fp32",
    change: Callable[[RunFigures], RunFigures] = lambda r: r,
    **changes: Any,
) -> list[RunFigures]:
    """A run for each final loss, with seeds from 0 on."""
    return [
        change(
            figures(whole_run(loss, seed=seed, precision=precision, **changes), name=f"{precision}-{seed}")
        )
        for seed, loss in enumerate(losses)
    ]


def validating(first: float = 2.0, last: float = 1.0, **changes: Any) -> RunFigures:
    """A run of 30 steps with these losses at its two validations."""
    *records, end = whole_run(5.0, **changes)
    return figures([*records[:11], validated(10, first), *records[11:], validated(30, last), end])


SYNTHETIC = DataInfo(name="MNIST", real=False, samples=60_000)
