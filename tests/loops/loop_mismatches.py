"""Holds what was recorded of a generated loop to the truth: equal, or absent with a reason."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from hypothesis import reject

from amptui.records.own_loop import GradientsDropped, OptimizerFollowed
from amptui.records.run import Record
from tests.builders import StepRow
from tests.loops.loop_plans import Example
from tests.loops.loop_players import Dropped, TrueStep, Truth
from tests.loops.loop_shapes import run_plan
from tests.loops.loop_watchers import WATCHERS, Bare, numbers_of, objects_state, torch_state

EXCUSES = {
    "SAM": {"edited"},
    "SAM class": {"edited"},
    "adversarial": {"edited"},
    "LBFGS": {"unattributed"},
}
"""By shape, the reasons for which a loss may be absent that the truth has."""


@dataclass
class Result:
    """What was recorded otherwise than it was in one example."""

    example: Example
    mismatches: list[str] = field(default_factory=list)

    def add(self, what: str, truth: object, record_value: object, place: str = "") -> None:
        self.mismatches.append(
            f"{what}{place}: {truth!r} was recorded as {record_value!r} in {self.example!r}"
        )


def check(example: Example) -> list[str]:
    """Run an example watched and then not, and compare everything; what was not the same."""
    result, before = Result(example), torch_state()
    watcher = WATCHERS[example.watching.by](example)
    try:
        run = run_plan(example.plan, watcher)
    except Exception as error:  # noqa: BLE001 - what a loop raises because it is watched
        try:
            run_plan(example.plan, Bare(example))
        except type(error) as bare_error:
            if str(bare_error) == str(error):
                reject()  # an older torch cannot run each plan; a law that finds none that runs fails
        result.add("exception", None, f"{type(error).__name__}: {error}")
        return result.mismatches
    if left := [name for name, value in torch_state().items() if value != before.get(name)]:
        result.add("hooks left", None, left)
    bare = run_plan(example.plan, Bare(example, run.begun))
    if objects_state(run) != objects_state(bare):
        result.add("attributes left", objects_state(bare), objects_state(run))
    pairs = zip(numbers_of(run), numbers_of(bare), strict=True)
    if not all(torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0)) for one, other in pairs):
        result.add("bits", None, None)
    for fault in watcher.faults:
        result.add("fault", None, repr(fault))
    _compare_steps(result, watcher.records, run.truth.steps)
    _compare_dropped(result, watcher.records, run.truth, example.plan.bad_batches)
    return result.mismatches


def _compare_steps(result: Result, records: Sequence[Record], true_steps: Sequence[TrueStep]) -> None:
    """Compare the steps of each optimizer: by name, in the order in which the names appear."""
    players = dict.fromkeys(step.player for step in true_steps)
    true = {player: [step for step in true_steps if step.player == player] for player in players}
    steps: dict[str, list[StepRow]] = {}
    for record in records:
        if isinstance(record, StepRow):
            steps.setdefault(record.optimizer, []).append(record)
        elif isinstance(record, OptimizerFollowed) and record.optimizer and not record.replaces:
            steps.setdefault(record.optimizer, [])  # in the order of their first steps
    given = result.example.watching.player
    searched = result.example.watching.by == "run --observe"
    owner = next(iter(true), given) if searched else given
    _compare_one(result, owner, true.pop(owner, []), steps.pop("", []))
    if not searched and not steps:
        return  # only the given optimizer is watched
    if len(true) != len(steps):
        result.add("optimizers", 1 + len(true), 1 + len(steps))
    for (player, others), name in zip(true.items(), steps, strict=False):
        _compare_one(result, player, others, steps[name])


def _compare_one(result: Result, player: int, true: Sequence[TrueStep], records: Sequence[StepRow]) -> None:
    if (numbers := [record.step for record in records]) != [step.step for step in true]:
        result.add("steps", len(true), numbers, f" of player {player}")
    for step, record in zip(true, records, strict=False):
        place = f" of player {player}, step {step.step}"
        for what, truth, value in (*_facts(result.example, step, record), *_loss_facts(result, step, record)):
            if not _same(truth, value):
                result.add(what, truth, value, place)
        if record.precision not in (*step.precisions, "unknown"):
            result.add("precision", " or ".join(step.precisions), record.precision, place)


def _facts(example: Example, step: TrueStep, record: StepRow) -> Iterator[tuple[str, object, object]]:
    plan = example.plan
    if example.watching.tells_batches and plan.shape == "plain" and plan.guard == "none":
        yield "samples", 4 * plan.accumulate, record.samples
    yield "skipped", step.skipped, record.skipped
    yield "loss scale", step.loss_scale, record.loss_scale
    yield "learning rate", step.lrs[0], record.lr
    if len(set(step.lrs)) > 1:
        yield "learning rates", step.lrs, record.group_lrs


def _loss_facts(result: Result, step: TrueStep, record: StepRow) -> Iterator[tuple[str, object, object]]:
    truth = step.loss if step.logged is None else step.logged
    if truth is None:
        yield "loss", None, record.loss
        yield "reason", step.loss_form, record.loss_form
    elif record.loss is None:
        if record.loss_form not in excuses(result.example):
            yield "null loss", truth, record.loss_form
    else:
        yield "loss", truth, record.loss
        if step.logged is None:
            yield "loss form", step.loss_form, record.loss_form
            yield "micro-batches", step.passes, record.micro_batches


def excuses(example: Example) -> set[str]:
    """The reasons for which a loss of this example may be absent: in most examples there are none."""
    plan, excused = example.plan, set(EXCUSES.get(example.plan.shape, ()))
    if not plan.detaches:
        excused |= {"edited", "unattributed"}
    if plan.backward == "two losses":
        excused |= {"several values"}
    if plan.scaler.kind == "new each epoch" or (plan.scaler.scales and not example.watching.passes_scaler):
        excused |= {"scaled"}
    if plan.checkpoints == "reentrant" or plan.compiled != "none":
        excused |= {"unattributed"}
    if plan.clearing.how.startswith("grad"):  # nobody is called
        excused |= {"edited"}
    return excused


def _same(truth: object, record_value: object) -> bool:
    if isinstance(truth, float) and isinstance(record_value, float):
        both_nan = math.isnan(truth) and math.isnan(record_value)
        return both_nan or math.isclose(truth, record_value, rel_tol=1e-5, abs_tol=1e-7)
    if isinstance(truth, tuple) and isinstance(record_value, tuple):
        return len(truth) == len(record_value) and all(map(_same, truth, record_value))
    return truth == record_value and type(truth) is type(record_value)


def _compare_dropped(
    result: Result, records: Sequence[Record], truth: Truth, bad_batches: Sequence[int]
) -> None:
    """One event for each guarded skip after two steps, once another step has shown that it was one.

    A loop that drops gradients before each step from its first one on, or before several in a row, does so as
    a rule. After a bad batch passes that are never meant for a step have NaN losses, too.
    """
    events = [(record.step, record.passes) for record in records if isinstance(record, GradientsDropped)]
    last, dropped = max((step.step for step in truth.steps), default=0), truth.dropped
    rare = (drop for drop in dropped if 2 <= drop.step < last and _is_rare(drop, dropped))
    certain = [(drop.step, drop.passes) for drop in rare if not drop.is_finite]
    possible = [(drop.step, drop.passes) for drop in dropped]
    if Counter(certain) - Counter(events) or (Counter(events) - Counter(possible) and not bad_batches):
        result.add("gradients dropped", certain, events)


def _is_rare(drop: Dropped, dropped: Sequence[Dropped]) -> bool:
    """Whether one of the last two steps before it was made without dropping anything first."""
    steps = {other.step for other in dropped}
    return not {drop.step - 1, drop.step - 2} <= steps
