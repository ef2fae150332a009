"""Ranks that agree, in threads that share a store and pass their boundaries together."""

import math
import random
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from amptui.engine.step import NORMS, WEIGHTS, WINDOW
from amptui.ranks.agreement import control as rank_control
from amptui.ranks.agreement import orders, posted_rows
from amptui.ranks.agreement.board import Board
from amptui.ranks.agreement.control import RankControl
from amptui.ranks.agreement.other_ranks import OtherRanks
from amptui.ranks.agreement.rows import ROW_VALUES, RankNumbers, RankRow
from amptui.records.answers import Answer, RequestRefused, RequestTaken
from amptui.records.control import CheckpointRequest, PauseRequest, PrecisionRequest, StopRequest, XRayRequest
from tests.ranks.agreeing import KeptRows, Ranks


@pytest.fixture(autouse=True)
def _quick_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders, "poll_seconds", lambda _ranks: 0.001)
    monkeypatch.setattr(posted_rows, "rows_seconds", lambda _ranks: 0.001)


@pytest.fixture
def of() -> Iterator[Callable[[int], Ranks]]:
    """So many ranks that agree."""
    made: list[Ranks] = []

    def ranks_of(count: int) -> Ranks:
        made.append(Ranks(count))
        made[-1].join()
        return made[-1]

    yield ranks_of
    for ranks in made:
        for control in ranks.controls:
            control.leave()


Of = Callable[[int], Ranks]


def test_a_row_survives_the_way() -> None:
    row = RankRow(3, 7, RankNumbers(steps=4, loss_scale=2.0**16))
    assert RankRow.of(row.values())[:2] == row[:2]
    assert RankRow.of(row.values()).numbers.loss_scale == 2.0**16
    assert len(row.values()) == ROW_VALUES


def test_all_ranks_take_a_request_at_the_same_boundary_and_none_before(of: Of) -> None:
    ranks = of(3)
    obeyed: list[list[tuple[int, str]]] = [[] for _ in ranks.controls]
    asking = random.Random(5)

    def work(boundary: int, rank: int, control: RankControl) -> None:
        if rank == 0 and asking.random() < 0.2:
            control.ask(PrecisionRequest(asking.choice(["fp32", "bf16", "fp16"])))
        asked = control.take(PrecisionRequest)
        if asked is not None:
            obeyed[rank].append((boundary, asked.request.precision))
            control.answer(asked)

    ranks.boundaries(lambda: len(obeyed[0]) > 3, work)
    assert obeyed[0] == obeyed[1] == obeyed[2]
    answered: list[Answer] = [*ranks.log.of(RequestTaken), *ranks.log.of(RequestRefused)]
    assert len({answer.request.number for answer in answered}) == len(answered)


def test_all_ranks_take_a_checkpoint_at_the_same_boundary_and_no_other_before_it_is_done_with(of: Of) -> None:
    ranks = of(2)
    taken: list[list[int]] = [[], []]
    due = [False, False]
    leader = ranks.controls[0]
    made = [leader.ask(CheckpointRequest()), leader.ask(CheckpointRequest())]

    def work(boundary: int, rank: int, control: RankControl) -> None:
        asked = control.take(CheckpointRequest)
        control.answer(asked)
        due[rank] |= control.take_wanted_checkpoint() or asked is not None
        if due[rank] and control.may_take_checkpoint:
            due[rank] = False
            taken[rank].append(boundary)
            assert control.count_checkpoint() == len(taken[rank])

    ranks.boundaries(lambda: taken[0], work)
    leader.want_checkpoint()
    ranks.boundaries(lambda: due[0], work)
    assert len(taken[0]) == 1
    leader.checkpoints_done = 1
    ranks.boundaries(lambda: len(taken[0]) == 2, work)
    assert taken[0] == taken[1]
    assert [answer.request.number for answer in ranks.log.of(RequestTaken)] == made


def test_a_signal_to_one_rank_stops_all_at_the_same_boundary(of: Of) -> None:
    ranks = of(2)
    stopped: dict[int, int] = {}
    ranks.controls[1].ask(StopRequest("SIGTERM"))

    def work(boundary: int, rank: int, control: RankControl) -> None:
        if control.stopping:
            stopped.setdefault(rank, boundary)

    ranks.boundaries(lambda: stopped, work)
    assert stopped[0] == stopped[1]
    assert ranks.controls[0].stop_reason == "SIGTERM on rank 1"
    ranks.run(lambda _rank, control: control.finish())


