"""What ranks of `amptui train` agree on, in threads that share a store and pass their boundaries together."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import count
from typing import Any, cast

import pytest
from torch._C._distributed_c10d import HashStore

from amptui.loops.step import WEIGHTS, WINDOW
from amptui.ranks.agreement import control as rank_control
from amptui.ranks.agreement import orders, rows
from amptui.ranks.agreement.board import Board
from amptui.ranks.agreement.control import RankControl
from amptui.ranks.numbers.meter import RankReport
from amptui.ranks.world import World
from amptui.records.answers import RequestTaken
from amptui.records.control import (
    CheckpointRequest,
    PrecisionRequest,
    Request,
    XRayRequest,
)
from tests.tiny import Log

PATIENCE_SECONDS = 60.0


class Others:
    """The other ranks, which never end."""

    def check_others(self) -> None: ...

    def explain_lost(self, error: Exception) -> Exception:
        return error

    def waiting(self, *, idle: bool = False) -> AbstractContextManager[None]:
        return nullcontext()


class Ranks:
    """Some ranks, with threads that talk; they pass their boundaries together."""

    def __init__(self, count: int) -> None:
        self.log = Log()
        self.controls = [
            RankControl(World(rank, rank, count), self.log.emit if rank == 0 else lambda _record: None)
            for rank in range(count)
        ]
        self.controls[0].report = RankReport(self.log.emit)
        self.store = HashStore()
        self._until: Callable[[], object] = lambda: True
        self._is_over = False
        self._together = threading.Barrier(count, action=self._look_whether_over)

    def join(self) -> None:
        """Begin to agree."""
        for control in self.controls:
            control.join(Board(self.store, "test"), cast("Any", Others()))

    def boundaries(
        self, until: Callable[[], object], work: Callable[[int, int, RankControl], object] | None = None
    ) -> None:
        """Have all pass boundaries together, with ``work`` after each, ``until`` that is true after one."""

        def train(rank: int, control: RankControl) -> None:
            boundary = 0
            try:
                while not self._is_over:
                    control.at_boundary()
                    if work is not None:
                        work(boundary, rank, control)
                    boundary += 1
                    self._together.wait(PATIENCE_SECONDS)
            except BaseException:
                self._together.abort()
                raise

        self._until, self._is_over = until, False
        with ThreadPoolExecutor(len(self.controls)) as threads:
            list(threads.map(train, *zip(*enumerate(self.controls), strict=True), timeout=PATIENCE_SECONDS))

    def _look_whether_over(self) -> None:
        self._is_over = bool(self._until())


@pytest.fixture(autouse=True)
def _quick_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders, "poll_seconds", lambda _ranks: 0.001)
    monkeypatch.setattr(rows, "rows_seconds", lambda _ranks: 0.001)


@pytest.fixture
def of() -> Iterator[Callable[[int], Ranks]]:
    """So many ranks that agree."""
    all_ranks: list[Ranks] = []

    def ranks_of(count: int) -> Ranks:
        all_ranks.append(Ranks(count))
        all_ranks[-1].join()
        return all_ranks[-1]

    yield ranks_of
    for ranks in all_ranks:
        for control in ranks.controls:
            control.leave()


Of = Callable[[int], Ranks]

BF16, CHECKPOINT = PrecisionRequest("bf16"), CheckpointRequest()


def taken(kind: type[Request], control: RankControl) -> object:
    pending = control.take(kind)
    control.answer(pending)
    return pending and pending.request


def xray(control: RankControl) -> object:
    """Only rank 0 takes it; the others wait meanwhile."""
    return control.newest(XRayRequest) is not None and control.attention and (control.take(XRayRequest), 1)[1]


@pytest.mark.parametrize(
    ("want", "obeyed", "what"),
    [
        (lambda leader: leader.ask(CHECKPOINT), partial(taken, CheckpointRequest), CHECKPOINT),
        (lambda leader: leader.ask(BF16), partial(taken, PrecisionRequest), BF16),
        (lambda leader: leader.ask(XRayRequest()), xray, 1),
        (RankControl.want_checkpoint, RankControl.take_wanted_checkpoint, True),
        (lambda leader: leader.want_probes(WINDOW | WEIGHTS), RankControl.take_probes, WINDOW | WEIGHTS),
        (lambda leader: leader.want_turn("bf16 eager", now="fp32"), RankControl.take_turn, "bf16 eager"),
    ],
)
def test_all_ranks_do_what_is_wanted_at_the_same_boundary_and_once(
    want: Callable[[RankControl], object], obeyed: Callable[[RankControl], object], what: object, of: Of
) -> None:
    ranks = of(3)
    seen: list[list[tuple[int, object]]] = [[], [], []]

    def work(boundary: int, rank: int, control: RankControl) -> None:
        if found := obeyed(control):
            seen[rank].append((boundary, found))

    want(ranks.controls[0])
    ranks.boundaries(lambda: seen[0], work)
    more = count()
    ranks.boundaries(lambda: next(more) > 20, work)
    assert seen[0] == seen[1] == seen[2]
    assert [found for _, found in seen[0]] == [what]


def test_all_ranks_take_a_checkpoint_at_the_same_boundary_and_no_other_before_it_is_done_with(of: Of) -> None:
    ranks = of(2)
    boundaries: list[list[int]] = [[], []]
    due = [False, False]
    leader = ranks.controls[0]
    numbers = [leader.ask(CheckpointRequest()), leader.ask(CheckpointRequest())]

    def work(boundary: int, rank: int, control: RankControl) -> None:
        pending = control.take(CheckpointRequest)
        control.answer(pending)
        due[rank] |= control.take_wanted_checkpoint() or pending is not None
        if due[rank] and control.may_take_checkpoint:
            due[rank] = False
            boundaries[rank].append(boundary)
            assert control.count_checkpoint() == len(boundaries[rank])

    ranks.boundaries(lambda: boundaries[0], work)
    leader.want_checkpoint()
    ranks.boundaries(lambda: due[0], work)
    assert len(boundaries[0]) == 1
    leader.checkpoints_done = 1
    ranks.boundaries(lambda: len(boundaries[0]) == 2, work)
    assert boundaries[0] == boundaries[1]
    assert [answer.request.number for answer in ranks.log.of(RequestTaken)] == numbers


def test_what_the_user_asks_for_ends_a_comparison_on_all_ranks(of: Of) -> None:
    ranks = of(2)
    leader, other = ranks.controls
    leader.want_turn("bf16", now="fp32")
    leader.ask(PrecisionRequest("fp16"))
    ranks.boundaries(lambda: other.newest(PrecisionRequest))
    assert leader.take_turn() == ""
    taken_by_all = [control.take(PrecisionRequest) for control in ranks.controls]
    assert [pending and pending.request for pending in taken_by_all] == [PrecisionRequest("fp16")] * 2


# Where a rank or the store is lost.


def test_a_rank_that_waits_notices_that_another_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the point that it has promised not to pass, and in a pause."""
    monkeypatch.setattr(orders, "_CHECK_SECONDS", 0.001)
    monkeypatch.setattr(rank_control, "_PAUSE_CHECK_SECONDS", 0.001)
    ranks = Ranks(2)
    leader = ranks.controls[0]

    class Ended(Others):
        def check_others(self) -> None:
            raise RuntimeError("rank 1 has ended")

    leader.join(Board(ranks.store, "test"), cast("Any", Ended()))
    leader.ask(CheckpointRequest())
    for comes in (leader.at_boundary, leader.wait):
        with pytest.raises(RuntimeError, match="rank 1 has ended"):
            for_ever(comes)
    leader.leave()


def for_ever(comes: Callable[[], object]) -> None:
    while True:
        comes()
