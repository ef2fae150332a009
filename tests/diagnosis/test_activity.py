from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from amptui.diagnosis.activity import (
    compared_precisions,
    is_stopping,
    pending_words,
    phase_words,
    refusal_words,
    state_words,
    switch_target,
    unsupported_requests,
    waiting_fraction,
    waiting_words,
)
from amptui.records.answers import Refusal, RequestKind, RequestMade, RequestRefused
from amptui.records.run import PhaseChanged, PrecisionChanged
from amptui.telemetry.session import Session
from amptui.telemetry.view import SessionView
from tests.telemetry.record_samples import compared, run
from tests.tui import views


def in_phase(phase: Any, **details: Any) -> SessionView:
    return SessionView(phase=PhaseChanged(time=views.NOW, phase=phase, **details))


@pytest.mark.parametrize(
    ("view", "words"),
    [
        (SessionView(), "starting"),
        (in_phase("importing"), "importing torch"),
        (in_phase("data"), "loading data"),
        (in_phase("data", detail="drawing", done=512, total=1000, unit="samples"), "drawing 512/1,000"),
        (in_phase("data", detail="downloading", done=2048, unit="bytes"), "downloading 2.00 KiB"),
        (in_phase("model"), "building the model"),
        (in_phase("first step", detail="autotuning kernels"), "first step: autotuning kernels"),
        (in_phase("first step"), "first step"),
        (in_phase("first step", detail="first step"), "first step"),
        (in_phase("validating", done=12, total=40), "validating 12/40"),
        (in_phase("validating", done=12), "validating 12"),
        (in_phase("stopping", detail="writing the checkpoint"), "writing the checkpoint"),
        (in_phase("stopping"), "stopping"),
        (in_phase("training"), ""),
        (views.compared(), ""),
        (replace(in_phase("validating"), state="failed"), ""),
    ],
)
def test_a_phase_in_words(view: SessionView, words: str) -> None:
    assert waiting_words(view) == words


def test_a_run_that_is_lost_waits_for_nothing() -> None:
    assert waiting_words(in_phase("validating"), silence="gone") == ""


def test_a_run_is_stopping_when_it_says_so_until_it_has_ended() -> None:
    assert is_stopping(in_phase("stopping"))
    assert not is_stopping(in_phase("validating"))
    assert not is_stopping(SessionView())
    assert not is_stopping(replace(in_phase("stopping"), state="finished"))


def test_progress_is_a_fraction_only_where_the_whole_is_known() -> None:
    assert waiting_fraction(in_phase("data", done=1, total=4)) == 0.25
    assert waiting_fraction(in_phase("data", done=5, total=4)) == 1.0
    assert waiting_fraction(in_phase("data", done=1)) is None
    assert waiting_fraction(in_phase("data", total=4)) is None
    assert waiting_fraction(SessionView()) is None


def test_plain_output_says_the_same_without_the_progress() -> None:
    downloading = PhaseChanged(time=views.NOW, phase="data", detail="downloading", done=2048, unit="bytes")
    assert phase_words(downloading) == "downloading"
    assert phase_words(PhaseChanged(time=views.NOW, phase="training")) == ""
    assert phase_words(None) == ""


def asked_for(kind: RequestKind, **details: Any) -> RequestMade:
    return RequestMade(time=views.NOW, number=1, kind=kind, **details)


PROBES = (asked_for("trace"), asked_for("x-ray"), asked_for("trace"))


@pytest.mark.parametrize(
    ("view", "words"),
    [
        (SessionView(), []),
        (SessionView(pending=PROBES), ["trace and X-ray with the next step …"]),
        (SessionView(pending=PROBES, state="paused"), ["trace and X-ray when training resumes …"]),
        (SessionView(pending=(asked_for("checkpoint"),)), ["checkpoint after this step …"]),
        (
            SessionView(pending=(asked_for("comparison", precisions=("fp32", "bf16")),)),
            ["comparison starts at the next step …"],
        ),
        (SessionView(compared=compared(over=False, rounds=2)), ["comparing: round 3/24, c ends it"]),
        (SessionView(pending=(asked_for("pause", paused=True),)), []),  # the header says it
    ],
)
def test_pending_requests_in_words(view: SessionView, words: list[str]) -> None:
    assert pending_words(view) == words


@pytest.mark.parametrize(
    ("request_made", "reason", "words"),
    [
        (asked_for("x-ray"), "failed", "no X-ray: out of memory"),
        (asked_for("precision", precision="tf32"), "unavailable", "TF32: out of memory"),
        (asked_for("precision", precision="tf32"), "failed", "out of memory"),
        (asked_for("x-ray"), "comparison running", "already comparing: c ends it"),
        (asked_for("x-ray"), "overruled", ""),
    ],
)
def test_a_refusal_in_words(request_made: RequestMade, reason: Refusal, words: str) -> None:
    refusal = RequestRefused(
        time=views.NOW, step=5, request=request_made, reason=reason, detail="out of memory"
    )
    assert refusal_words(refusal) == words


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("starting", "training is starting"),
        ("running", "training continues"),
        ("paused", "training is paused"),
        ("finished", "training is over"),
        ("failed", "training failed"),
    ],
)
def test_a_state_in_words(state: Any, words: str) -> None:
    assert state_words(SessionView(state=state)) == words
    assert state_words(SessionView(state=state), lost="gone") == "the run has ended"


def target_after(first: str, *precisions: str, **facts: Any) -> str:
    """What ``p`` asks for once a run that began in ``first`` has switched to each of ``precisions``."""
    session = Session()
    session.fold([replace(run(), precision=first, amp_precision="bf16", **facts)])
    for step, (previous, current) in enumerate(pairwise((first, *precisions)), 2):
        session.fold([PrecisionChanged(time=2.0, step=step, previous=previous, current=current)])
    return switch_target(session.view())


@pytest.mark.parametrize(
    ("current", "sides", "offered"),
    [
        ("fp32", ("fp32", "bf16"), True),
        ("tf32", ("tf32", "bf16"), True),
        ("fp16", ("fp32", "fp16"), True),
        ("fp8", ("bf16", "fp8"), True),
        ("fp8-emulated", ("bf16", "fp8-emulated"), False),
    ],
)
def test_c_compares_what_runs_with_what_it_is_judged_against(
    current: str, sides: tuple[str, ...], *, offered: bool
) -> None:
    session = Session()
    session.fold([replace(run(), precision=current, amp_precision="bf16", unsupported={})])
    assert compared_precisions(session.view()) == sides
    assert ("comparison" not in unsupported_requests(session.view())) == offered


def test_p_switches_between_fp32_and_amp_and_through_fp8_once_it_was_chosen() -> None:
    assert target_after("fp32") == "bf16"
    assert target_after("fp32", "bf16") == "fp32"
    assert target_after("fp8-emulated") == "fp32"
    assert target_after("fp8-emulated", "fp32") == "bf16"
    assert target_after("fp8-emulated", "fp32", "bf16") == "fp8-emulated"
    assert target_after("fp32", "tf32", "fp8") == "tf32"
    assert target_after("fp32", "bf16", config={"fp8_recipe": "rowwise"}, unsupported={"fp8": ""}) == (
        "fp8-emulated"
    )
    refused = {"fp8": "no layer", "fp8-emulated": "no layer"}
    assert target_after("fp32", "bf16", config={"fp8_recipe": "rowwise"}, unsupported=refused) == "fp32"
