"""What a comparison knows of one run: totals at each step, final losses, record lows, and resumes."""

import math
from collections.abc import Sequence

from amptui.records.run import Record
from amptui.records.samples import DeviceSample, HostSample
from tests.builders import changed
from tests.golden import Goldens
from tests.reports.compare.compared_runs import figures, started, trained, validated
from tests.telemetry import record_samples


def untimed(*places: int) -> list[Record]:
    """200 steps, of which these have no time."""
    steps = trained([1.0] * 200)
    return [changed(step, step_seconds=None) if step.step in places else step for step in steps]


LOSSES: dict[str, Sequence[float | None]] = {
    "all the same": [1.0] * 30,
    "the last not measured": [1.0] * 29 + [None],
    "four Infs near the end": [1.0] * 25 + [math.inf] * 4 + [1.0],
    "NaN at the end": [1.0] * 29 + [math.nan],
    "Inf before the end": [1.0] * 10 + [math.inf] * 19 + [1.0],
    "never measured": [None] * 30,
    "large": [1e308] * 30,
    "falling to a half": [2.0] * 30 + [1.0] * 30,  # of the last 20 steps of step 40 ten are 1
}
STEPS = trained([2.0] * 20)
VALIDATING: list[Record] = [*STEPS[:10], validated(10, 1.5), *STEPS[10:], validated(20, math.nan)]
REPEATING: list[Record] = [
    *trained([2.0] * 40),
    validated(40, 9.0),
    record_samples.resumed(30),
    *trained([0.5] * 20, first=31, step_seconds=0.25),
]
RUNS: dict[str, Sequence[Record]] = {
    "three steps": trained([3.0, 2.0, 1.0]),
    **{f"losses: {name}": trained(losses) for name, losses in LOSSES.items()},
    "validations": VALIDATING,
    "a validation without a loss": [*STEPS, validated(20, None)],
    "a resume that repeats ten steps": REPEATING,
    "two steps of 200 without a time": untimed(100, 200),
    "two without a time and one with NaN": [changed(STEPS[0], step_seconds=math.nan), *untimed(100, 200)[1:]],
    "samples of the process": [
        DeviceSample(time=1.0, gpus=(), host=HostSample(process_rss_bytes=value)) for value in (5, 9, None, 7)
    ],
}


def test_each_run_has_its_figures(goldens: Goldens) -> None:
    lines = []
    for name, records in RUNS.items():
        run = figures([started(), *records])
        reached, curve = run.reached(1.5, validation=False), run.curve
        lines += [
            f"== {name}",
            f"{run.samples} samples in {run.seconds} s, {run.resumed} resumes, peak {run.peak_process_bytes}",
            f"final losses {run.final_training}, {run.final_validation}",
            f"best losses {run.best_training}, {run.best_validation}",
            f"validations: {[(one.step, one.samples, one.seconds, one.loss) for one in run.validations]}",
            f"1.5 at: {reached}; 0.99 at: {run.reached(0.99, validation=False)}",
            f"lows: {[low.step for low in run.lows]}",
            *(
                f"{what}: {shown(getattr(curve, what).tolist())}"
                for what in ("steps", "samples", "seconds", "loss")
            ),
        ]
    goldens.check("reports/compare figures", "\n".join(lines))


def shown(values: list[float]) -> str:
    """All of few values, of many the first and the last."""
    words = [f"{value:g}" for value in values]
    return " ".join(words if len(words) < 60 else [*words[:3], "...", *words[-3:]])
