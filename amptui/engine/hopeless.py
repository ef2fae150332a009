"""Notices where going on could only waste or destroy the run, and ends it, or pauses it and asks."""

from amptui.control import Control
from amptui.engine.precision import PrecisionMode
from amptui.engine.reporting import StepReporter
from amptui.errors import ExperimentError

HOPELESS_STEPS = 10
"""After that many first steps with a non-finite loss, all applied, no weight is a number any more."""

LEAST_LOSS_SCALE = 2.0**-24
"""40 skips in a row below the start. At 0, 126 more, the next step would turn every weight into NaN."""


class HopelessWatch:
    """Looks at what the reporter knows, between two steps."""

    def __init__(self, reporter: StepReporter, control: Control, *, attended: bool) -> None:
        self._reporter = reporter
        self._control = control
        self._attended = attended
        self._reason = ""
        self.floor_accepted = False
        """Whether a person was asked about a fallen loss scale, and it has not recovered since."""

    def look(self, mode: PrecisionMode) -> None:
        """Ask for a pause, or raise ExperimentError, where ``mode`` cannot go on."""
        reporter = self._reporter
        if reporter.bad_applied_steps >= HOPELESS_STEPS:
            raise ExperimentError(
                f"the loss is {reporter.last_loss} from step 1 on, and so is every weight",
                mend="check the inputs and the loss, or use a smaller --lr",
            )
        scale = reporter.loss_scale
        if scale is None or not mode.scales:
            return
        if scale >= LEAST_LOSS_SCALE:
            self.floor_accepted = False
            return
        what = f"the loss scale fell to {scale:.1e} after {reporter.consecutive_skips} skipped steps in a row"
        if not self._attended:
            raise ExperimentError(what, mend="use --precision bf16 or fp32")
        if not self.floor_accepted and not self._control.requested_precision:
            self.floor_accepted = True
            self._reason = what
            self._control.request_pause(True)

    def take_reason(self) -> str:
        """Why it asked for a pause, once; empty where it did not."""
        reason, self._reason = self._reason, ""
        return reason
