"""A run that takes requests at once and makes steps as fast as it is looked at."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from amptui.records.answers import Answer, Refusal, RequestRefused, RequestTaken
from amptui.records.control import (
    KINDS,
    ComparisonRequest,
    HistogramRequest,
    PauseRequest,
    PrecisionRequest,
    Request,
    TraceRequest,
    XRayRequest,
    record_of,
)
from amptui.records.findings import MemoryKind
from amptui.telemetry.view import (
    EMPTY_VIEW,
    Comparison,
    NumericsView,
    PrecisionStats,
    PrecisionSwitch,
    SessionView,
)
from tests.reports.advise.situations import row
from tests.telemetry import record_samples as samples
from tests.telemetry.record_samples import memory


@dataclass
class FakeRun:
    """Each look is some steps later; ``step_seconds`` and ``refused`` are by precision."""

    step_seconds: Mapping[str, float] = field(default_factory=dict)
    refused: Mapping[str, tuple[Refusal, str]] = field(default_factory=dict)
    rounds_needed: int = 3
    weights_dtype: str = "float32"
    loss: float = 1.0
    cosines: list[float] = field(default_factory=list)
    """Of the X-rays to come; those after them agree."""
    asked: list[Request] = field(default_factory=list)
    now: float = 0.0
    stop_reason: str | None = None
    view: SessionView = EMPTY_VIEW
    _steps: dict[str, int] = field(default_factory=dict)
    _sides: tuple[str, ...] = ()
    _rounds: int = 0

    def clock(self) -> float:
        return self.now

    def ask(self, request: Request) -> int:
        self.asked.append(request)
        number = len(self.asked)
        result = record_of(request, number)
        answer: Answer = RequestTaken(time=time.time(), step=self.view.step, request=result)
        precision = request.precision if isinstance(request, PrecisionRequest) else ""
        if precision in self.refused:
            reason, detail = self.refused[precision]
            answer = RequestRefused(
                time=time.time(), step=self.view.step, request=result, reason=reason, detail=detail
            )
        elif precision:
            self._switch(precision)
        elif isinstance(request, ComparisonRequest):
            self._sides, self._rounds = request.precisions, 0
            self._compare()
        elif isinstance(request, XRayRequest):
            head = samples.layer("head", self.cosines.pop(0) if self.cosines else 0.999)
            one_xray = samples.xray(self.view.step, precision="bf16", layers=(head,))
            self.view = replace(self.view, numerics=replace(self.view.numerics, xray=one_xray))
        elif isinstance(request, PauseRequest):
            self.view = replace(self.view, state="running", pause_cause="")
        self.view = replace(self.view, answers=(*self.view.answers, answer))
        return number

    def pause(self, cause: Any) -> None:
        self.view = replace(self.view, state="paused", pause_cause=cause, pause_reason="the reason")

    def advance(self, steps: int = 10, seconds: float = 0.1) -> SessionView:
        """Make steps, unless paused, and return the new view."""
        self.now += seconds
        view = self.view
        if view.state == "paused":
            return view
        precision = view.precision or "fp32"
        if self._sides and view.compared is not None and not view.compared.over:
            self._rounds += 1
            self._compare()
        self._steps[precision] = self._steps.get(precision, 0) + steps
        step = view.step + steps
        weights = (MemoryKind(kind="weights", dtype=self.weights_dtype, size_bytes=8),)
        breakdown = replace(memory("fp32"), step=step, kinds=weights)
        self.view = replace(
            self.view,
            state="running",
            precision=precision,
            step=step,
            switches=view.switches or (PrecisionSwitch(1, precision),),
            comparison=Comparison(rows=tuple(map(self._stats, self._steps))),
            numerics=NumericsView(measured_step=step, window=samples.window(1), xray=view.numerics.xray),
            memory=(breakdown,),
            last=samples.step(step, precision=precision, loss=self.loss, step_seconds=0.01),
        )
        return self.view

    def _switch(self, precision: str) -> None:
        switch = PrecisionSwitch(self.view.step + 1, precision)
        over = None if self.view.compared is None else replace(self.view.compared, over=True)
        self._sides = ()
        switches = (*self.view.switches, switch)
        self.view = replace(self.view, precision=precision, switches=switches, compared=over)

    def _compare(self) -> None:
        over = not self._sides or self._rounds >= self.rounds_needed
        rows = (row("fp32"), *(row(name, 1.5) for name in self._sides[1:]))
        compared = samples.compared(
            self.view.step,
            rounds=self._rounds,
            rows=rows if self._sides else () if self.view.compared is None else self.view.compared.rows,
            over=over,
            reason="narrow" if over else "running",
        )
        self.view = replace(self.view, compared=compared)

    def _stats(self, precision: str) -> PrecisionStats:
        return PrecisionStats(
            precision=precision,
            steps=self._steps[precision],
            warm_up_steps=0,
            median_step_seconds=self.step_seconds.get(precision, 0.01),
            samples_per_second=None,
            peak_allocated_bytes=None,
            last_loss=1.0,
            skipped=0,
        )


def short(request: Request) -> str:
    """What a request asks for, in a word or two."""
    match request:
        case PrecisionRequest(precision):
            return precision
        case ComparisonRequest(precisions):
            return "compare " + ",".join(precisions) if precisions else "end comparison"
        case XRayRequest() | TraceRequest() | HistogramRequest():
            return KINDS[type(request)]
        case PauseRequest(paused):
            return "pause" if paused else "resume"
    return type(request).__name__
