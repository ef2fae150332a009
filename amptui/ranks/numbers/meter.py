"""What a rank measures between two exchanges, and the records that rank 0 makes of all ranks' rows."""

import math
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from amptui.ranks.agreement.orders import NEVER
from amptui.records.ranks import RanksDisagree, RanksOverflowed, RanksSampled, RankValue
from amptui.records.run import Record
from amptui.records.samples import GpuSample, decode_clocks_event_reasons, encode_clocks_event_reasons
from amptui.records.steps import Steps

if TYPE_CHECKING:
    from amptui.ranks.agreement.board import Board

SAMPLE_SECONDS = 1.0
"""The time from one sample in the journal to the next, of up to ``SAMPLED_RANKS``."""

SAMPLED_RANKS = 64
"""How many ranks' numbers a journal takes a second: samples of more ranks come less often."""

_DIGITS = 4
"""Significant digits of what is recorded: half the bytes of a float64, and more than a screen shows."""

MAX_NAMED = 8
"""Ranks that are named as different from the others."""

UNKNOWN, FINITE, GRADIENTS, LOSS = range(4)
"""What is known of a rank's own step: nothing, that all was finite, or what was not."""

STORM_GAP_STEPS = 100
"""Losses that were not finite so long before are not what ended a run."""

_Compared = Literal["loss scale", "found_inf", "weights"]

Floats = npt.NDArray[np.float64]


class RankNumbers(NamedTuple):
    """What a rank measured since its last row; NaN where it measured nothing."""

    steps: float = 0.0
    """How many steps the means are of."""
    last_step: float = 0.0
    """The last of them."""
    step_seconds: float = math.nan
    data_seconds: float = math.nan
    compute_seconds: float = math.nan
    grad_norm: float = math.nan
    skipped: float = 0.0
    """Steps that its scaler skipped so far."""
    overflowed: float = math.nan
    """Steps so far in which its own loss or gradients were not finite; NaN before one was looked at."""
    trouble_step: float = 0.0
    """The newest step that was looked at for that."""
    loss_scale: float = math.nan
    """After ``last_step``."""
    peak_bytes: float = math.nan
    hashed_step: float = -1.0
    """After which the newest hash of the weights was computed; -1 before the first."""
    weights_hash: float = math.nan
    memory_used_bytes: float = math.nan
    """Of the rank's GPU, by NVML, as the next two."""
    sm_clock_mhz: float = math.nan
    clocks_event_reasons: float = 0.0
    """As NVML's mask."""


Rows = npt.NDArray[np.void]
"""[ranks]: the numbers of all, in their order; columns by the names of :class:`RankNumbers`."""

_ROW = np.dtype([(name, np.float64) for name in RankNumbers._fields])


class RankMeter:
    """Collects one rank's numbers from its steps' records; used by the trainer's thread."""

    def __init__(self) -> None:
        self._skipped = self._last_step = 0
        self._loss_scale = self._grad_norm = math.nan
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
        scale = record.loss_scale[-1]
        self._loss_scale = math.nan if scale is None else scale
        norms = [norm for norm in record.grad_norm if norm is not None]
        self._grad_norm = norms[-1] if norms else self._grad_norm

    def take_numbers(
        self, *, compute_seconds: float | None, peak_bytes: int | None, gpu: GpuSample | None = None
    ) -> RankNumbers:
        """The numbers since the last call; ``compute_seconds`` is a mean too, ``peak_bytes`` torch's peak."""
        numbers = RankNumbers(
            steps=self._steps,
            last_step=self._last_step,
            step_seconds=_mean(self._step_seconds),
            data_seconds=_mean(self._data_seconds),
            compute_seconds=math.nan if compute_seconds is None else compute_seconds,
            grad_norm=self._grad_norm,
            skipped=self._skipped,
            loss_scale=self._loss_scale,
            peak_bytes=math.nan if peak_bytes is None else peak_bytes,
        )
        if gpu is not None:
            numbers = numbers._replace(
                memory_used_bytes=math.nan if gpu.memory_used_bytes is None else gpu.memory_used_bytes,
                sm_clock_mhz=math.nan if gpu.sm_clock_mhz is None else gpu.sm_clock_mhz,
                clocks_event_reasons=encode_clocks_event_reasons(gpu.clocks_event_reasons or ()),
            )
        self._begin()
        return numbers


