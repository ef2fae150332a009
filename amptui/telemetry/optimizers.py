"""The optimizers of a run by name: what follows from the steps of each, and which of them is in front."""

import math
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import attrgetter
from typing import Any

from amptui.records import findings
from amptui.records import run as records
from amptui.records.own_loop import GradientsDropped, OptimizerFollowed
from amptui.records.steps import Column, Steps, are_finite, joined
from amptui.telemetry.comparison import GpuWatch, PrecisionLedger, low_precision_now
from amptui.telemetry.events import cut_label
from amptui.telemetry.flops import FlopsWatch
from amptui.telemetry.history import Metrics, Tracks, rate_series
from amptui.telemetry.numerics import FIRST_SCALE, NumericsWatch, headrooms
from amptui.telemetry.pace import Pace
from amptui.telemetry.scaling import ScalerWatch
from amptui.telemetry.timing import TimingWatch
from amptui.telemetry.view import EMPTY_SERIES, OptimizerView, PrecisionSwitch, SessionView

FIRST = ""
"""The name of a run's first optimizer."""

MAX_OPTIMIZERS = 8
"""Further ones are left out: a script has two or three, and each costs the memory of its curves."""

FOLLOW_AFTER_STEPS = 200
"""The front passes to another optimizer that has made so many steps since the front's last one. Our choice: a
GAN's critic makes 5 steps for one of its generator, at its start up to 100 (Arjovsky et al., 2017); the
phases of a script take thousands."""


SMOOTHING = 0.98
"""The decay of the moving average per finite loss: it spans about 50 steps."""


@dataclass(slots=True, eq=False)
class LossSummary:
    """Exponential moving average and minimum of the finite losses, and the number of unmeasured ones."""

    best: float | None = None
    best_step: int | None = None
    unmeasured_steps: int = 0
    _average: float = 0.0
    _count: int = 0
    """Of the finite losses."""

    def add(self, steps: Steps) -> None:
        """Add steps."""
        losses = steps.loss
        measured = [loss for loss in losses if loss is not None]
        finite = measured if are_finite(measured) else [loss for loss in measured if math.isfinite(loss)]
        self.unmeasured_steps += steps.unmeasured
        if not finite:
            return
        lowest = min(finite)
        if self.best is None or lowest < self.best:
            self.best, self.best_step = lowest, steps.first_step + losses.index(lowest)
        average, share = self._average, 1 - SMOOTHING
        for loss in finite:
            average += share * (loss - average)
        self._average, self._count = average, self._count + len(finite)

    @property
    def smoothed(self) -> float | None:
        """The moving average with bias correction, as in Adam (Kingma and Ba, 2015)."""
        return self._average / (1 - SMOOTHING**self._count) if self._count else None


KEPT_SWITCHES = 1000
"""So many of the newest switches are kept."""


@dataclass(slots=True, eq=False)
class SwitchList:
    """The run's switches by step, including the precision of the first step."""

    _switches: deque[PrecisionSwitch] = field(default_factory=lambda: deque(maxlen=KEPT_SWITCHES))

    @property
    def switches(self) -> tuple[PrecisionSwitch, ...]:
        """Oldest first."""
        return tuple(self._switches)

    @property
    def current(self) -> str | None:
        """The precision of the newest steps."""
        return self._switches[-1].precision if self._switches else None

    def at(self, step: int) -> str | None:
        """The precision of ``step``; None before the first known switch."""
        for switch in reversed(self._switches):
            if switch.step <= step:
                return switch.precision
        return None

    def switch(self, step: int, precision: str) -> None:
        """Steps from ``step`` on run in ``precision``, which overrides what was known before."""
        while self._switches and self._switches[-1].step >= step:
            self._switches.pop()
        if self.current != precision:
            self._switches.append(PrecisionSwitch(step, precision))

    def observe(self, step: int, precision: str) -> None:
        """Steps from ``step`` on were seen to run in ``precision``.

        Step records arrive a little later than a switch: those from before it do not contradict it.
        """
        if not self._switches or step >= self._switches[-1].step:
            self.switch(step, precision)
        elif len(self._switches) == 1 and precision != self._switches[0].precision:
            self._switches.appendleft(PrecisionSwitch(step, precision))


