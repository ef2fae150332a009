"""Ranks that agree, in threads over an exchange in memory."""

import random
import threading
from collections.abc import Callable, Sequence
from functools import partial

import pytest

from amptui.answers import Answer, RequestRefused, RequestTaken
from amptui.control import CheckpointRequest, PauseRequest, PrecisionRequest, StopRequest, XRayRequest
from amptui.engine.distributed.rank_control import MAX_BOUNDARIES, NORMS, WEIGHTS, WINDOW, RankControl
from amptui.engine.distributed.rank_rows import ROW_VALUES, RankNumbers, RankRow
from amptui.engine.distributed.world import World
from tests.tiny import Log


class InMemory:
    """The exchange of one rank; ``mail`` is shared by all."""

    def __init__(self, rank: int, mail: list[list[list[float]]], arrived: threading.Barrier) -> None:
        self._rank = rank
        self._mail = mail
        self._arrived = arrived
        self._sent = self._received = 0

    def send(self, row: Sequence[float]) -> None:
        assert len(row) == ROW_VALUES
        self._mail[self._rank].append(list(row))
        self._sent += 1

    def receive(self) -> list[list[float]]:
        self._arrived.wait(timeout=60)
        rows = [rows[self._received] for rows in self._mail]
        self._received += 1
        return rows