def _mean(values: Sequence[float]) -> float:
    """The mean of what was measured; NaN without any."""
    measured = [value for value in values if not math.isnan(value)]
    return sum(measured) / len(measured) if measured else math.nan


class RankReport:
    """Turns the rows of all ranks into records; rank 0's."""

    def __init__(self, emit: Callable[[Record], object]) -> None:
        self._emit = emit
        self._due = 0.0
        self._rows: list[Rows] = []
        """Those since the last sample."""
        self._steps = 0
        self._skipped: Floats | None = None
        self._hashed_step = -1.0
        self._blamed_step = 0
        self._disagreeing: set[str] = set()
        self.troubles: Callable[[], Sequence[Mapping[int, int]]] = lambda: ()
        """What was found in each rank's own steps with trouble, by step."""

    def take(self, all_numbers: Sequence[Sequence[float]]) -> None:
        """Take one exchange's rows, in the order of the ranks; called by one thread at a time."""
        rows: Rows = np.array([tuple(numbers) for numbers in all_numbers], _ROW)
        self._rows = [*self._rows, rows] if self._steps else [rows]
        self._steps += int(rows["steps"][0])
        self._compare(rows)
        self._compare_weights(rows)
        self._blame(rows)
        if time.monotonic() >= self._due:
            self._tell_sample()

    def close(self) -> None:
        """Tell of the steps since the last sample, however soon after it the training ended."""
        self._tell_sample()

    def _tell_sample(self) -> None:
        if self._steps:
            interval_seconds = SAMPLE_SECONDS * max(1.0, len(self._rows[-1]) / SAMPLED_RANKS)
            self._due = time.monotonic() + interval_seconds
            self._emit(self._sample())
            self._rows, self._steps = [], 0

    def _sample(self) -> RanksSampled:
        rows = self._rows[-1]
        return RanksSampled(
            time=time.time(),
            step=int(rows["last_step"][0]),
            steps=self._steps,
            world_size=len(rows),
            ranks=tuple(range(len(rows))),
            step_seconds=_column(self._means("step_seconds")),
            data_seconds=_column(self._means("data_seconds")),
            compute_seconds=_column(self._means("compute_seconds")),
            peak_allocated_bytes=_whole(rows["peak_bytes"]),
            memory_used_bytes=_whole(rows["memory_used_bytes"]),
            grad_norm=_column(rows["grad_norm"]),
            skipped=_whole(rows["skipped"]),
            overflowed=_whole(rows["overflowed"]),
            sm_clock_mhz=_column(rows["sm_clock_mhz"]),
            throttled=_throttled(rows["clocks_event_reasons"]),
        )

    def _means(self, name: str) -> Floats:
        """[ranks]: the means over all steps of the sample; NaN where nothing was measured."""
        values, steps = (np.stack([rows[column] for rows in self._rows]) for column in (name, "steps"))
        steps = np.where(np.isnan(values), 0.0, steps)
        with np.errstate(invalid="ignore"):  # 0 / 0
            means: Floats = np.nansum(values * steps, axis=0) / steps.sum(axis=0)
        return means

    def _compare(self, rows: Rows) -> None:
        """Tell when ranks begin, or cease, to differ in what DDP keeps equal after the same step."""
        steps = rows["last_step"]
        if not _all_equal(steps):
            return
        # NaN differs from itself: a rank without a loss scale has scale 0.
        scales = np.nan_to_num(rows["loss_scale"], posinf=math.inf)
        self._tell_difference("loss scale", scales, int(steps[0]))
        skipped = rows["skipped"]
        more = skipped if self._skipped is None else skipped - self._skipped
        self._skipped = skipped
        self._tell_difference("found_inf", (more > more.min()).astype(np.float64), int(steps[0]))

    def _compare_weights(self, rows: Rows) -> None:
        """Compare hashes of the weights once all ranks have told theirs of the same step."""
        steps, hashes = rows["hashed_step"], rows["weights_hash"]
        if steps[0] == self._hashed_step or not _all_equal(steps) or np.isnan(hashes).any():
            return
        self._hashed_step = steps[0]
        self._tell_difference("weights", hashes, int(steps[0]))

    def _blame(self, rows: Rows) -> None:
        """Tell which ranks' own numbers were not finite, once all ranks have told of a step with trouble."""
        known_by_all = int(rows["trouble_step"].min())
        if known_by_all <= self._blamed_step:
            return
        states_by_rank = self.troubles()
        for step in sorted({step for states in states_by_rank for step in states}):
            if not self._blamed_step < step <= known_by_all:
                continue
            if ranks := ranks_at_fault([states.get(step, UNKNOWN) for states in states_by_rank]):
                first = tuple(ranks[:MAX_NAMED])
                self._emit(RanksOverflowed(time=time.time(), step=step, ranks=first, count=len(ranks)))
        self._blamed_step = known_by_all

    def _tell_difference(self, what: _Compared, column: Floats, step: int) -> None:
        if _all_equal(column) and what not in self._disagreeing:
            return
        values: list[float] = column.tolist()
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


