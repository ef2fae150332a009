"""What the steps and the scaler's own records say of the GradScaler."""

from amptui import units
from amptui.records import LossScaleChanged, StepRecord
from amptui.telemetry.events import scale_move
from amptui.telemetry.stretch import Stretch
from amptui.telemetry.view import ScalerView


class ScalerWatch:
    """Follows the scale, and counts what ``fp16`` steps did to the weights."""

    def __init__(self) -> None:
        self.growth_interval: int | None = None
        self._applied = 0
        self._skipped = 0
        self._last: StepRecord | None = None
        self._change: LossScaleChanged | None = None

    def add(self, stretch: Stretch) -> None:
        """Take in a stretch of steps; what was not measured counts neither as applied nor as skipped."""
        if stretch.precision != "fp16":
            return
        skipped = stretch.skipped
        self._skipped += skipped
        self._applied += len(stretch) - stretch.losses.count(None) - skipped
        scaled = (record for record in reversed(stretch.records) if record.loss_scale is not None)
        self._last = next(scaled, self._last)

    def add_change(self, change: LossScaleChanged) -> None:
        """Take in a move of the scale."""
        self._change = change

    def view(self) -> ScalerView:
        """The scaler after the newest step that is known of."""
        last, change = self._last, self._change
        scale = last.loss_scale if last else None
        growth_tracker = last.growth_tracker if last else None
        if change is not None and (last is None or change.step >= last.step):
            # A record tells the scale that its step ran with; both moves start the count anew.
            scale, growth_tracker = change.current, 0
        return ScalerView(
            scale=scale,
            growth_tracker=growth_tracker,
            growth_interval=self.growth_interval,
            applied=self._applied,
            skipped=self._skipped,
            last_change=_in_words(change) if change else "",
        )


def _in_words(change: LossScaleChanged) -> str:
    """``backoff at step 612: 131,072 → 65,536``."""
    move = scale_move(change.previous, change.current)
    return f"{change.reason} at step {units.count(change.step)}: {move}"
