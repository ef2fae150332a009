"""The precision of each step."""

from collections import deque
from dataclasses import dataclass, field

from amptui.telemetry.view import PrecisionSwitch

KEPT = 1000
"""So many of the newest switches are kept."""


@dataclass(slots=True, eq=False)
class SwitchList:
    """The run's switches by step, including the precision of the first step."""

    _switches: deque[PrecisionSwitch] = field(default_factory=lambda: deque(maxlen=KEPT))

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
