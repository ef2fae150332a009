"""What ranks agree on, of `amptui train` and of a script: in threads that share a store and pass points."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from typing import Any

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from amptui.loops.train_step import WEIGHTS, WINDOW
from amptui.ranks import meter
from amptui.ranks.agreement import board, orders
from amptui.ranks.agreement import control as rank_control
from amptui.ranks.agreement.board import Board
from amptui.ranks.agreement.control import RankControl
from amptui.ranks.progress import RankProgress
from amptui.ranks.world import World
from amptui.records.answers import RequestKind, RequestMade, RequestRefused, RequestTaken
from tests.tiny import Log

PATIENCE_SECONDS = 60.0


class Ranks:
    """Some ranks, with threads that talk; they pass their boundaries, or the steps of a script, together."""

    def __init__(self, count: int, *, counts_alike: bool = True) -> None:
        self.log = Log()
        self.controls = [
            RankControl(
                World(rank, rank, count),
                self.log.emit if rank == 0 else lambda _record: None,
                counts_alike=counts_alike,
            )
            for rank in range(count)
        ]
        self.leader = self.controls[0]
        self.steps = [0] * count
        self.store = HashStore()

    def connect(self, check: Callable[[], object] = lambda: None) -> None:
        for rank, control in enumerate(self.controls):
            control.connect(Board(self.store, "test"), self.progress(rank), control.fail, check)

    def progress(self, rank: int) -> RankProgress:
        return RankProgress(lambda: ("script", self.steps[rank]))

    def point(self, rank: int) -> None:
        """One rank comes to its next boundary, or to the end of its next step."""
        control = self.controls[rank]
        self.steps[rank] += 1
        if control.counts_alike:
            control.at_boundary()
        elif control.attention:
            control.look(self.steps[rank])

    def pass_until(
        self,
        is_over: Callable[[], object],
        work: Callable[[int, int, RankControl], object] = lambda *_: None,
        ranks: Sequence[int] = (),
    ) -> None:
        """Have ``ranks``, or all, pass points together, with ``work`` after each, until one is the last."""
        members = ranks or range(len(self.controls))
        over = False

        def look_whether_over() -> None:
            nonlocal over
            over = bool(is_over())

        together = threading.Barrier(len(members), action=look_whether_over)

        def train(rank: int) -> None:
            try:
                while not over:
                    self.point(rank)
                    work(self.steps[rank], rank, self.controls[rank])
                    together.wait(PATIENCE_SECONDS)
            except BaseException:
                together.abort()
                raise

        with ThreadPoolExecutor(len(members)) as threads:
            list(threads.map(train, members, timeout=PATIENCE_SECONDS))

    def refusals(self) -> list[tuple[str, str]]:
        return [(record.request.kind, record.reason) for record in self.log.of(RequestRefused)]


@pytest.fixture(autouse=True)
def _quick_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders, "poll_seconds", lambda _ranks: 0.001)
    monkeypatch.setattr(meter, "rows_seconds", lambda _ranks: 0.001)


@pytest.fixture
def of() -> Iterator[Callable[..., Ranks]]:
    all_ranks: list[Ranks] = []

    def ranks_of(count: int, **facts: bool) -> Ranks:
        all_ranks.append(Ranks(count, **facts))
        all_ranks[-1].connect()
        return all_ranks[-1]

    yield ranks_of
    for ranks in all_ranks:
        for control in ranks.controls:
            control.leave()


Of = Callable[..., Ranks]

BF16, CHECKPOINT = RequestMade("precision", precision="bf16"), RequestMade("checkpoint")


def taken(kind: RequestKind, control: RankControl) -> object:
    pending = control.take(kind)
    control.answer(pending)
    return pending and (pending.kind, pending.precision, pending.paused)


@pytest.mark.parametrize("counts_alike", [True, False])
@pytest.mark.parametrize(
    ("want", "obeyed", "what"),
    [
        (lambda leader: leader.ask(CHECKPOINT), partial(taken, "checkpoint"), ("checkpoint", None, None)),
        (lambda leader: leader.ask(BF16), partial(taken, "precision"), ("precision", "bf16", None)),
        (lambda leader: leader.want(checkpoint=True), RankControl.take_wanted_checkpoint, True),
        (lambda leader: leader.want_probes(WINDOW | WEIGHTS), RankControl.take_probes, WINDOW | WEIGHTS),
        (lambda leader: leader.want_turn("bf16", now="fp32"), RankControl.take_turn, "bf16"),
    ],
)
def test_all_ranks_do_what_is_wanted_at_the_same_point_and_once(
    want: Callable[[RankControl], object],
    obeyed: Callable[[RankControl], object],
    what: object,
    of: Of,
    *,
    counts_alike: bool,
) -> None:
    ranks = of(3, counts_alike=counts_alike)
    seen: list[list[tuple[int, object]]] = [[], [], []]

    def work(point: int, rank: int, control: RankControl) -> None:
        if found := obeyed(control):
            seen[rank].append((point, found))

    want(ranks.leader)
    ranks.pass_until(lambda: seen[0], work)
    more = count()
    ranks.pass_until(lambda: next(more) > 20, work)
    assert seen[0] == seen[1] == seen[2]
    assert [found for _, found in seen[0]] == [what]


def test_all_ranks_take_a_checkpoint_at_the_same_boundary_and_no_other_before_it_is_done_with(of: Of) -> None:
    ranks = of(2)
    boundaries: list[list[int]] = [[], []]
    due = [False, False]
    leader = ranks.leader
    numbers = [leader.ask(RequestMade("checkpoint")), leader.ask(RequestMade("checkpoint"))]

    def work(boundary: int, rank: int, control: RankControl) -> None:
        pending = control.take("checkpoint")
        control.answer(pending)
        due[rank] |= control.take_wanted_checkpoint() or pending is not None
        if due[rank] and control.may_take_checkpoint:
            due[rank] = False
            boundaries[rank].append(boundary)
            assert control.count_checkpoint() == len(boundaries[rank])

    ranks.pass_until(lambda: boundaries[0], work)
    leader.want(checkpoint=True)
    ranks.pass_until(lambda: due[0], work)
    assert len(boundaries[0]) == 1
    leader.checkpoints_done = 1
    ranks.pass_until(lambda: len(boundaries[0]) == 2, work)
    assert boundaries[0] == boundaries[1]
    assert [answer.request.number for answer in ranks.log.of(RequestTaken)] == numbers


def test_what_the_user_asks_for_ends_a_comparison_on_all_ranks(of: Of) -> None:
    ranks = of(2)
    leader, other = ranks.controls
    leader.want_turn("bf16", now="fp32")
    leader.ask(RequestMade("precision", precision="fp16"))
    ranks.pass_until(lambda: other.newest("precision"))
    assert leader.take_turn() == ""
    taken_by_all = [control.take("precision") for control in ranks.controls]
    assert [pending and pending.precision for pending in taken_by_all] == ["fp16"] * 2


def test_a_rank_that_waits_notices_that_another_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the point that it has promised not to pass, and in a pause."""
    monkeypatch.setattr(orders, "_CHECK_SECONDS", 0.001)
    monkeypatch.setattr(rank_control, "_PAUSE_CHECK_SECONDS", 0.001)
    ranks = Ranks(2)
    leader = ranks.leader

    def check() -> None:
        raise RuntimeError("rank 1 has ended")

    leader.connect(Board(HashStore(), "test"), ranks.progress(0), leader.fail, check)
    leader.ask(RequestMade("checkpoint"))
    for comes in (leader.at_boundary, leader.wait):
        with pytest.raises(RuntimeError, match="rank 1 has ended"):
            for_ever(comes)
    leader.leave()


