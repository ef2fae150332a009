"""Every request gets one answer, when it is done or when it is known that it will not be."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from amptui.records.answers import RequestMade, RequestRefused, RequestTaken
from amptui.records.control import Control
from amptui.records.findings import ModulesTraced, PrecisionsCompared, XRayTaken
from amptui.records.keeping import CheckpointWritten
from amptui.records.run import Note, PauseChanged, PrecisionChanged, Record
from amptui.records.steps import Steps
from tests.builders import StepRow, rows_of
from tests.tiny import NO_KERNEL, Log, Tiny, Unautocastable, losses, prepare, train

FP32_AND_BF16 = RequestMade("comparison", precisions=("fp32", "bf16"))

Asks = Mapping[int, tuple[RequestMade, ...]]


class Standing(Control):
    """Each time the trainer stands still it is asked for one more thing, at last to go on."""

    def __init__(self, emit: Callable[[Record], object], standing: tuple[RequestMade, ...]) -> None:
        super().__init__(emit)
        self.standing = list(standing)
        self.numbers = count(1)

    def ask(self, request: RequestMade) -> int:
        return super().ask(replace(request, number=next(self.numbers)))

    def wait(self) -> None:
        if not self.attention:
            self.ask(self.standing.pop(0) if self.standing else RequestMade("pause", paused=False))
        super().wait()


class Asking(Log):
    def __init__(self, asks: Asks, standing: tuple[RequestMade, ...] = ()) -> None:
        super().__init__()
        self.control = Standing(self.emit, standing)
        self.asks = asks

    def emit(self, record: Record) -> None:
        super().emit(record)
        if isinstance(record, Steps):
            for step in rows_of(record):
                for request in self.asks.get(step.step, ()):
                    self.control.ask(request)

    @property
    def outcomes(self) -> list[tuple[str, str]]:
        """Each answer's kind, and ``taken`` or why it was refused."""
        return [(answer.request.kind, getattr(answer, "reason", "taken")) for answer in self.answers]

    @property
    def answers(self) -> list[RequestTaken | RequestRefused]:
        return [record for record in self if isinstance(record, RequestTaken | RequestRefused)]


def trained(
    asks: Asks, *, experiment: Tiny | None = None, standing: tuple[RequestMade, ...] = (), **options: Any
) -> Asking:
    log = Asking(asks, standing)
    prepared = prepare(experiment or Tiny(epochs=5), **options.pop("prepared", {}))
    train(prepared, log, log.control, interactive=True, **options)
    return log


BF16, IEEE, TF32 = (RequestMade("precision", precision=name) for name in ("bf16", "ieee", "tf32"))
PAUSE, GO_ON = (RequestMade("pause", paused=paused) for paused in (True, False))
STOP, X_RAY, TRACE = RequestMade("stop", reason="the test"), RequestMade("x-ray"), RequestMade("trace")
HISTOGRAM, CHECKPOINT = RequestMade("histogram"), RequestMade("checkpoint")
WITH_TF32 = RequestMade("comparison", precisions=("fp32", "tf32"))

ANSWERED: list[tuple[Asks, tuple[RequestMade, ...], list[str], type[Record], int]] = [
    ({4: (BF16,)}, (), ["precision: taken"], PrecisionChanged, 1),
    ({4: (RequestMade("precision", precision="fp32"),)}, (), ["precision: taken"], PrecisionChanged, 0),
    ({4: (BF16, IEEE, IEEE)}, (), ["precision: overruled", *["precision: taken"] * 2], PrecisionChanged, 1),
    ({4: (TF32,)}, (), ["precision: unavailable"], PrecisionChanged, 0),
    ({4: (PAUSE,)}, (PAUSE, PAUSE), ["pause: taken"] * 4, PauseChanged, 2),
    ({4: (GO_ON,)}, (), ["pause: taken"], PauseChanged, 0),
    ({4: (PAUSE, GO_ON)}, (), ["pause: overruled", "pause: taken"], PauseChanged, 0),
    ({4: (STOP, PAUSE)}, (), ["pause: unavailable"], PauseChanged, 0),
    ({4: (STOP, IEEE, X_RAY)}, (), [], XRayTaken, 0),
    ({4: (X_RAY, X_RAY)}, (), ["x-ray: taken"] * 2, XRayTaken, 1),
    ({4: (TRACE, TRACE)}, (), ["trace: taken"] * 2, ModulesTraced, 1),
    ({4: (WITH_TF32,)}, (), ["comparison: unavailable"], PrecisionsCompared, 0),
    ({4: (CHECKPOINT,)}, (), ["checkpoint: taken"], CheckpointWritten, 1),
]
"""What is asked after which steps, and while the run stands; the answers in order; the records of what is
done, and how many there are. No request is taken before the first of them."""


