"""What a rank measures between two exchanges, and the records that rank 0 makes of all ranks' rows."""

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from amptui.ranks.agreement.orders import NEVER
from amptui.records.ranks import COLUMNS, RanksDisagree, RanksOverflowed, RanksSampled, RankValue
from amptui.records.run import Record
from amptui.records.samples import GpuSample
from amptui.records.steps import Steps

if TYPE_CHECKING:
    from amptui.ranks.agreement.board import Board

SAMPLED_RANKS = 64
"""How many ranks' numbers a journal takes a second: samples of more ranks come less often."""

MAX_NAMED = 8
"""Ranks that are named as different from the others."""

STORM_GAP_STEPS = 100
"""Losses that were not finite so long before are not what ended a run."""


class RankNumbers(NamedTuple):
    """What a rank measured since its last row; None where it measured nothing. Names are as in a sample."""

    steps: int = 0
    """How many steps the means are of."""
    last_step: int = 0
    """The last of them."""
    step_seconds: float | None = None
    data_seconds: float | None = None
    compute_seconds: float | None = None
    grad_norm: float | None = None
    skipped: int = 0
    """Steps that its scaler skipped so far."""
    overflowed: int | None = None
    """Steps so far in which its own loss was not finite; None before one was looked at."""
    trouble_step: int = 0
    """The newest step that was looked at for that."""
    loss_scale: float | None = None
    """After ``last_step``."""
    peak_allocated_bytes: int | None = None
    memory_used_bytes: int | None = None
    """Of the rank's GPU, by NVML, as the next two."""
    sm_clock_mhz: float | None = None
    throttled: Sequence[str] = ()


class RankMeter:
    """Collects one rank's numbers from its steps' records; used by the trainer's thread."""

    def __init__(self) -> None:
        self._skipped = self._last_step = 0
        self._loss_scale: float | None = None
        self._grad_norm: float | None = None
        self._begin()

    def _begin(self) -> None:
        self._steps = 0
        self._step_seconds: list[float] = []
        self._data_seconds: list[float] = []

    def add(self, record: Record) -> None:
        """Add steps; other records tell nothing of them."""
        if type(record) is not Steps:
            return
        self._steps += record.count
        self._last_step = record.last_step
        self._step_seconds += [seconds for seconds in record.step_seconds if seconds is not None]
        self._data_seconds += [seconds for seconds in record.data_seconds if seconds is not None]
        self._skipped += sum(record.skipped)
        self._loss_scale = record.loss_scale[-1]
        norms = [norm for norm in record.grad_norm if norm is not None]
        self._grad_norm = norms[-1] if norms else self._grad_norm

    def take_numbers(
        self, *, compute_seconds: float | None, peak_bytes: int | None, gpu: GpuSample | None = None
    ) -> RankNumbers:
        """The numbers since the last call; ``compute_seconds`` is a mean too, ``peak_bytes`` torch's peak."""
        gpu = gpu or GpuSample(uuid="")
        numbers = RankNumbers(
            steps=self._steps,
            last_step=self._last_step,
            step_seconds=fmean(self._step_seconds) if self._step_seconds else None,
            data_seconds=fmean(self._data_seconds) if self._data_seconds else None,
            compute_seconds=compute_seconds,
            grad_norm=self._grad_norm,
            skipped=self._skipped,
            loss_scale=self._loss_scale,
            peak_allocated_bytes=peak_bytes,
            memory_used_bytes=gpu.memory_used_bytes,
            sm_clock_mhz=gpu.sm_clock_mhz,
            throttled=gpu.clocks_event_reasons or (),
        )
        self._begin()
        return numbers


class RankReport:
    """Turns the rows of all ranks into records; rank 0's."""

    def __init__(self, emit: Callable[[Record], object]) -> None:
        self._emit = emit
        self._skipped: Sequence[int] = ()
        self._blamed_step = 0
        self._disagreeing: set[str] = set()
        self.bad_steps: Callable[[], Sequence[Sequence[int]]] = lambda: ()
        """Those in which each rank's own loss was not finite."""

    def take(self, rows: Sequence[RankNumbers]) -> None:
        """Take one exchange's rows, in the order of the ranks; called by one thread at a time."""
        leader = rows[0]
        # What DDP keeps equal after the same step.
        if all(row.last_step == leader.last_step for row in rows):
            self._compare("loss scale", [row.loss_scale or 0.0 for row in rows], leader.last_step)
            before = self._skipped or [0] * len(rows)
            self._skipped = [row.skipped for row in rows]
            more = [row.skipped - skipped for row, skipped in zip(rows, before, strict=True)]
            self._compare("found_inf", [float(count > min(more)) for count in more], leader.last_step)
        self._blame(min(row.trouble_step for row in rows))
        if leader.steps:
            self._emit_sample(leader, rows)

    def _emit_sample(self, leader: RankNumbers, rows: Sequence[RankNumbers]) -> None:
        ranks_by_reason: dict[str, list[int]] = defaultdict(list)
        for rank, row in enumerate(rows):
            for reason in row.throttled:
                ranks_by_reason[reason].append(rank)
        columns: dict[str, Any] = {name: [_rounded(getattr(row, name)) for row in rows] for name in COLUMNS}
        self._emit(
            RanksSampled(
                time=time.time(),
                step=leader.last_step,
                steps=leader.steps,
                world_size=len(rows),
                throttled={reason: tuple(ranks) for reason, ranks in ranks_by_reason.items()},
                **{name: tuple(column) for name, column in columns.items() if set(column) != {None}},
            )
        )

    def _blame(self, known_by_all: int) -> None:
        """Tell which ranks' own losses were not finite, once all ranks have looked at a step with trouble."""
        if known_by_all <= self._blamed_step:
            return
        by_rank = self.bad_steps()
        for step in sorted({step for steps in by_rank for step in steps}):
            ranks = [rank for rank, steps in enumerate(by_rank) if step in steps]
            # What is said of every rank is of no use.
            if self._blamed_step < step <= known_by_all and len(ranks) < len(by_rank):
                first = tuple(ranks[:MAX_NAMED])
                self._emit(RanksOverflowed(time=time.time(), step=step, ranks=first, count=len(ranks)))
        self._blamed_step = known_by_all

    def _compare(self, what: Literal["loss scale", "found_inf"], values: Sequence[float], step: int) -> None:
        """Tell when ranks begin, or cease, to differ."""
        counts = Counter(values)
        most = max(counts, key=lambda value: (counts[value], value == values[0]))
        others = tuple(RankValue(rank=i, value=value) for i, value in enumerate(values) if value != most)
        if bool(others) == (what in self._disagreeing):
            return
        self._disagreeing.symmetric_difference_update({what})
        self._emit(
            RanksDisagree(
                time=time.time(),
                step=step,
                what=what,
                count=len(others),
                most=most,
                others=others[:MAX_NAMED],
            )
        )


