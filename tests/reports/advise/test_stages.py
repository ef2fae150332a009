"""What is asked of a run, in which order, and what ends it early."""

import math

import pytest

from amptui.reports.advise.stages import Stages
from amptui.reports.advise.stages_shown import progress_words
from tests.reports.advise.fake_run import FakeRun, short

TRIAL = ["x-ray", "trace"]


def measure(run: FakeRun, *candidates: str, seconds: float = 1000.0, looks: int = 400) -> Stages:
    stages = Stages(candidates, seconds=seconds, clock=run.clock)
    for _ in range(looks):
        stages.look(run.advance(), run)
        if stages.over:
            break
    return stages


@pytest.mark.parametrize(
    ("run", "candidates", "asked"),
    [
        (
            FakeRun(),
            ("bf16", "fp16"),
            [
                "trace",
                *("bf16", *TRIAL, "fp32"),
                *("fp16", *TRIAL, "fp32"),
                "compare fp32,bf16,fp16",
                *("bf16", *TRIAL),
                *("fp16", *TRIAL),
                "fp32",
            ],
        ),
        # Float8 has the factors of its products to be looked into, TF32 no autocast.
        (
            FakeRun(),
            ("fp8",),
            [
                "trace",
                *("fp8", *TRIAL, "histogram", "fp32"),
                "compare fp32,fp8",
                *("fp8", *TRIAL, "histogram"),
                "fp32",
            ],
        ),
        (FakeRun(), ("tf32",), ["trace", "tf32", "fp32", "compare fp32,tf32", "fp32"]),
        (FakeRun(step_seconds={"fp32": 0.01, "fp16": 0.13}), ("fp16",), ["trace", "fp16", "fp32", "fp32"]),
    ],
    ids=["two", "FP8", "TF32", "far slower"],
)
def test_each_precision_is_tried_then_compared_then_looked_into(
    run: FakeRun, candidates: tuple[str, ...], asked: list[str]
) -> None:
    stages = measure(run, *candidates)
    assert stages.over
    assert [short(request) for request in run.asked] == asked
    evidence = stages.evidence
    assert (evidence.missing, evidence.lost_in) == ({}, "")
    if run.step_seconds:
        (result,) = evidence.exclusions.values()
        assert (result.kind, round(result.value or 0)) == ("slow", 13)
    else:
        assert evidence.exclusions == {}
        assert set(evidence.numerics) == {"fp32", *candidates} - {"tf32"}
        assert evidence.window is not None


def test_the_middle_of_three_batches_counts_where_the_first_one_differs() -> None:
    run = FakeRun(cosines=[0.3, 0.97, 0.8, 0.999])
    stages = Stages(["bf16"], seconds=1000.0, clock=run.clock)
    while stages.stage != "comparing":
        stages.look(run.advance(), run)
    own_request = [short(request) for request in run.asked]
    assert own_request[:6] == ["trace", "bf16", "x-ray", "x-ray", "x-ray", "trace"]
    one_xray = stages.evidence.numerics["bf16"].xray
    assert one_xray is not None
    assert one_xray.layers[0].cosine == 0.8


@pytest.mark.parametrize(("reason", "kind"), [("unavailable", "not here"), ("failed", "failed")])
def test_a_refused_precision_is_excluded_with_the_reason(reason: object, kind: str) -> None:
    run = FakeRun(refused={"bf16": (reason, "no kernel")})  # type: ignore[dict-item]
    stages = measure(run, "bf16", "fp16")
    result = stages.evidence.exclusions["bf16"]
    assert (result.kind, result.detail) == (kind, "no kernel")
    assert "compare fp32,fp16" in [short(request) for request in run.asked]


def test_the_comparison_ends_when_its_time_is_up() -> None:
    run = FakeRun(rounds_needed=10_000)
    stages = measure(run, "bf16", seconds=20.0)
    own_request = [short(request) for request in run.asked]
    assert own_request.index("end comparison") == own_request.index("compare fp32,bf16") + 1
    assert stages.over
    assert stages.seconds_left() >= 0


def test_a_collapsed_loss_scale_excludes_fp16_and_the_others_are_compared_again() -> None:
    run = FakeRun(rounds_needed=10)
    stages = Stages(["bf16", "fp16"], seconds=1000.0, clock=run.clock)
    while stages.stage != "comparing" or not run.view.compared:
        stages.look(run.advance(), run)
    run.pause("loss scale")
    for _ in range(100):
        stages.look(run.advance(), run)
    own_request = [short(request) for request in run.asked]
    after = own_request[own_request.index("compare fp32,bf16,fp16") + 1 :]
    assert after[:3] == ["fp32", "resume", "compare fp32,bf16"]
    assert stages.evidence.exclusions["fp16"].kind == "trouble"
    assert stages.over


def test_lost_weights_end_it_and_name_the_precision() -> None:
    run = FakeRun()
    stages = Stages(["bf16"], seconds=1000.0, clock=run.clock)
    while run.view.precision != "bf16":
        stages.look(run.advance(), run)
    run.advance()
    run.pause("weights")
    stages.look(run.advance(), run)
    assert stages.over
    assert stages.evidence.lost_in == "bf16"
    assert stages.evidence.exclusions["bf16"].kind == "weights lost"


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_in_fp32_is_no_other_precisions_fault(loss: float) -> None:
    run = FakeRun(loss=loss)
    stages = measure(run, "bf16")
    assert stages.over
    assert stages.evidence.lost_in == "fp32"
    assert [short(request) for request in run.asked] == ["trace"]


def test_weights_of_another_dtype_end_it_early() -> None:
    run = FakeRun(weights_dtype="float64")
    stages = measure(run, "bf16", "fp16")
    assert {item.kind for item in stages.evidence.exclusions.values()} == {"not here"}
    assert not [request for request in run.asked if short(request).startswith(("compare", "bf16"))]


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
