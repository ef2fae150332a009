"""What precisions, phases, requests, losses and ranks are called, and what `p` and `c` ask for."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any, get_args

import pytest

from amptui.diagnosis.activity import (
    compared_precisions,
    phase_words,
    refusal_words,
    switch_target,
    waiting_words,
)
from amptui.diagnosis.labels import (
    layer_label,
    loss_form_words,
    precision_label,
    precision_letter,
    run_words,
    short_label,
    size_words,
)
from amptui.records.answers import RequestKind, RequestMade, RequestRefused
from amptui.records.own_loop import LossForm
from amptui.records.run import PRECISION_ORDER, PhaseChanged
from amptui.telemetry.view import SessionView
from tests.builders import make_started, make_switch, view_of
from tests.diagnosis.wording import table
from tests.golden import Goldens
from tests.tui import views


def in_phase(phase: Any, **details: Any) -> SessionView:
    return SessionView(phase=PhaseChanged(time=views.NOW, phase=phase, **details))


def asked_for(kind: RequestKind, **details: Any) -> RequestMade:
    return RequestMade(time=views.NOW, number=1, kind=kind, **details)


def refused(asked: RequestMade, reason: Any) -> str:
    refusal = RequestRefused(time=views.NOW, step=5, request=asked, reason=reason, detail="out of memory")
    return refusal_words(refusal)


def ranks(world_size: int, parallel: str, data_parallel: int | None) -> str:
    run = views.run_started(
        world_size=world_size, parallel=parallel, data_parallel=data_parallel, global_batch_size=64
    )
    return run_words(run)


PHASES: Mapping[str, SessionView] = {
    "nothing yet": SessionView(),
    "importing": in_phase("importing"),
    "data": in_phase("data"),
    "data drawn": in_phase("data", detail="drawing", done=512, total=1000, unit="samples"),
    "data downloaded": in_phase("data", detail="downloading", done=2048, unit="bytes"),
    "first step": in_phase("first step"),
    "first step of kernels": in_phase("first step", detail="autotuning kernels"),
    "validating": in_phase("validating", done=12, total=40),
    "stopping": in_phase("stopping"),
    "stopping with a checkpoint": in_phase("stopping", detail="writing the checkpoint"),
    "steps": views.compared(),
    "failed": replace(in_phase("validating"), state="failed"),
}

NAMES = (*PRECISION_ORDER, "fp4")


def test_what_everything_is_called(goldens: Goldens) -> None:
    rows: dict[str, str | Iterable[str]] = {
        "precisions": [
            " | ".join((name, precision_label(name), short_label(name), precision_letter(name)))
            for name in NAMES
        ],
        "layers": [layer_label(name) for name in ("mlp.fc", "0", "")],
        "losses": [f"{form}: {loss_form_words(form, 4)}" for form in get_args(LossForm)],
        "short losses": [f"{form}: {loss_form_words(form, 4, brief=True)}" for form in get_args(LossForm)],
        "phases": [f"{name}: {waiting_words(view)}" for name, view in PHASES.items()],
        "plain phases": [f"{name}: {phase_words(view.phase)}" for name, view in PHASES.items()],
        "refusals": [
            refused(asked_for("x-ray"), "failed"),
            refused(asked_for("precision", precision="tf32"), "unavailable"),
            refused(asked_for("precision", precision="tf32"), "failed"),
            refused(asked_for("x-ray"), "comparison running"),
            refused(asked_for("x-ray"), "overruled") or "(nothing where another request has overruled it)",
        ],
        "ranks": [
            f"1 rank{ranks(1, '', None)}",
            f"DDP{ranks(4, 'ddp', None)}",
            f"HSDP{ranks(4, 'hsdp', 4)}",
            f"tensor parallel{ranks(8, 'fsdp2+tp', 4)}",
            f"of a newer version{ranks(4, 'of a newer version+tp', None)}",
            size_words(4, None),
        ],
    }
    goldens.check("words/labels", table(rows))


# ------------------------------------------------------------------------------------- what keys ask for


@pytest.mark.parametrize(
    ("precisions", "sides"),
    [
        ("fp32", ("fp32", "bf16")),
        ("tf32", ("tf32", "bf16")),
        ("fp16 fp32", ("fp32", "fp16")),
        ("tf32 fp16", ("tf32", "fp16")),
        ("fp8", ("bf16", "fp8")),
        ("fp8 fp32", ("fp32", "bf16")),
    ],
)
def test_c_compares_what_runs_with_what_it_is_judged_against(precisions: str, sides: tuple[str, ...]) -> None:
    assert compared_precisions(view_after(precisions)) == sides


@pytest.mark.parametrize(
    ("precisions", "target"),
    [
        ("fp32", "bf16"),
        ("fp32 bf16", "fp32"),
        ("fp16", "fp32"),
        ("fp16 fp32", "fp16"),
        ("tf32", "fp32"),
        ("tf32 fp32", "tf32"),
        ("fp8 fp32", "fp8"),
        ("fp32 bf16 fp16 fp32", "fp16"),
        ("fp32 bf16 ieee", "fp32"),
    ],
)
def test_p_goes_to_fp32_and_back_to_where_it_came_from(precisions: str, target: str) -> None:
    assert switch_target(view_after(precisions)) == target


def test_p_does_not_go_back_to_what_the_device_no_longer_supports() -> None:
    view = view_after("fp16 fp32", unsupported={"fp16": "no scaler"})
    assert switch_target(view) == "bf16"


def view_after(precisions: str, **facts: Any) -> SessionView:
    """The view of a run with bf16 for AMP that was in these precisions, a step each."""
    first, *others = precisions.split()
    started = make_started(precision=first, amp_precision="bf16", **facts)
    switches = [make_switch(step, *both) for step, both in enumerate(pairwise([first, *others]), 2)]
    return view_of(started, *switches)
