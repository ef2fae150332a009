"""A run with several optimizers: each has numbers of its own, as if it were alone, and one is in front."""

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.records.run import LossScaleChanged, PrecisionChanged, Record, StepSkipped
from amptui.records.steps import Steps
from amptui.telemetry.optimizers import FOLLOW_AFTER_STEPS, MAX_OPTIMIZERS
from amptui.telemetry.session import Session
from tests.builders import make_switch as switch
from tests.telemetry.record_samples import (
    backoff,
    dropped,
    followed,
    nonfinite,
    run,
    skip,
    step,
    steps,
)
from tests.telemetry.test_state import same
from tests.telemetry.whole_runs import session_of

GENERATOR, DISCRIMINATOR = "", "discriminator"


# ----------------------------------------------------------------------------- as if alone

OF_STEPS = {
    *("step", "epoch", "last", "newest", "smoothed_loss", "best_loss", "best_loss_step"),
    *("step_seconds", "samples_per_second", "loss", "samples_rate", "loss_scale", "skips", "switches"),
    *("comparison", "scaler", "numerics", "unmeasured_steps"),
}

OWN_RECORDS = st.one_of(
    st.builds(
        step,
        st.integers(0, 40),
        loss=st.none() | st.floats(),
        step_seconds=st.none() | st.floats(0, 10),
        precision=st.sampled_from(["fp32", "fp16", "mixed"]),
        skipped=st.booleans(),
        settling=st.booleans(),
        loss_scale=st.none() | st.floats(),
        grad_max=st.none() | st.floats(),
        loss_form=st.sampled_from(["", "sum", "no backward"]),
    ),
    st.builds(switch, st.integers(0, 40), st.just("fp32"), st.sampled_from(["fp32", "bf16"])),
    st.builds(backoff, st.integers(0, 40), st.floats()),
    st.builds(skip, st.integers(0, 40)),
)


@given(
    records=st.lists(st.tuples(st.sampled_from(["", "D", "E"]), OWN_RECORDS), max_size=80),
    cut=st.integers(0, 80),
)
def test_interleaved_optimizers_are_folded_as_if_each_were_alone(
    records: list[tuple[str, Steps | PrecisionChanged | LossScaleChanged | StepSkipped]], cut: int
) -> None:
    started = run(steps_per_epoch=None)
    together = Session()
    labelled = [replace(record, optimizer=name) for name, record in records]
    together.fold([started, followed("D"), followed("E"), *labelled[:cut]])
    together.view()
    together.fold(labelled[cut:])
    for name in ("", "D", "E"):
        own = [record for whose, record in records if whose == name]
        alone = session_of([started, *own]).view()
        view = together.view(name)
        differing = [
            name
            for name in sorted(OF_STEPS)
            if not same(named_alike(getattr(view, name)), getattr(alone, name))
        ]
        assert differing == [], "but for what they are called"


def named_alike(value: Any) -> Any:
    """``value`` with the records in it as those of a run's first optimizer."""
    if not is_dataclass(value) or isinstance(value, type):
        return value
    changes = {field.name: named_alike(getattr(value, field.name)) for field in fields(value) if field.init}
    return replace(value, **(changes | ({"optimizer": ""} if "optimizer" in changes else {})))


# --------------------------------------------------------------------------------- the front


def phase(name: str, count: int) -> Sequence[Record]:
    return steps(1, count, optimizer=name)


@pytest.mark.parametrize("batch", [1, 7, 1000])
@pytest.mark.parametrize(
    ("count", "front"), [(FOLLOW_AFTER_STEPS - 1, GENERATOR), (FOLLOW_AFTER_STEPS, "second phase")]
)
def test_the_front_follows_the_phase_that_makes_steps(batch: int, count: int, front: str) -> None:
    records: list[Record] = [run(), *phase("", 30), *phase("second phase", count)]
    session = Session()
    for first in range(0, len(records), batch):
        session.fold(records[first : first + batch])
    assert session.view().front == front
    assert session.view(GENERATOR).front == GENERATOR, "unless the person chose"


# ------------------------------------------------------------------------------------- journals


def test_further_optimizers_are_left_out_and_it_is_told() -> None:
    names = [f"optimizer {number}" for number in range(1, 40)]
    session = session_of([run(), step(1), *(step(1, optimizer=name) for name in names[: MAX_OPTIMIZERS - 1])])
    assert not session.view().optimizers_left_out
    hostile: list[Record] = [nonfinite(2, optimizer=names[-1]), dropped(2, optimizer=names[-2])]
    session.fold([step(1, optimizer=name) for name in names[MAX_OPTIMIZERS:]] + hostile)
    view = session.view()
    assert len(view.optimizers) == MAX_OPTIMIZERS
    assert view.optimizers_left_out
    assert (len(view.events), view.warnings, view.errors) == (1, 0, 0), "the run's start"