def _all_equal(column: Floats) -> bool:
    return bool((column == column[0]).all())


def _column(values: Floats) -> tuple[float | None, ...]:
    """A record's column; empty where no rank measured it."""
    if np.isnan(values).all():
        return ()
    return tuple([None if math.isnan(value) else float(f"{value:.{_DIGITS}g}") for value in values])


def _throttled(masks: Floats) -> dict[str, tuple[int, ...]]:
    """The ranks whose clocks are held down, by the reason."""
    ranks_by_reason: dict[str, list[int]] = defaultdict(list)
    for rank in np.flatnonzero(masks).tolist():
        for reason in decode_clocks_event_reasons(int(masks[rank])):
            ranks_by_reason[reason].append(rank)
    return {reason: tuple(ranks) for reason, ranks in ranks_by_reason.items()}


def _whole(values: Floats) -> tuple[int | None, ...]:
    if np.isnan(values).all():
        return ()
    return tuple([None if math.isnan(value) else int(value) for value in values])


def ranks_at_fault(states: Sequence[int]) -> list[int]:
    """The ranks whose own step was not finite, by the states of all; none where that says nothing.

    A loss that is not finite speaks for itself. Gradients count only where all ranks were looked at, since
    they often overflow on several at once. What is said of every rank is of no use.
    """
    if UNKNOWN in states:
        states = [state if state == LOSS else FINITE for state in states]
    ranks = [rank for rank, state in enumerate(states) if state in (GRADIENTS, LOSS)]
    return [] if len(ranks) == len(states) else ranks


def blame(states_by_rank: Sequence[Mapping[int, int]], step: int) -> str:
    """Which ranks had the first loss that was not finite, shortly before ``step``; "" if none stands out."""
    oldest = step - STORM_GAP_STEPS
    bad_losses = [
        [at for at, state in states.items() if state == LOSS and at > oldest] for states in states_by_rank
    ]
    first = min((min(steps) for steps in bad_losses if steps), default=0)
    worst = [rank for rank, steps in enumerate(bad_losses) if first in steps]
    if not worst or len(worst) == len(states_by_rank):
        return ""
    who = f"rank {worst[0]}" + (f" and {len(worst) - 1:,} others" if len(worst) > 1 else "")
    return f"{who} had the first loss that was not finite, in step {first:,}"


def rows_seconds(ranks: int) -> float:
    """The time from one row of each rank to the next: rank 0 reads 4,000 a second at most."""
    return max(0.25, ranks / 1000)


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
                self._report.take(self._board.read([f"row/{rank}" for rank in range(self._ranks)]))

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
        self._report.close()