def test_a_stop_for_another_reason_is_a_request(of: Of) -> None:
    ranks = of(2)
    ranks.controls[1].ask(StopRequest("the test"))
    ranks.boundaries(lambda: ranks.controls[0].stopping)
    assert ranks.controls[0].stop_reason == "a request on rank 1"


@pytest.mark.parametrize("validating", [False, True])
def test_a_pause_goes_on_until_rank_0_ends_it(of: Of, validating: bool) -> None:
    """Also one that comes in a validation, after which all pause."""
    ranks = of(2)
    leader = ranks.controls[0]
    leader.ask(PauseRequest(True))

    def train(_rank: int, control: RankControl) -> None:
        asked = None
        while asked is None:
            control.at_boundary(validating=validating)
            asked = control.take(PauseRequest)
        assert asked.request.paused
        if validating:
            for _ in range(10):
                control.at_boundary(validating=True)
        control.at_boundary()
        leader.ask(PauseRequest(False))
        while (resumed := control.take(PauseRequest)) is None:
            control.wait()
        assert not resumed.request.paused

    ranks.run(train)


def test_a_request_of_a_user_wins_over_a_comparison_s_next_block(of: Of) -> None:
    ranks = of(2)
    leader, other = ranks.controls
    leader.want_turn("bf16", now="fp32")
    leader.ask(PrecisionRequest("fp16"))
    ranks.boundaries(lambda: other.newest(PrecisionRequest))
    assert leader.take_turn() == ""
    last, mine = other.take(PrecisionRequest), leader.take(PrecisionRequest)
    assert last is not None
    assert mine is not None
    assert last.request == mine.request == PrecisionRequest("fp16")


def test_a_comparison_s_next_block_reaches_all_ranks(of: Of) -> None:
    ranks = of(2)
    leader, other = ranks.controls
    leader.want_turn("bf16", now="fp32")
    ranks.boundaries(lambda: other.newest(PrecisionRequest))
    taken = other.take(PrecisionRequest)
    assert taken is not None
    assert taken.request.precision == leader.take_turn() == "bf16"
    assert leader.take(PrecisionRequest) is None


def test_a_block_that_runs_eagerly_reaches_all_ranks(of: Of) -> None:
    ranks = of(2)
    leader, other = ranks.controls
    leader.want_turn("bf16 eager", now="fp32")
    turns = ["", ""]

    def work(_boundary: int, rank: int, control: RankControl) -> None:
        turns[rank] = turns[rank] or control.take_turn()

    ranks.boundaries(lambda: turns[0], work)
    assert turns == ["bf16 eager"] * 2
    assert other.take(PrecisionRequest) is None


def test_what_is_promised_for_a_later_batch_of_a_validation_is_due_at_its_end(of: Of) -> None:
    """Its batches may be much faster: so many steps would take long."""
    ranks = of(2)
    for _ in range(1000):
        for control in ranks.controls:
            control.at_boundary(validating=True)
    before = [control.arrived() for control in ranks.controls]
    for control in ranks.controls:
        control.at_boundary()
    assert all(control.arrived() - at > 1 << 30 for control, at in zip(ranks.controls, before, strict=True))
    assert ranks.controls[0].arrived() == ranks.controls[1].arrived()


def test_all_ranks_learn_of_an_x_ray_at_the_same_boundary(of: Of) -> None:
    ranks = of(2)
    learned: dict[int, int] = {}
    ranks.controls[0].ask(XRayRequest())

    def work(boundary: int, rank: int, control: RankControl) -> None:
        if control.newest(XRayRequest) is not None:
            learned.setdefault(rank, boundary)
            assert control.attention

    ranks.boundaries(lambda: learned, work)
    assert learned[0] == learned[1]
    ranks.controls[0].answer(ranks.controls[0].take(XRayRequest))
    assert len(ranks.log.of(RequestTaken)) == 1


