"""Every request gets one answer, when it is done or when it is known that it will not be."""

import errno
import os
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amptui.engine.checkpoint.file import write
from amptui.records.answers import RequestMade, RequestRefused, RequestTaken
from amptui.records.control import (
    CheckpointRequest,
    ComparisonRequest,
    Control,
    HistogramRequest,
    PauseRequest,
    PrecisionRequest,
    Request,
    StopRequest,
    TraceRequest,
    XRayRequest,
)
from amptui.records.findings import Float16Window, ModulesTraced, PrecisionsCompared, XRayTaken
from amptui.records.keeping import CheckpointWritten
from amptui.records.run import Note, PauseChanged, PrecisionChanged, Record
from amptui.records.steps import StepRecord, Steps
from tests.tiny import NO_KERNEL, NO_TF32, Log, Tiny, Unautocastable, prepare, train

FP32_AND_BF16 = ComparisonRequest(("fp32", "bf16"))

Asks = Mapping[int, tuple[Request, ...]]


class Standing(Control):
    """Each time the trainer stands still it is asked for one more thing, at last to go on."""

    def __init__(self, emit: Callable[[Record], object], standing: tuple[Request, ...]) -> None:
        super().__init__(emit)
        self.standing = list(standing)

    def wait(self) -> None:
        if not self.attention:
            self.ask(self.standing.pop(0) if self.standing else PauseRequest(False))
        super().wait()


class Asking(Log):
    """Asks when a step's record arrives."""

    def __init__(self, asks: Asks, standing: tuple[Request, ...] = ()) -> None:
        super().__init__()
        self.control = Standing(self.emit, standing)
        self.asks = asks

    def emit(self, record: Record) -> None:
        super().emit(record)
        if isinstance(record, Steps):
            for step in record.one_by_one():
                for request in self.asks.get(step.step, ()):
                    self.control.ask(request)

    @property
    def outcomes(self) -> list[tuple[str, str]]:
        """Each answer's kind, and ``taken`` or why it was refused."""
        return [(answer.request.kind, outcome(answer)) for answer in self.answers]

    @property
    def answers(self) -> list[RequestTaken | RequestRefused]:
        return [record for record in self if isinstance(record, RequestTaken | RequestRefused)]


def outcome(answer: RequestTaken | RequestRefused) -> str:
    return "taken" if isinstance(answer, RequestTaken) else answer.reason


def trained(
    asks: Asks, *, experiment: Tiny | None = None, standing: tuple[Request, ...] = (), **options: Any
) -> Asking:
    log = Asking(asks, standing)
    prepared = prepare(experiment or Tiny(epochs=5), **options.pop("prepared", {}))
    train(prepared, log, log.control, interactive=True, **options)
    return log


def only(answers: list[RequestTaken | RequestRefused]) -> RequestRefused:
    (answer,) = answers
    assert isinstance(answer, RequestRefused)
    return answer


def before(log: Log, first: Callable[[Record], bool], then: type) -> bool:
    kinds = [type(record) for record in log]
    return next(i for i, record in enumerate(log) if first(record)) < kinds.index(then)


def test_a_precision_is_taken_when_a_step_has_run_in_it() -> None:
    log = trained({4: (PrecisionRequest("bf16"),)})
    assert log.outcomes == [("precision", "taken")]
    (request_made,), (answer,) = log.of(RequestMade), log.answers
    assert answer.request == request_made
    assert (request_made.precision, answer.step) == ("bf16", 4)
    assert before(log, lambda record: isinstance(record, PrecisionChanged), RequestTaken)


def test_the_last_of_several_counts_and_who_asks_for_the_same_gets_the_same_answer() -> None:
    log = trained({4: (PrecisionRequest("bf16"), *2 * (PrecisionRequest("ieee"),))})
    assert log.outcomes == [("precision", "overruled"), ("precision", "taken"), ("precision", "taken")]
    assert [answer.request.precision for answer in log.answers] == ["bf16", "ieee", "ieee"]
    assert [change.current for change in log.of(PrecisionChanged)] == ["ieee"]


def test_what_runs_already_is_taken() -> None:
    assert trained({4: (PrecisionRequest("fp32"),)}).outcomes == [("precision", "taken")]


def test_a_precision_that_another_one_replaces_in_a_pause_was_overruled() -> None:
    switches = PrecisionRequest("bf16"), PrecisionRequest("bf16"), PrecisionRequest("ieee")
    log = trained({4: (PauseRequest(True),)}, standing=switches)
    precisions = [
        (answer.request.precision, outcome(answer)) for answer in log.answers if answer.request.precision
    ]
    assert Counter(precisions) == {("bf16", "overruled"): 2, ("ieee", "taken"): 1}