@dataclass(slots=True, eq=False)
class OptimizerSteps:
    """Everything that follows from the steps of one optimizer, which counts them from 1."""

    newest: Steps | None = None
    """The row of the newest step, with a measured loss or without."""
    last: Steps | None = None
    """That of the newest with a measured loss."""
    grad_norm: float | None = None
    """The newest measured one."""
    epoch: int = 0
    samples_trained: int = 0
    followed: OptimizerFollowed | None = None
    tracks: Tracks = field(default_factory=Tracks)
    metrics: Metrics = field(default_factory=Metrics)
    losses: LossSummary = field(default_factory=LossSummary)
    pace: Pace = field(default_factory=Pace)
    ledger: PrecisionLedger = field(default_factory=PrecisionLedger)
    gpu: GpuWatch = field(default_factory=GpuWatch)
    timing: TimingWatch = field(default_factory=TimingWatch)
    flops: FlopsWatch = field(default_factory=FlopsWatch)
    scaler: ScalerWatch = field(default_factory=ScalerWatch)
    numerics: NumericsWatch = field(default_factory=NumericsWatch)
    memory: dict[str, findings.MemoryBreakdown] = field(default_factory=dict)
    """The newest of each precision."""
    switches: SwitchList = field(default_factory=SwitchList)
    dropped: GradientsDropped | None = None
    """The newest of which no step was made and whose loss was not finite."""
    bad_buffers: records.NonFinite | None = None
    """The newest record of buffers that hold NaN or Inf: nothing says that they recover."""

    def add(self, blocks: Sequence[Steps]) -> None:
        """Add steps of this optimizer, at least one, in the order in which they were emitted."""
        for steps in joined(blocks):
            self._add(steps)
        self.newest = blocks[-1].part(blocks[-1].count - 1, blocks[-1].count)
        newest_first = blocks[::-1]
        self.last = next(filter(None, (block.newest("loss") for block in newest_first)), self.last)
        with_norm = next(filter(None, (block.newest("grad_norm") for block in newest_first)), None)
        if with_norm is not None:
            self.grad_norm = with_norm.grad_norm[0]

    def _add(self, steps: Steps) -> None:
        self.ledger.add(steps)
        self.scaler.add(steps)
        self.samples_trained += sum(steps.samples)
        if steps.settling:
            self.gpu.interrupt()
        rewinds = steps.first_step <= self.last_step
        scale = self.scaler.scale
        if scale is None or scale < records.MIN_SOUND_SCALE:
            scale = FIRST_SCALE
        rooms = headrooms(steps, scale)
        self._track(steps, rooms)
        self.metrics.add(steps)
        self.numerics.add(steps, rooms, scale)
        if rewinds:
            self.switches.switch(steps.first_step, steps.precision)
        else:
            self.switches.observe(steps.first_step, steps.precision)
        self.losses.add(steps)
        self.pace.add(steps)
        self.epoch = steps.epoch

    def _track(self, steps: Steps, rooms: Column | None) -> None:
        rates = steps.rates()
        columns: dict[str, Sequence[Any]] = {
            "loss": steps.loss,
            "rate": rates,
            "samples": _where(rates, steps.samples),
            "seconds": _where(rates, steps.step_seconds),
            "scale": steps.loss_scale,
            "skip": steps.skips,
            "headroom": rooms or [None] * steps.count,
        }
        for name, column in columns.items():
            self.tracks.add(name, steps.first_step, column)

    @property
    def last_step(self) -> int:
        """The newest step; 0 before the first."""
        loss = self.tracks.by_name.get("loss")
        return 0 if loss is None else loss.next_step - 1

    # ----------------------------------------------------------------------- another process

    def resume(self) -> None:
        """Another process continues; what was timed in the one before says nothing of its pace."""
        self.pace = Pace()
        self.gpu.interrupt()

    def forget_after(self, step: int) -> None:
        """Later steps no longer count: they are repeated."""
        self.tracks.rewind(step + 1)
        self.metrics.rewind(step + 1)
        self.scaler.rewind(step + 1)
        if self.last is not None and self.last.step > step:
            self.last = None
        if self.newest is not None and self.newest.step > step:
            self.newest = self.last
        self.dropped = self.bad_buffers = None  # the next process finds buffers anew

    def change_device(self) -> None:
        """Seconds, bytes and joules of two devices do not compare."""
        self.ledger, self.timing, self.memory = PrecisionLedger(), TimingWatch(), {}
        self.flops = FlopsWatch()

    # -------------------------------------------------------------------------------- views

    def in_front(self, view: SessionView, lock: threading.Lock) -> SessionView:
        """``view`` with these steps; its ``run``, ``precision``, ``compared`` and ``step`` are read.

        ``lock`` guards what is added.
        """
        low = low_precision_now(view.precision, view.compared)
        comparison, scaler = self.ledger.comparison(low), self.scaler.view()
        tracks = self.tracks.by_name
        loss, loss_scale, skips, rooms = (
            tracks[name].snapshot() if tracks else EMPTY_SERIES
            for name in ("loss", "scale", "skip", "headroom")
        )
        rates = (
            rate_series(*(tracks[name] for name in ("rate", "samples", "seconds")))
            if tracks
            else EMPTY_SERIES
        )
        return replace(
            view,
            epoch=self.epoch,
            last=self.last,
            newest=self.newest,
            smoothed_loss=self.losses.smoothed,
            best_loss=self.losses.best,
            best_loss_step=self.losses.best_step,
            samples_per_second=self.pace.samples_per_second,
            loss=loss,
            samples_rate=rates,
            loss_scale=loss_scale,
            skips=skips,
            metrics=self.metrics.view(lock),
            metrics_left_out=self.metrics.are_left_out,
            switches=self.switches.switches,
            comparison=comparison,
            memory=tuple(self.memory[name] for name in records.PRECISION_ORDER if name in self.memory),
            timings=self.timing.timings(comparison),
            flops=self.flops.flops(comparison.rows, view.run),
            scaler=scaler,
            numerics=self.numerics.view(scaler, rooms, view.precision, low),
            unmeasured_steps=self.losses.unmeasured_steps,
            dropped=self.dropped,
            bad_buffers=self.bad_buffers,
        )

    def beside(self, name: str, label: str, precision: str | None, *, is_front: bool) -> OptimizerView:
        """Its newest numbers in short."""
        newest = self.newest
        has_no_loss = newest is not None and newest.loss[0] is None and bool(newest.loss_form)
        return OptimizerView(
            name=name,
            label=label,
            kind="" if self.followed is None else self.followed.kind,
            step=self.last_step,
            precision=precision,
            loss=None if self.last is None or has_no_loss else self.last.loss[0],
            smoothed_loss=self.losses.smoothed,
            best_loss=self.losses.best,
            loss_form="" if newest is None else newest.loss_form,
            micro_batches=1 if newest is None else newest.micro_batches,
            lr=None if newest is None else newest.lr[0],
            grad_norm=self.grad_norm,
            skipped=self.ledger.skipped,
            step_seconds=self.pace.step_seconds,
            is_front=is_front,
        )