def test_all_ranks_measure_in_the_same_step_and_once(of: Of) -> None:
    ranks = of(3)
    measured: list[list[tuple[int, int]]] = [[] for _ in ranks.controls]

    def work(boundary: int, rank: int, control: RankControl) -> None:
        if probes := control.take_probes():
            measured[rank].append((boundary, probes))

    for count, wanted in enumerate((NORMS, WINDOW | WEIGHTS), start=1):
        ranks.controls[0].want_probes(wanted)
        ranks.boundaries(partial(_has, measured[0], count), work)
    assert [probes for _, probes in measured[0]] == [NORMS, WINDOW | WEIGHTS]
    assert measured[1] == measured[2] == measured[0]


def _has(found: list[tuple[int, int]], count: int) -> bool:
    return len(found) == count


def test_all_ranks_hash_their_weights_at_the_same_boundary(of: Of) -> None:
    ranks = of(2)
    hashed: list[list[int]] = [[], []]
    for rank, control in enumerate(ranks.controls):
        control.hash_weights = partial(_note_point, hashed[rank], control)
    ranks.controls[0].want_hash()
    ranks.boundaries(lambda: hashed[0])
    assert hashed[0] == hashed[1]
    assert len(hashed[0]) == 1


def _note_point(points: list[int], control: RankControl) -> None:
    points.append(control.arrived())


def test_what_ranks_refuse_is_refused_at_once(of: Of) -> None:
    ranks = of(2)
    ranks.controls[0].refuses = {"x-ray": "it would take too long"}
    ranks.controls[0].ask(XRayRequest())
    (refused,) = ranks.log.of(RequestRefused)
    assert (refused.reason, refused.detail) == ("unavailable", "it would take too long")
    assert ranks.controls[0].newest(XRayRequest) is None


@pytest.mark.parametrize("count", [2, 5])
def test_the_rows_of_all_ranks_are_received_in_their_order(count: int) -> None:
    ranks = Ranks(count)
    report = ranks.controls[0].report = KeptRows()
    for rank, control in enumerate(ranks.controls):
        control.measure = partial(RankNumbers, grad_norm=float(rank))
    ranks.join()
    ranks.boundaries(lambda: len(report.rows) > 1)
    ranks.run(lambda _rank, control: control.finish())
    before = len(report.rows)
    ranks.controls[0].parted()
    for control in ranks.controls:
        control.leave()
    assert len(report.rows) > before  # the last ones
    assert report.is_closed
    norms = [[row.numbers.grad_norm for row in rows] for rows in report.rows]
    measured = [each for each in norms if not any(map(math.isnan, each))]
    assert len(measured) > 2
    assert all(each == [float(rank) for rank in range(count)] for each in measured)


def test_an_order_that_is_composed_as_the_training_ends_takes_no_request_with_it(of: Of) -> None:
    ranks = of(2)

    def train(rank: int, control: RankControl) -> None:
        control.finish()
        if rank == 0:
            control.ask(CheckpointRequest())
            assert control.compose()["checkpoint"] == 0

    ranks.run(train)
    assert ranks.controls[0].take(CheckpointRequest) is not None


def test_ranks_end_at_the_same_boundary_while_something_is_asked_for(of: Of) -> None:
    ranks = of(3)
    taken: list[list[int]] = [[] for _ in ranks.controls]

    def train(rank: int, control: RankControl) -> None:
        for boundary in range(50):
            if rank == 0:
                control.ask(CheckpointRequest())
            control.at_boundary()
            if control.take(CheckpointRequest):
                taken[rank].append(boundary)
        control.finish()

    ranks.run(train)
    assert taken[0] == taken[1] == taken[2]
    left = ranks.controls[0].take(CheckpointRequest)
    assert ranks.controls[1].take(CheckpointRequest) is None
    assert bool(taken[0]) or left is not None


def test_a_rank_that_waits_notices_that_another_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the point that it has promised not to pass, and in a pause."""
    monkeypatch.setattr(orders, "_CHECK_SECONDS", 0.001)
    monkeypatch.setattr(rank_control, "_PAUSE_CHECK_SECONDS", 0.001)
    ranks = Ranks(2)
    leader = ranks.controls[0]

    class Ended(OtherRanks):
        def check_others(self) -> None:
            raise RuntimeError("rank 1 has ended")

    leader.join(Board(ranks.store, "test"), Ended())
    leader.ask(CheckpointRequest())
    for comes in (leader.at_boundary, leader.wait):
        with pytest.raises(RuntimeError, match="rank 1 has ended"):
            _for_ever(comes)
    leader.leave()


def _for_ever(comes: Callable[[], object]) -> None:
    while True:
        comes()
