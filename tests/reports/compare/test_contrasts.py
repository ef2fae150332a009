"""A comparison: what is known of a run, which runs are a group, and which verdict follows, in which words."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from amptui.records.own_loop import OTHER_PRECISIONS
from amptui.records.run import Record, RunFailed
from amptui.reports.compare.contrasts import compared
from amptui.reports.compare.tables import as_json, heading, plain_lines
from amptui.reports.compare.trace import RunFigures
from tests.builders import changed, make_switch
from tests.gan_journal import gan_records
from tests.golden import Goldens
from tests.reports.compare.compared_runs import (
    SYNTHETIC,
    figures,
    finished,
    seeds,
    started,
    trained,
    validated,
    validating,
    whole_run,
)
from tests.reports.texts import json_text
from tests.telemetry import record_samples

NEAR, FAR = [1.0, 1.1, 0.9], [2.0, 2.1, 1.9]


def bf16(losses: list[float], **changes: Any) -> list[RunFigures]:
    return seeds(losses, precision="bf16", **changes)


def died_and_failed() -> list[RunFigures]:
    """Both trained as long as the others: nothing is missing but the last record."""
    failure = RunFailed(time=999.0, step=30, error="out of memory", traceback="")
    return [
        figures(whole_run(2.0, precision="bf16")[:-1], name="dead"),
        figures([*whole_run(2.0, precision="bf16", seed=1)[:-1], failure], name="failed"),
    ]


def hard_to_compare() -> list[RunFigures]:
    """One was moved to another device, one not read whole, one has no times, two have no seed."""
    resumed = record_samples.resumed(30, device_name="B")
    return [
        figures([started(), *trained([1.0] * 30), resumed], name="moved"),
        figures(whole_run(), name="unread", passed_over="1 line"),
        figures([started(seed=None), *trained([1.0] * 30, step_seconds=None)], name="untimed"),
        figures(whole_run(seed=None), name="again"),
    ]


def silent() -> list[RunFigures]:
    steps = trained([None] * 30, precision="bf16")
    return [figures([started(precision="bf16", batch_size=10), *steps, finished(30)])]


def validating_seeds() -> list[RunFigures]:
    return [validating(last=loss, seed=seed) for seed, loss in enumerate(NEAR)]


def switched() -> RunFigures:
    switch = make_switch(11, "fp32", "bf16")
    last = trained([1.0] * 10, first=11, precision="bf16")
    return figures([started(), *trained([1.0] * 10), switch, *last], name="switched")


OTHER: dict[str, dict[str, Any]] = {
    "versions": {"versions": {"torch": "2.10"}},
    "hardware": {"hardware": {"threads": 3}},
    "length": {"total_steps": 99},
    "ranks": {"world_size": 2},
    "parameters": {"parameters": 3},
    "accumulation": {"config": {"channels_last": False, "compile": None, "accumulate": 2}},
    # What a journal does not have is not used.
    "config with the same meaning": {"config": {"channels_last": False, "compile": None, "accumulate": 1}},
}

SITUATIONS: dict[str, Callable[[], list[RunFigures]]] = {
    "apart by more than the seeds": lambda: [*seeds(NEAR), *bf16(FAR)],
    "within the seeds' spread": lambda: [*seeds(NEAR), *bf16([1.05, 0.95, 1.06])],
    "one seed each": lambda: [*seeds(NEAR[:1]), *bf16(FAR[:1])],
    "one seed of the other": lambda: [*seeds(NEAR), *bf16(FAR[:1])],
    "no spread": lambda: [*seeds([1.0, 1.0]), *bf16([2.0, 2.0])],
    "NaN in one run": lambda: [*seeds(NEAR), *bf16([2.0, math.nan, 2.0])],
    "NaN in one group, the third as good": lambda: [
        *seeds(NEAR),
        *bf16([math.nan] * 2),
        *seeds(NEAR, precision="fp16"),
    ],
    "one higher, one lower": lambda: [*seeds(NEAR), *bf16(FAR), *seeds([0.1, 0.2, 0.3], precision="fp16")],
    "a seed that ran three times": lambda: [
        *seeds(NEAR),
        *(figures(whole_run(loss, precision="bf16")) for loss in (2.0, 2.3, 1.9)),
    ],
    "no loss": lambda: [*seeds(NEAR), *silent()],
    "one group": lambda: seeds(NEAR),
    "nothing recorded": lambda: [figures([]), figures([])],
    "twice as long": lambda: [*seeds(NEAR), *bf16(FAR, steps=60)],
    "other data": lambda: [*seeds(NEAR), *bf16(FAR, data=SYNTHETIC)],
    "another model": lambda: [*seeds(NEAR), *bf16(FAR, model="other")],
    "other devices": lambda: [*seeds(NEAR), *bf16(FAR, device_name="NVIDIA A100")],
    "another option": lambda: [*seeds(NEAR), *bf16(FAR, config={"width": 3})],
    "another option of the same precision": lambda: [
        *bf16(FAR),
        *seeds(NEAR),
        *seeds(NEAR, config={"learning_rate": 0.2}),
    ],
    "a last batch that was smaller": lambda: [
        *seeds(NEAR),
        *(replace(run, samples=run.samples - 2) for run in bf16(FAR)),
    ],
    "one still trains": lambda: [*seeds(NEAR), figures(whole_run(2.0, precision="bf16")[:-1], is_live=True)],
    "died and failed": lambda: [*seeds(NEAR), *died_and_failed()],
    "hard to compare": hard_to_compare,
    "FP8, AMP and FP32": lambda: [*seeds(NEAR), *seeds(FAR, precision="fp8"), *bf16(NEAR)],
    "validations": lambda: [
        *validating_seeds(),
        *(validating(last=loss, seed=seed, precision="bf16") for seed, loss in enumerate(FAR)),
    ],
    "validations of some": lambda: [*validating_seeds(), *bf16(FAR)],
    "three precisions, each with a letter of its own": lambda: [
        *(figures(whole_run(precision=precision)) for precision in ("fp32", "fp16", "bf16")),
    ],
    "two groups of a precision among others": lambda: [
        *seeds(NEAR[:1]),
        *bf16(NEAR[:1]),
        figures(whole_run(parameters=3)),
    ],
    "too few steps": lambda: [figures(whole_run()), figures(whole_run(steps=5))],
    "a switch": lambda: [figures(whole_run(steps=20)), switched()],
    **{
        f"other {name}": lambda changes=changes: [*seeds(NEAR[:1]), figures(whole_run(**changes))]  # type: ignore[misc]
        for name, changes in OTHER.items()
    },
    "several optimizers": lambda: [figures(list(gan_records(60)), name="gan")],
    **{
        f"a precision of others, {name}": lambda name=name: [*seeds(NEAR), *seeds(FAR, precision=name)]  # type: ignore[misc]
        for name in OTHER_PRECISIONS
    },
}


def test_each_situation_has_its_verdict_and_what_limits_it(goldens: Goldens) -> None:
    """Below the tables of which `test_the_recorded_runs_as_text_and_as_json` shows one."""
    lines = []
    for name, make in SITUATIONS.items():
        comparison = compared(make())
        for contrast in comparison.contrasts:
            assert (contrast.interval is None) == (contrast.finding.state not in ("differ", "not shown"))
        bad = [
            None if contrast.finding.grade == "unknown" else contrast.finding.severity
            for contrast in comparison.contrasts
        ]
        lines += [f"== {name}: {', '.join(map(str, bad))}", heading(comparison)]
        lines += "\n".join(plain_lines(comparison)).split("\n\n", 4)[4:]
    goldens.check("reports/compare situations", "\n".join(lines))


def test_runs_of_every_state_as_text_and_as_json(goldens: Goldens) -> None:
    broken = figures(whole_run([1.0] * 20 + [math.nan] * 10, precision="bf16"), name="broken")
    in_fp8 = seeds(FAR, precision="fp8")
    runs = [*seeds(NEAR[:1]), broken, *died_and_failed(), *in_fp8[:1], *silent()]
    live = figures(whole_run(seed=1)[:-1], name="live", is_live=True)
    comparison = compared([*runs, live, figures([], name="nothing")])
    goldens.check("reports/compare every state", "\n".join(plain_lines(comparison)))
    goldens.check("reports/compare every state, 80 columns", "\n".join(plain_lines(comparison, 80)))
    goldens.check_digests({"compare every state, json": json_text(as_json(comparison))})


# ------------------------------------------------------------------------- what is known of one run
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
}


def test_each_run_has_its_figures(goldens: Goldens) -> None:
    lines = []
    for name, records in RUNS.items():
        run = figures([started(), *records])
        lines += [
            f"== {name}",
            f"{run.samples} samples in {run.seconds} s",
            f"final losses {run.final(validation=False)}, {run.final(validation=True)}",
            f"best losses {run.best(validation=False)}, {run.best(validation=True)}",
            *(f"seconds to {loss}: {run.seconds_to(loss, validation=False)}" for loss in (1.5, 0.99)),
            *(
                f"{what} {field}: {shown(getattr(curve, field).tolist())}"
                for what, curve in (("training", run.training), ("validation", run.validation))
                for field in ("steps", "seconds", "loss")
                if len(curve.loss)
            ),
        ]
    goldens.check("reports/compare figures", "\n".join(lines))


def shown(values: list[float]) -> str:
    """All of few values, of many the first and the last."""
    words = [f"{value:g}" for value in values]
    return " ".join(words if len(words) < 60 else [*words[:3], "...", *words[-3:]])
