"""The optimizers of a run by name, and which of them a screen shows in front."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter

from amptui.records.run import RunStarted
from amptui.records.steps import Steps
from amptui.telemetry.events import cut_label
from amptui.telemetry.optimizer_steps import OptimizerSteps
from amptui.telemetry.view import OptimizerView

FIRST = ""
"""The name of a run's first optimizer."""

MAX_OPTIMIZERS = 8
"""Further ones are left out: a script has two or three, and each costs the memory of its curves."""

FOLLOW_AFTER_STEPS = 200
"""The front passes to another optimizer that has made so many steps since the front's last one. Our choice: a
GAN's critic makes 5 steps for one of its generator, at its start up to 100 (Arjovsky et al., 2017); the
phases of a script take thousands."""


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
            steps.scaler.growth_interval = self.first.scaler.growth_interval
        self.is_left_out |= steps is None
        return steps

    def add(self, blocks: Sequence[Steps], steps_per_epoch: int | None) -> None:
        """Add steps, at least one; ``steps_per_epoch`` is of the first optimizer."""
        if not self.are_several and all(block.optimizer == FIRST for block in blocks):
            self.first.add(blocks, steps_per_epoch)
            return
        by_name: dict[str, list[Steps]] = {}
        for name, in_a_row in groupby(blocks, attrgetter("optimizer")):
            if self.of(name) is not None:
                group = list(in_a_row)
                by_name.setdefault(name, []).extend(group)
                self._front.add(name, sum(block.count for block in group))
        for name, own in by_name.items():
            self._by_name[name].add(own, steps_per_epoch if name == FIRST else None)

    def resume_after(self, step: int, precision: str) -> None:
        """Another process continues after a step of the first; of the others the next record tells where."""
        for steps in self:
            steps.resume()
        self.first.forget_after(step)
        self.first.switches.switch(step + 1, precision)

    def training(self, precision: str) -> tuple[OptimizerSteps, ...]:
        """Those to which a sample of the device in ``precision`` can be attributed.

        All that made steps since the last sample, if they ran in that precision; the sample says nothing of
        a mixture. With a single optimizer that one, which may be within a long step.
        """
        if not self.are_several:
            return (self.first,)
        stepped = tuple(steps for steps in self if steps.steps_added > steps.steps_at_sample)
        agree = all(steps.switches.current == precision for steps in stepped)
        return stepped if agree else ()

    # ------------------------------------------------------------------------------- the front

    def front(self, name: str | None) -> str:
        """``name`` if there is such an optimizer; else the one that makes steps."""
        return name if name is not None and name in self._by_name else self._front.name

    def steps_of(self, name: str) -> OptimizerSteps:
        """Raises ``KeyError`` if there is none of that name."""
        return self._by_name[name]

    def label(self, name: str, run: RunStarted | None) -> str:
        """What a screen calls it; of the first its class where the script did not name it."""
        if name != FIRST:
            return cut_label(name)
        followed = self.first.followed
        script_name = "" if run is None else run.optimizer
        choices = [script_name] if followed is None else [script_name, followed.model, followed.kind]
        return cut_label(
            next((choice for choice in choices if choice and choice not in self._by_name), "first")
        )

    def views(self, front: str, run: RunStarted | None) -> tuple[OptimizerView, ...]:
        """All in the order in which they came; empty for a single one."""
        if not self.are_several:
            return ()
        return tuple(
            steps.beside(name, self.label(name, run), self.precision(name, run), is_front=name == front)
            for name, steps in self._by_name.items()
        )

    def precision(self, name: str, run: RunStarted | None) -> str | None:
        """The precision of its steps last confirmed by the engine."""
        of_run = run.precision if run is not None and name == FIRST else None
        return self._by_name[name].switches.current or of_run