def for_ever(comes: Callable[[], object]) -> None:
    while True:
        comes()


# Ranks of a script, which may count their steps differently, and go without failing.


def test_ranks_at_different_places_refuse_and_go_on(of: Of, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after batches that one rank did not have: the steps that it counts are others."""
    ranks = of(2, counts_alike=False)
    monkeypatch.setattr(board, "collectives_by_group", lambda: {"mesh": threading.get_ident()})
    ranks.leader.ask(BF16)
    ranks.pass_until(ranks.refusals)
    assert [control.take("precision") for control in ranks.controls] == [None, None]
    ranks.leader.ask(RequestMade("precision", precision="fp16"))
    ranks.leader.ask(RequestMade("comparison", precisions=("fp32", "bf16")))
    refused = [("precision", "failed"), ("precision", "unavailable"), ("comparison", "unavailable")]
    assert ranks.refusals() == refused


def test_a_rank_that_does_not_come_makes_nobody_wait_for_long_and_does_later_as_they_did(
    of: Of, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(board, "MEETING_SECONDS", 0.05)
    ranks = of(2, counts_alike=False)
    reasons: list[str] = []
    ranks.leader.cannot_stop = reasons.append
    ranks.leader.ask(RequestMade("stop", reason="q"))
    ranks.leader.ask(BF16)
    ranks.pass_until(lambda: reasons, ranks=[0])
    ranks.pass_until(lambda: ranks.steps[1] > ranks.steps[0], ranks=[1])
    assert ranks.refusals() == [("precision", "failed")]
    assert "rank 1" in reasons[0]
    assert [control.take("precision") for control in ranks.controls] == [None, None]
    assert [control.stopping for control in ranks.controls] == [False, False]
    assert not ranks.leader.over  # it may come the next time


def test_the_end_of_the_agreement_ends_a_pause_and_a_comparison(of: Of) -> None:
    ranks = of(2, counts_alike=False)
    for control in ranks.controls:
        control.end("rank 1 has ended")
        control.wait()
        assert taken("pause", control) == ("pause", None, False)
    ranks.leader.want_turn("bf16", now="fp32")
    assert taken("comparison", ranks.leader) == ("comparison", None, None)


def test_a_lost_store_ends_the_agreement_and_nothing_else(of: Of, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = of(2, counts_alike=False)
    count = Board.count

    def lost(board: Board, name: str, more: int = 0) -> Any:
        if name.startswith("met"):
            raise dist.DistNetworkError("connection reset")
        return count(board, name, more)

    monkeypatch.setattr(Board, "count", lost)
    ranks.leader.ask(BF16)
    ranks.pass_until(ranks.refusals)
    assert ranks.leader.over
    assert ranks.refusals() == [("precision", "failed")]