def _rounded(value: float | None) -> float | None:
    """Four digits are half the bytes of a float64, and more than a screen shows."""
    return float(f"{value:.4g}") if isinstance(value, float) else value


def blame(bad_steps: Sequence[Sequence[int]], step: int) -> str:
    """Which ranks had the first loss that was not finite, shortly before ``step``; "" if none stands out."""
    bad_losses = [[at for at in steps if at > step - STORM_GAP_STEPS] for steps in bad_steps]
    first = min((min(steps) for steps in bad_losses if steps), default=0)
    worst = [rank for rank, steps in enumerate(bad_losses) if first in steps]
    if not worst or len(worst) == len(bad_steps):
        return ""
    who = f"rank {worst[0]}" + (f" and {len(worst) - 1:,} others" if len(worst) > 1 else "")
    return f"{who} had the first loss that was not finite, in step {first:,}"


def rows_seconds(ranks: int) -> float:
    """The time from one row of each rank to the next, and so from one sample in the journal to the next."""
    return max(1.0, ranks / SAMPLED_RANKS)


class PostedRows:
    """One rank's part. The training compares a number with ``due`` at each point and calls :meth:`put`.

    A thread beside it calls :meth:`announce` at rank 0, whose ``report`` takes the rows of all ranks, and
    elsewhere :meth:`follow`. No rank waits for a row.
    """

    def __init__(self, board: "Board", rank: int, ranks: int, report: RankReport | None) -> None:
        self._board = board
        self._rank = rank
        self._ranks = ranks
        self._report = report
        self.due = NEVER
        """The point after which the training measures."""
        self._number = 0
        """That of the row that is asked for, or the newest; equal on all ranks."""
        self._own_row: RankNumbers | None = None
        self._newest = 0, RankNumbers()
        """The newest row that this rank has measured, and its number."""
        self._taken_number = 0
        """The number of the newest rows that rank 0 has taken."""
        self._next_at = 0.0
        self._finished = False
        self._announcing = threading.Lock()
        """The thread may take rows while the training ends."""
        board.decide("sample", [0, 0])

    def put(self, numbers: RankNumbers) -> None:
        """The training's numbers at this point."""
        self.due = NEVER
        self._own_row, self._newest = numbers, (self._number, numbers)

    def follow(self, number: int, point: int) -> None:
        """Rank 0 has asked for row ``number`` at ``point``, or as soon as the training hears of it."""
        if number > self._number:
            self._number, self.due = number, point
        row, self._own_row = self._own_row, None
        if row is not None:
            self._board.post(f"row/{self._rank}", row)
            self._board.count("rows", 1)

    def announce(self, point: int) -> None:
        """Rank 0's: ask for the next rows at ``point`` if it is time, or take those that all have posted."""
        with self._announcing:
            if self._finished:
                return
            number, now = self._number, time.monotonic()
            self.follow(number, point)
            if self._taken_number == number and now >= self._next_at:
                self._next_at = now + rows_seconds(self._ranks)
                self._board.post("sample", [number + 1, point])
                self.follow(number + 1, point)
            elif self._taken_number < number and self._board.count("rows") >= number * self._ranks:
                assert self._report is not None, "rank 0 has one"
                self._taken_number = number
                rows = self._board.read([f"row/{rank}" for rank in range(self._ranks)])
                self._report.take([RankNumbers(*row) for row in rows])

    def finish(self, numbers: RankNumbers, gather: Callable[[Any], Sequence[Any]]) -> None:
        """The training's last numbers, which ``gather`` gets of all ranks: here they come to the end."""
        with self._announcing:
            self._finished, self.due = True, NEVER
        last_rows = gather([*self._newest, numbers])
        if self._report is None:
            return
        # Those that not all had posted before come first.
        pending = [row if number > self._taken_number else None for number, row, _ in last_rows]
        if any(pending):
            self._report.take([row or RankNumbers() for row in pending])
        self._report.take([row for _, _, row in last_rows])
