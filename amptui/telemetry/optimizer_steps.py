"""The steps of one optimizer, folded: its curves, losses, pace, scaler, gradients and comparison."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from amptui.records import findings, samples
from amptui.records import run as records
from amptui.records.own_loop import GradientsDropped, OptimizerFollowed
from amptui.records.steps import Steps, joined
from amptui.telemetry.comparison import PrecisionLedger, low_precision_now
from amptui.telemetry.flops import FlopsWatch
from amptui.telemetry.gpu_use import GpuWatch
from amptui.telemetry.metrics import Metrics
from amptui.telemetry.numerics import FIRST_SCALE, NumericsWatch, headrooms
from amptui.telemetry.pace import EpochPlace, Pace
from amptui.telemetry.scaler import ScalerWatch
from amptui.telemetry.timing import TimingWatch
from amptui.telemetry.tracks import LossSummary, SwitchList, Tracks
from amptui.telemetry.view import OptimizerView, SessionView


@dataclass(slots=True, eq=False)
class OptimizerSteps:
    """Everything that follows from the steps of one optimizer, which counts them from 1."""

    newest: Steps | None = None
    """The row of the newest step, with a measured loss or without."""
    last: Steps | None = None
    """That of the newest with a measured loss."""
    grad_norm: float | None = None
    """The newest measured one."""
    samples_trained: int = 0
    steps_at_sample: int = 0
    """How many steps had been added when the device was sampled last."""
    steps_added: int = 0
    followed: OptimizerFollowed | None = None
    tracks: Tracks = field(default_factory=Tracks)
    metrics: Metrics = field(default_factory=Metrics)
    losses: LossSummary = field(default_factory=LossSummary)
    pace: Pace = field(default_factory=Pace)
    epoch: EpochPlace = field(default_factory=EpochPlace)
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

    def add(self, blocks: Sequence[Steps], steps_per_epoch: int | None) -> None:
        """Add steps of this optimizer, at least one, in the order in which they were emitted."""
        for steps in joined(blocks):
            self._add(steps, steps_per_epoch)
            self.steps_added += steps.count
        self.newest = blocks[-1].part(blocks[-1].count - 1, blocks[-1].count)
        newest_first = blocks[::-1]
        self.last = next(filter(None, (block.newest("loss") for block in newest_first)), self.last)
        with_norm = next(filter(None, (block.newest("grad_norm") for block in newest_first)), None)
        if with_norm is not None:
            self.grad_norm = with_norm.grad_norm[0]

    def _add(self, steps: Steps, steps_per_epoch: int | None) -> None:
        self.ledger.add(steps)
        self.scaler.add(steps)
        self.samples_trained += sum(steps.samples)
        if steps.settling:
            self.gpu.interrupt()
        rewinds = steps.first_step <= self.tracks.last_step
        scale = self.scaler.scale
        if scale is None or scale < records.MIN_SOUND_SCALE:
            scale = FIRST_SCALE
        rooms = headrooms(steps, scale)
        if not self.tracks.add(steps, rooms):
            return
        self.metrics.add(steps)
        self.numerics.add(steps, rooms, scale)
        if rewinds:
            self.switches.switch(steps.first_step, steps.precision)
        else:
            self.switches.observe(steps.first_step, steps.precision)
        self.losses.add(steps)
        self.pace.add(steps)
        self.epoch.add(steps, steps_per_epoch)

    # ---------------------------------------------------------------------------- the device

    def skip_sample(self) -> None:
        """The device was sampled, but what it did since the last time cannot be attributed to these steps."""
        self.steps_at_sample = self.steps_added
        self.gpu.interrupt()

    def add_sample(
        self, sample: samples.DeviceSample, run: records.RunStarted | None, *, training: bool
    ) -> None:
        """Attribute a sample of the device to the precision that this optimizer trained in."""
        self.steps_at_sample = self.steps_added
        if sample.allocator is not None:
            self.ledger.add_peak(sample.allocator.precision, sample.allocator.peak_allocated_bytes)
        use = self.gpu.add(sample, run, training=training, samples_trained=self.samples_trained)
        if use is not None:
            self.ledger.add_gpu_use(use)

    # ----------------------------------------------------------------------- another process

    def resume(self) -> None:
        """Another process continues; what was timed in the one before says nothing of its pace."""
        self.pace = Pace()
        self.gpu.interrupt()
        self.tracks.expect_resume()

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

    def in_front(self, view: SessionView) -> SessionView:
        """``view`` with these steps; its ``run``, ``precision``, ``compared`` and ``step`` are read."""
        low = low_precision_now(view.precision, view.compared)
        comparison, scaler = self.ledger.comparison(low), self.scaler.view()
        loss, samples_rate, loss_scale, skips, rooms = self.tracks.series()
        return replace(
            view,
            epoch=self.epoch.number,
            epoch_step=self.epoch.steps_done(view.step),
            last=self.last,
            newest=self.newest,
            smoothed_loss=self.losses.smoothed,
            best_loss=self.losses.best,
            best_loss_step=self.losses.best_step,
            samples_per_second=self.pace.samples_per_second,
            loss=loss,
            samples_rate=samples_rate,
            loss_scale=loss_scale,
            skips=skips,
            metrics=self.metrics.view(),
            metrics_left_out=self.metrics.are_left_out,
            switches=self.switches.switches,
            comparison=comparison,
            memory=tuple(self.memory[name] for name in records.PRECISION_ORDER if name in self.memory),
            timings=self.timing.timings(comparison),
            flops=self.flops.flops(self.ledger, view.run),
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
            step=self.tracks.last_step,
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