@pytest.mark.parametrize(("asks", "standing", "answers", "kind", "count"), ANSWERED)
def test_a_request_is_answered_once_when_it_is_done_or_never_will_be(
    asks: Asks, standing: tuple[RequestMade, ...], answers: list[str], kind: Any, count: int, tmp_path: Path
) -> None:
    log = trained(asks, standing=standing, checkpoints=tmp_path)
    assert [f"{kind}: {what}" for kind, what in log.outcomes] == answers
    done = [r for r in log.of(kind) if not isinstance(r, CheckpointWritten) or r.reason == "asked"]
    assert len(done) == count
    assert not done or log.index(done[0]) < log.index(log.of(RequestTaken)[0])


@pytest.mark.parametrize(
    ("broken", "request_made"),
    [
        ("probes.module_trace.ModuleTrace.values", TRACE),
        ("probes.float16_window.Float16WindowProbe.measure", HISTOGRAM),
        ("checkpoint.writer.write", CHECKPOINT),
    ],
)
def test_what_fails_says_why(
    broken: str, request_made: RequestMade, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **_options: object) -> None:
        raise RuntimeError("no memory for it")

    monkeypatch.setattr(f"amptui.{broken}", fail)
    log = trained({4: (request_made,), 10: (request_made,)}, checkpoints=tmp_path)
    assert [what for _, what in log.outcomes] == ["failed"] * 2
    assert all(
        isinstance(answer, RequestRefused) and "no memory for it" in answer.detail for answer in log.answers
    )


class Broken(Unautocastable):
    """Its steps draw random numbers as well: whatever disturbs them shows in the losses."""

    def build_model(self) -> nn.Module:
        return nn.Sequential(super().build_model(), nn.Dropout(0.5))


@pytest.mark.parametrize(
    ("request_made", "severity", "said", "precisions"),
    [
        (BF16, "error", "bf16 failed in its first step; back to fp32: {}", ["bf16", "fp32"]),
        (X_RAY, "warning", "no X-ray: {}", []),
    ],
    ids=["switch", "x-ray"],
)
def test_a_precision_that_fails_is_told_and_changes_nothing(
    request_made: RequestMade, severity: str, said: str, precisions: list[str]
) -> None:
    log = trained({5: (request_made,)}, experiment=Broken(epochs=3))
    (refused,) = log.answers
    assert isinstance(refused, RequestRefused)
    assert refused.reason == "failed"
    assert f"RuntimeError: {NO_KERNEL}" in refused.detail
    ((told, text),) = [(note.severity, note.text) for note in log.of(Note)]
    assert told == severity
    assert refused.detail in text
    assert said.format(f"RuntimeError: {NO_KERNEL}") in text
    changes = [(change.step, change.current) for change in log.of(PrecisionChanged)]
    assert changes == [(6, name) for name in precisions]
    assert log.of(XRayTaken) == []
    assert {step.precision for step in log.of(StepRow)} == {"fp32"}
    assert losses(log) == losses(trained({}, experiment=Broken(epochs=3)))


def test_a_run_that_keeps_no_checkpoints_says_so() -> None:
    assert trained({4: (CHECKPOINT,)}).outcomes == [("checkpoint", "unavailable")]


def test_one_comparison_runs_at_a_time() -> None:
    end = (RequestMade("comparison"),)
    log = trained({4: (FP32_AND_BF16,), 6: (FP32_AND_BF16,), 8: end, 10: end})
    answers = ["taken", "comparison running", "taken", "taken"]
    assert log.outcomes == [("comparison", answer) for answer in answers]
    results = [(record.over, record.chosen) for record in log.of(PrecisionsCompared)]
    assert results == [(False, "fp32"), (True, "fp32")]


REQUESTS = st.sampled_from(
    [
        *(RequestMade("precision", precision="fp32"), BF16, TF32, PAUSE, GO_ON),
        *(X_RAY, TRACE, HISTOGRAM, CHECKPOINT, FP32_AND_BF16, RequestMade("comparison")),
    ]
)


@pytest.mark.ci
@settings(max_examples=25, deadline=None)
@given(
    st.dictionaries(st.integers(1, 20), st.lists(REQUESTS, max_size=4).map(tuple)),
    st.lists(REQUESTS, max_size=4).map(tuple),
    st.booleans(),
)
def test_whatever_is_asked_each_request_has_one_answer(
    asks: Asks, standing: tuple[RequestMade, ...], fails: bool
) -> None:
    log = trained(asks, standing=standing, experiment=Unautocastable(epochs=5) if fails else None)
    numbers = [request_made.number for request_made in log.of(RequestMade)]
    assert sorted(answer.request.number for answer in log.answers) == sorted(numbers)
    assert len(log.of(StepRow)) == 40