def _where(rates: Column, column: Sequence[Any]) -> Sequence[Any]:
    """``column`` with None for the steps without a rate."""
    if None not in rates:
        return column
    return [None if rate is None else value for rate, value in zip(rates, column, strict=True)]


@dataclass(slots=True, eq=False)
class FrontWatch:
    """Follows the optimizer that makes steps, where a script trains in phases."""

    name: str = FIRST
    _others: dict[str, int] = field(default_factory=dict)
    """Steps of each other one since the newest step of the front."""

    def add(self, name: str, steps: int) -> None:
        """So many steps in a row of one optimizer."""
        if name != self.name:
            self._others[name] = self._others.get(name, 0) + steps
            if self._others[name] < FOLLOW_AFTER_STEPS:
                return
            self.name = name
        self._others.clear()


@dataclass(slots=True, eq=False)
class Optimizers:
    """The steps of each optimizer. The first is always there."""

    is_left_out: bool = False
    """Whether there are more than ``MAX_OPTIMIZERS``."""
    _by_name: dict[str, OptimizerSteps] = field(default_factory=lambda: {FIRST: OptimizerSteps()})
    _front: FrontWatch = field(default_factory=FrontWatch)

    def __iter__(self) -> Iterator[OptimizerSteps]:
        return iter(self._by_name.values())

    @property
    def first(self) -> OptimizerSteps:
        """The run's first, and often only, optimizer."""
        return self._by_name[FIRST]

    @property
    def are_several(self) -> bool:
        """Whether there is more than one."""
        return len(self._by_name) > 1

    def of(self, name: str) -> OptimizerSteps | None:
        """The optimizer of that name, which may be new; None if there are too many."""
        steps = self._by_name.get(name)
        if steps is None and len(self._by_name) < MAX_OPTIMIZERS:
            steps = self._by_name[name] = OptimizerSteps()
            steps.scaler.count(growth_interval=self.first.scaler.counts.growth_interval)
        self.is_left_out |= steps is None
        return steps

    def add(self, blocks: Sequence[Steps]) -> None:
        """Add steps, at least one."""
        if not self.are_several and all(block.optimizer == FIRST for block in blocks):
            self.first.add(blocks)
            return
        by_name: dict[str, list[Steps]] = {}
        for name, in_a_row in groupby(blocks, attrgetter("optimizer")):
            if self.of(name) is not None:
                group = list(in_a_row)
                by_name.setdefault(name, []).extend(group)
                self._front.add(name, sum(block.count for block in group))
        for name, own in by_name.items():
            self._by_name[name].add(own)

    def resume_after(self, step: int, precision: str) -> None:
        """Another process continues after a step of the first; of the others the next record tells where."""
        for steps in self:
            steps.resume()
        self.first.forget_after(step)
        self.first.switches.switch(step + 1, precision)

    # ------------------------------------------------------------------------------- the front

    def front(self, name: str | None) -> str:
        """``name`` if there is such an optimizer; else the one that makes steps."""
        return name if name is not None and name in self._by_name else self._front.name

    def steps_of(self, name: str) -> OptimizerSteps:
        """Raises ``KeyError`` if there is none of that name."""
        return self._by_name[name]

    def label(self, name: str, run: records.RunStarted | None) -> str:
        """What a screen calls it; of the first its class where the script did not name it."""
        if name != FIRST:
            return cut_label(name)
        followed = self.first.followed
        script_name = "" if run is None else run.optimizer
        choices = [script_name] if followed is None else [script_name, followed.model, followed.kind]
        return cut_label(
            next((choice for choice in choices if choice and choice not in self._by_name), "first")
        )

    def views(self, front: str, run: records.RunStarted | None) -> tuple[OptimizerView, ...]:
        """All in the order in which they came; empty for a single one."""
        if not self.are_several:
            return ()
        return tuple(
            steps.beside(name, self.label(name, run), self.precision(name, run), is_front=name == front)
            for name, steps in self._by_name.items()
        )

    def precision(self, name: str, run: records.RunStarted | None) -> str | None:
        """The precision of its steps last confirmed by the engine."""
        of_run = run.precision if run is not None and name == FIRST else None
        return self._by_name[name].switches.current or of_run