@pytest.mark.parametrize("step", [0, 4])
def test_a_comparison_asked_for_with_a_switch_waits_for_its_first_step(step: int) -> None:
    both = PrecisionRequest("bf16"), FP32_AND_BF16
    log = Asking({step: both})
    for request in both if step == 0 else ():
        log.control.ask(request)
    train(prepare(Tiny(epochs=5)), log, log.control, interactive=True)
    assert log.outcomes[:2] == [("precision", "taken"), ("comparison", "taken")]
    assert log.of(PrecisionsCompared)[0].chosen == "bf16"
    switches = [(change.step, change.current) for change in log.of(PrecisionChanged)]
    assert switches[:2] == [(step + 1, "bf16"), (step + 2, "fp32")]


def test_a_precision_that_the_device_cannot_run_is_unavailable() -> None:
    log = trained({4: (PrecisionRequest("tf32"),)})
    refused = only(log.answers)
    assert (refused.reason, refused.detail) == ("unavailable", NO_TF32)


def test_a_precision_whose_first_step_fails_has_failed() -> None:
    log = trained({4: (PrecisionRequest("bf16"),)}, experiment=Unautocastable(epochs=5))
    refused = only(log.answers)
    assert refused.reason == "failed"
    assert [refused.detail] == [note.text for note in log.of(Note) if note.severity == "error"]


def test_a_pause_and_its_end_are_taken_when_they_are_so() -> None:
    log = trained({4: (PauseRequest(True),)}, standing=(PauseRequest(True), PauseRequest(True)))
    assert log.outcomes == [("pause", "taken")] * 4
    assert [answer.request.paused for answer in log.answers] == [True, True, True, False]
    assert before(log, lambda record: isinstance(record, PauseChanged), RequestTaken)
    assert len(log.of(PauseChanged)) == 2


def test_going_on_where_nothing_stands_is_taken_and_a_pause_may_be_overruled() -> None:
    assert trained({4: (PauseRequest(False),)}).outcomes == [("pause", "taken")]
    log = trained({4: (PauseRequest(True), PauseRequest(False))})
    assert log.outcomes == [("pause", "overruled"), ("pause", "taken")]
    assert log.of(PauseChanged) == []


def test_a_pause_is_refused_where_the_run_is_stopping() -> None:
    log = trained({4: (StopRequest("the test"), PauseRequest(True))})
    assert log.outcomes == [("pause", "unavailable")]
    assert log.of(PauseChanged) == []


def test_an_x_ray_is_taken_once_for_all_who_asked_and_answered_after_its_record() -> None:
    log = trained({4: (XRayRequest(), XRayRequest())})
    assert log.outcomes == [("x-ray", "taken")] * 2
    assert len(log.of(XRayTaken)) == 1
    assert before(log, lambda record: isinstance(record, XRayTaken), RequestTaken)


def test_an_x_ray_asked_for_in_a_pause_is_of_the_first_step_after_it() -> None:
    log = trained({4: (PauseRequest(True),)}, standing=(XRayRequest(),))
    (result,) = log.of(XRayTaken)
    assert result.step == 5
    assert log.outcomes == [("pause", "taken"), ("pause", "taken"), ("x-ray", "taken")]


def test_an_x_ray_that_fails_says_why_and_so_does_the_event() -> None:
    log = trained({4: (XRayRequest(),)}, experiment=Unautocastable(epochs=5))
    refused = only(log.answers)
    assert refused.reason == "failed"
    assert NO_KERNEL in refused.detail
    assert [note.text for note in log.of(Note)] == [f"no X-ray: {refused.detail}"]


def test_a_trace_is_taken_when_it_is_told_and_a_second_one_meanwhile_with_it() -> None:
    log = trained({4: (TraceRequest(),), 5: (TraceRequest(),)})
    assert log.outcomes == [("trace", "taken")] * 2
    (result,) = log.of(ModulesTraced)
    assert result.asked
    assert before(log, lambda record: isinstance(record, ModulesTraced), RequestTaken)


def test_a_trace_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no memory for it")

    monkeypatch.setattr("amptui.engine.probes.module_trace.ModuleTrace.values", fail)
    log = trained({4: (TraceRequest(),), 10: (TraceRequest(),)})
    assert log.outcomes == [("trace", "failed")] * 2
    assert all(
        isinstance(answer, RequestRefused) and "no memory for it" in answer.detail for answer in log.answers
    )


