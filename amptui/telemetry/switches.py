"""Which steps ran in which precision."""

from collections import deque
from dataclasses import dataclass, field

from amptui.telemetry.view import PrecisionSwitch

KEPT = 1000
"""Switches that are kept, the newest."""


@dataclass(slots=True, eq=False)
class SwitchList:
    """The run's switches in the order of their steps, the first step's precision included."""

    _switches: deque[PrecisionSwitch] = field(default_factory=lambda: deque(maxlen=KEPT))

    @property
    def switches(self) -> tuple[PrecisionSwitch, ...]:
        """Oldest first."""
        return tuple(self._switches)

    @property
    def current(self) -> str | None:
        """The precision that the newest steps run in."""
        return self._switches[-1].precision if self._switches else None

    def at(self, step: int) -> str | None:
        """The precision of ``step``; None before the first that is known."""
        for switch in reversed(self._switches):
            if switch.step <= step:
                return switch.precision
        return None

    def switch(self, step: int, precision: str) -> None:
        """From ``step`` on steps run in ``precision``, whatever was known of them before."""
        while self._switches and self._switches[-1].step >= step:
            self._switches.pop()
        if self.current != precision:
            self._switches.append(PrecisionSwitch(step, precision))

    def observe(self, step: int, precision: str) -> None:
        """Steps from ``step`` on were seen to run in ``precision``.

        They come a little later than the word of a switch: those from before it say nothing about it.
        """
        if not self._switches or step >= self._switches[-1].step:
            self.switch(step, precision)
        elif len(self._switches) == 1 and precision != self._switches[0].precision:
            self._switches.appendleft(PrecisionSwitch(step, precision))