class Ranks:
    """Some ranks that exchange rows in memory."""

    def __init__(self, count: int) -> None:
        self.log = Log()
        self.controls = [
            RankControl(World(rank, rank, count), self.log.emit if rank == 0 else lambda _record: None)
            for rank in range(count)
        ]
        mail: list[list[list[float]]] = [[] for _ in range(count)]
        arrived = threading.Barrier(count)
        for rank, control in enumerate(self.controls):
            control.join(InMemory(rank, mail, arrived))

    def run(self, work: Callable[[int, RankControl], object]) -> None:
        """Call ``work`` for each rank in a thread of its own."""
        errors: list[BaseException] = []

        def guarded(rank: int, control: RankControl) -> None:
            try:
                work(rank, control)
            except BaseException as error:  # noqa: BLE001 - the test fails with it
                errors.append(error)

        threads = [
            threading.Thread(target=guarded, args=(rank, control), daemon=True)
            for rank, control in enumerate(self.controls)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert errors == []
        assert not any(thread.is_alive() for thread in threads)

    def boundaries(self, count: int) -> None:
        """Have all pass so many boundaries."""

        def work(_rank: int, control: RankControl) -> None:
            for _ in range(count):
                control.at_boundary()

        self.run(work)


def test_a_row_survives_the_way() -> None:
    row = RankRow(3, 7, precision=2, boundaries=5, numbers=RankNumbers(steps=4, loss_scale=2.0**16))
    assert RankRow.of(row.values())[:6] == row[:6]
    assert RankRow.of(row.values()).numbers.loss_scale == 2.0**16
    assert len(row.values()) == ROW_VALUES <= 32


def test_all_ranks_take_a_request_at_the_same_boundary_and_none_before() -> None:
    ranks = Ranks(3)
    obeyed: dict[int, list[tuple[int, str]]] = {rank: [] for rank in range(3)}
    asking = random.Random(5)

    def train(rank: int, control: RankControl) -> None:
        for boundary in range(400):
            if rank == 0 and asking.random() < 0.2:
                control.ask(PrecisionRequest(asking.choice(["fp32", "bf16", "fp16"])))
            control.at_boundary()
            asked = control.take(PrecisionRequest)
            if asked is not None:
                obeyed[rank].append((boundary, asked.request.precision))
                control.answer(asked)

    ranks.run(train)
    assert obeyed[0] == obeyed[1] == obeyed[2]
    assert len(obeyed[0]) > 3
    answered: list[Answer] = [*ranks.log.of(RequestTaken), *ranks.log.of(RequestRefused)]
    assert len({answer.request.number for answer in answered}) == len(answered)


def test_all_ranks_take_a_checkpoint_at_the_same_boundary_and_no_other_before_it_is_done_with() -> None:
    ranks = Ranks(2)
    taken: dict[int, list[int]] = {0: [], 1: []}
    made: list[int] = []

    def train(rank: int, control: RankControl) -> None:
        due = False
        for boundary in range(600):
            if rank == 0 and boundary == 5:
                made.extend([control.ask(CheckpointRequest()), control.ask(CheckpointRequest())])
            if rank == 0 and boundary == 200:
                control.want_checkpoint()
            if rank == 0 and boundary == 400:
                control.checkpoints_done = 1
            control.at_boundary()
            asked = control.take(CheckpointRequest)
            control.answer(asked)
            due = control.take_wanted_checkpoint() or asked is not None or due
            if due and control.may_take_checkpoint:
                due = False
                taken[rank].append(boundary)
                assert control.count_checkpoint() == len(taken[rank])

    ranks.run(train)
    assert taken[0] == taken[1]
    first, second = taken[0]
    assert first in range(5, 200)
    assert second > 400
    assert [answer.request.number for answer in ranks.log.of(RequestTaken)] == made


def test_a_signal_to_one_rank_stops_all_at_the_same_boundary() -> None:
    ranks = Ranks(2)
    stopped = {}

    def train(rank: int, control: RankControl) -> None:
        for boundary in range(300):
            if rank == 1 and boundary == 50:
                control.ask(StopRequest("SIGTERM"))
            control.at_boundary()
            if control.stopping:
                stopped[rank] = boundary
                break
        control.finish()

    ranks.run(train)
    assert stopped[0] == stopped[1] >= 50
    assert ranks.controls[0].stop_reason == "SIGTERM on rank 1"


def test_a_pause_goes_on_until_rank_0_ends_it() -> None:
    ranks = Ranks(2)
    paused = threading.Barrier(3)

    def train(rank: int, control: RankControl) -> None:
        while (asked := control.take(PauseRequest)) is None:
            control.at_boundary()
        assert asked.request.paused
        control.attention = False
        paused.wait(timeout=60)
        while (resumed := control.take(PauseRequest)) is None:
            control.wait()
        assert not resumed.request.paused

    def ask() -> None:
        ranks.controls[0].ask(PauseRequest(True))
        paused.wait(timeout=60)
        ranks.controls[0].ask(PauseRequest(False))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    ranks.run(train)
    asking.join(20)


def test_a_request_of_a_user_wins_over_a_comparison_s_next_block() -> None:
    ranks = Ranks(2)
    ranks.boundaries(1)
    leader, other = ranks.controls
    leader.want_turn("bf16", now="fp32")
    ranks.boundaries(1)  # the turn is on its way
    leader.ask(PrecisionRequest("fp16"))
    ranks.boundaries(MAX_BOUNDARIES)
    assert leader.take_turn() == ""
    last = other.take(PrecisionRequest)
    mine = leader.take(PrecisionRequest)
    assert last is not None
    assert mine is not None
    assert last.request == mine.request == PrecisionRequest("fp16")


def test_a_comparison_s_next_block_reaches_all_ranks() -> None:
    ranks = Ranks(2)
    ranks.boundaries(1)
    leader, other = ranks.controls
    leader.want_turn("bf16", now="fp32")
    ranks.boundaries(MAX_BOUNDARIES)
    taken = other.take(PrecisionRequest)
    assert taken is not None
    assert taken.request.precision == leader.take_turn() == "bf16"
    assert leader.take(PrecisionRequest) is None


def test_a_block_that_runs_eagerly_reaches_all_ranks() -> None:
    ranks = Ranks(2)
    ranks.boundaries(1)
    leader, other = ranks.controls
    leader.want_turn("bf16 eager", now="fp32")
    ranks.boundaries(MAX_BOUNDARIES)
    assert other.take_turn() == leader.take_turn() == "bf16 eager"
    assert other.take(PrecisionRequest) is None


def test_validation_and_steps_are_counted_apart() -> None:
    """Its batches may be much faster: the first exchange after it must not be as many steps away."""
    ranks = Ranks(2)
    seen: list[int] = []

    def train(rank: int, control: RankControl) -> None:
        for _ in range(1000):
            control.at_boundary(validating=True)
        control.ask(StopRequest("the test"))
        for step in range(6):
            control.at_boundary()
            if control.stopping and rank == 0:
                seen.append(step)

    ranks.run(train)
    assert seen[0] <= 2


def test_all_ranks_learn_of_an_x_ray_at_the_same_boundary() -> None:
    ranks = Ranks(2)
    learned: dict[int, int] = {}

    def train(rank: int, control: RankControl) -> None:
        for boundary in range(200):
            if rank == 0 and boundary == 50:
                control.ask(XRayRequest())
            control.at_boundary()
            if control.newest(XRayRequest) is not None:
                learned.setdefault(rank, boundary)
                assert control.attention

    ranks.run(train)
    assert learned[0] == learned[1] >= 50
    (answered,) = [ranks.controls[0].take(XRayRequest)]
    ranks.controls[0].answer(answered)
    assert len(ranks.log.of(RequestTaken)) == 1


def test_all_ranks_measure_in_the_same_step_and_once() -> None:
    ranks = Ranks(3)
    measured: list[list[tuple[int, int]]] = [[] for _ in ranks.controls]

    def train(rank: int, control: RankControl) -> None:
        for boundary in range(300):
            if rank == 0 and boundary in (3, 4, 150):  # the second time the first is under way
                control.want_probes(NORMS if boundary < 150 else WINDOW | WEIGHTS)
            control.at_boundary()
            if probes := control.take_probes():
                measured[rank].append((boundary, probes))

    ranks.run(train)
    assert [probes for _, probes in measured[0]] == [NORMS, WINDOW | WEIGHTS]
    assert measured[1] == measured[2] == measured[0]


def test_what_ranks_refuse_is_refused_at_once() -> None:
    ranks = Ranks(2)
    ranks.controls[0].refuses = {"x-ray": "it would take too long"}
    ranks.controls[0].ask(XRayRequest())
    (refused,) = ranks.log.of(RequestRefused)
    assert (refused.reason, refused.detail) == ("unavailable", "it would take too long")
    assert ranks.controls[0].newest(XRayRequest) is None


@pytest.mark.parametrize("count", [2, 5])
def test_the_rows_of_all_ranks_are_received_in_their_order(count: int) -> None:
    ranks = Ranks(count)
    received: list[list[float]] = []
    ranks.controls[0].received = lambda rows: received.append([row.numbers.grad_norm for row in rows])
    for rank, control in enumerate(ranks.controls):
        control.measure = partial(RankNumbers, grad_norm=float(rank))
    ranks.boundaries(3)
    assert received[0] == [float(rank) for rank in range(count)]