def test_a_histogram_is_measured_now_and_once_for_all_who_asked() -> None:
    log = trained({20: (HistogramRequest(), HistogramRequest())})
    assert log.outcomes == [("histogram", "taken")] * 2
    assert 21 in [window.step for window in log.of(Float16Window)]
    measured = next(
        i for i, record in enumerate(log) if isinstance(record, Float16Window) and record.step == 21
    )
    assert all(log.index(answer) > measured for answer in log.answers)


def test_a_histogram_is_measured_in_a_run_without_probes_too() -> None:
    log = trained({20: (HistogramRequest(),)}, prepared={"probes": False})
    assert [window.step for window in log.of(Float16Window)] == [21]
    assert log.outcomes == [("histogram", "taken")]


def test_a_histogram_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no memory for it")

    monkeypatch.setattr("amptui.engine.probes.float16_window.Float16WindowProbe.measure", fail)
    log = trained({4: (HistogramRequest(),), 10: (HistogramRequest(),)})
    assert log.outcomes == [("histogram", "failed")] * 2
    assert all(
        isinstance(answer, RequestRefused) and "no memory for it" in answer.detail for answer in log.answers
    )


def test_one_comparison_runs_at_a_time() -> None:
    log = trained(
        {4: (FP32_AND_BF16,), 6: (FP32_AND_BF16,), 8: (ComparisonRequest(),), 10: (ComparisonRequest(),)}
    )
    assert log.outcomes == [
        ("comparison", "taken"),
        ("comparison", "comparison running"),
        ("comparison", "taken"),
        ("comparison", "taken"),
    ]
    assert [(record.over, record.chosen) for record in log.of(PrecisionsCompared)] == [
        (False, "fp32"),
        (True, "fp32"),
    ]


def test_a_comparison_with_what_the_device_cannot_run_is_unavailable() -> None:
    log = trained({4: (ComparisonRequest(("fp32", "tf32")),)})
    assert only(log.answers).reason == "unavailable"
    assert log.of(PrecisionsCompared) == []


def test_a_checkpoint_is_taken_when_it_is_on_the_disk(tmp_path: Path) -> None:
    log = trained({4: (CheckpointRequest(),)}, checkpoints=tmp_path)
    assert log.outcomes == [("checkpoint", "taken")]
    assert log.of(CheckpointWritten)[0].reason == "asked"
    assert before(log, lambda record: isinstance(record, CheckpointWritten), RequestTaken)


def test_a_checkpoint_that_cannot_be_written_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = os.strerror(errno.ENOSPC)
    left = [OSError(errno.ENOSPC, full)]

    def failing(*arguments: Any, **options: Any) -> int:
        if left:
            raise left.pop()
        return write(*arguments, **options)

    monkeypatch.setattr("amptui.engine.checkpoint.writer.write", failing)
    log = trained({4: (CheckpointRequest(),)}, checkpoints=tmp_path)
    refused = only(log.answers)
    assert (refused.reason, refused.detail) == ("failed", f"{full} (free some space)")


def test_a_run_that_keeps_no_checkpoints_says_so() -> None:
    assert trained({4: (CheckpointRequest(),)}).outcomes == [("checkpoint", "unavailable")]


def test_a_checkpoint_that_its_clean_up_spoils_is_still_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_folder: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("amptui.engine.checkpoint.writer.prune", fail)
    assert trained({4: (CheckpointRequest(),)}, checkpoints=tmp_path).outcomes == [("checkpoint", "taken")]


REQUESTS = st.sampled_from(
    [
        PrecisionRequest("fp32"),
        PrecisionRequest("bf16"),
        PrecisionRequest("tf32"),
        PauseRequest(True),
        PauseRequest(False),
        XRayRequest(),
        TraceRequest(),
        HistogramRequest(),
        FP32_AND_BF16,
        ComparisonRequest(),
        CheckpointRequest(),
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
    asks: Asks, standing: tuple[Request, ...], fails: bool
) -> None:
    log = trained(asks, standing=standing, experiment=Unautocastable(epochs=5) if fails else None)
    numbers = [request_made.number for request_made in log.of(RequestMade)]
    assert sorted(answer.request.number for answer in log.answers) == sorted(numbers)
    assert len(log.of(StepRecord)) == 40


def test_what_waits_when_the_run_ends_has_no_answer() -> None:
    log = trained({4: (StopRequest("the test"), PrecisionRequest("bf16"), XRayRequest())})
    assert log.outcomes == []
    assert [request_made.kind for request_made in log.of(RequestMade)] == ["stop", "precision", "x-ray"]
