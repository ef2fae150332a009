"""What is asked of a run, in which order, and what ends it early."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from amptui.reports.advise.measuring import progress_words
from amptui.reports.advise.stages import Stages
from amptui.telemetry.view import SessionView
from tests.golden import Goldens
from tests.reports.advise.fake_run import FakeRun, short

LOOKS = 400


class Measured(NamedTuple):
    """A run, what it is asked to compare, and when it pauses by itself, of which cause."""

    run: FakeRun
    candidates: Sequence[str]
    seconds: float = 1000.0
    pauses: Callable[[Stages, SessionView], object] = lambda *_: False
    cause: str = ""


RUNS = {
    "two": Measured(FakeRun(), ("bf16", "fp16")),
    # Float8 has the factors of its products to be looked into, TF32 no autocast.
    "FP8": Measured(FakeRun(), ("fp8",)),
    "TF32": Measured(FakeRun(), ("tf32",)),
    "far slower": Measured(FakeRun(step_seconds={"fp32": 0.01, "fp16": 0.13}), ("fp16",)),
    "three batches, as the first one differs": Measured(
        FakeRun(cosines=[0.3, 0.97, 0.8, 0.4, 0.98, 0.7]), ["bf16"]
    ),
    "not here": Measured(FakeRun(refused={"bf16": ("unavailable", "no kernel")}), ("bf16", "fp16")),
    "failed": Measured(FakeRun(refused={"bf16": ("failed", "no kernel")}), ("bf16", "fp16")),
    "no time for all rounds": Measured(FakeRun(rounds_needed=10_000), ["bf16"], seconds=20.0),
    "a collapsed loss scale, and the others are compared again": Measured(
        FakeRun(rounds_needed=10),
        ("bf16", "fp16"),
        pauses=lambda stages, view: stages.stage == "comparing" and view.compared,
        cause="loss scale",
    ),
    "weights that bf16 lost": Measured(
        FakeRun(), ["bf16"], pauses=lambda _, view: view.precision == "bf16", cause="weights"
    ),
    "NaN in FP32": Measured(FakeRun(loss=math.nan), ["bf16"]),
    "Inf in FP32": Measured(FakeRun(loss=math.inf), ["bf16"]),
    "weights of another dtype": Measured(FakeRun(weights_dtype="float64"), ("bf16", "fp16")),
}


def test_each_precision_is_tried_then_compared_then_looked_into(goldens: Goldens) -> None:
    lines = []
    for name, (run, candidates, seconds, pauses, cause) in RUNS.items():
        stages, has_paused = Stages(candidates, seconds=seconds, clock=run.clock), False
        for _ in range(LOOKS):
            view = run.advance()
            if not has_paused and pauses(stages, view):
                run.pause(cause)
                has_paused = True
            stages.look(run.view, run)
            if stages.over:
                break
        assert stages.over
        assert stages.seconds_left() >= 0
        evidence = stages.evidence
        xrays = {name: numerics.xray for name, numerics in evidence.numerics.items()}
        cosines = {name: xray.layers[0].cosine for name, xray in xrays.items() if xray}
        excluded = [
            f"{precision}: {one.kind} {one.detail or ''} {one.value or ''}".strip()
            for precision, one in evidence.exclusions.items()
        ]
        lines += [
            f"== {name}",
            f"asked: {'; '.join(short(request) for request in run.asked)}",
            f"looked into: {', '.join(evidence.numerics)}; cosines {cosines}; window {bool(evidence.window)}",
            f"excluded: {'; '.join(excluded)}",
            f"missing: {evidence.missing}; lost in: {evidence.lost_in}",
        ]
    goldens.check("reports/advise stages", "\n".join(lines))


def test_progress_says_what_is_measured_and_how_long_it_takes_at_most() -> None:
    run = FakeRun(rounds_needed=10)
    stages = Stages(["bf16"], seconds=180.0, clock=run.clock)
    assert progress_words(stages, run.view) == ""
    stages.look(run.advance(), run)
    assert progress_words(stages, run.view) == "first steps in FP32, step 10, at most 3:00 left"
    while stages.stage != "comparing":
        stages.look(run.advance(), run)
    assert "alternating, round  1 of at most 24" in progress_words(stages, run.view)
    stages.begin_losses("bf16", 2)
    assert "loss from the same start, seed 2 in AMP bf16" in progress_words(stages, run.view)
