"""What the event list says of each kind of record, and what opens under a line."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from amptui.records.findings import Float8Layers, LayerLeftOut
from amptui.records.ranks import (
    RankLost,
    RanksAwaited,
    RanksDisagree,
    RanksOverflowed,
    RankStack,
    RankValue,
    StacksTaken,
)
from amptui.records.run import (
    DataInfo,
    EpochFinished,
    Note,
    PauseChanged,
    Printed,
    Record,
    RunFailed,
    Validation,
)
from tests.builders import in_one, make_started, make_steps, make_switch, view_of
from tests.diagnosis.wording import event_lines, table
from tests.golden import Goldens
from tests.telemetry.record_samples import (
    backoff,
    followed,
    module,
    nonfinite,
    skip,
    skip_row,
    traced,
)
from tests.telemetry.whole_runs import ENDS, EVERYTHING


def epoch(**changes: Any) -> EpochFinished:
    record = EpochFinished(
        time=1.0,
        step=702,
        epoch=3,
        seconds=2.3,
        mean_loss=0.0312,
        validation=Validation(loss=0.0351, accuracy=0.991, samples=10_000),
    )
    return replace(record, **changes)


def disagreement(what: Any, most: float, *values: float, count: int | None = None) -> RanksDisagree:
    others = tuple(RankValue(rank=3 + i, value=value) for i, value in enumerate(values))
    count = len(values) if count is None else count
    return RanksDisagree(time=1.0, step=7, what=what, count=count, most=most, others=others)


def awaited(*ranks: int, **changes: Any) -> RanksAwaited:
    record = RanksAwaited(time=1.0, step=7, ranks=ranks, count=len(ranks), phase="after_step", seconds=34.0)
    return replace(record, **changes)


def layers(**changes: Any) -> Float8Layers:
    head = LayerLeftOut(name="head", kind="Linear", why="size", shape=(100, 256))
    stem = LayerLeftOut(name="", kind="Conv2d", why="kind", shape=(16, 3, 3, 3))
    record = Float8Layers(
        time=1.0,
        step=4,
        precision="fp8",
        layers=3,
        names=("a", "b"),
        parameters=10,
        left_out=(head, stem),
        left_out_count=3,
    )
    return replace(record, **changes)


OVERFLOWED = traced(615, first=module(largest=math.inf))
NAN_INPUT = traced(8, precision="fp32", inputs=("0",), nearest=(), cause="input")
LOST_WEIGHTS = traced(9, precision="fp32", lost=("a.b",), lost_count=1, nearest=())
RANK_3 = RanksOverflowed(time=2.0, step=612, ranks=(3,), count=1)
STACKS = StacksTaken(
    time=1.0,
    step=7,
    stacks=(RankStack(rank=0, phase="training", step=8, stack='  File "a.py", line 3, in loss\n    f()\n'),),
    silent=(3,),
)
BUFFERS = (
    nonfinite(612, what="buffer", names=("bn1.running_mean",), kinds=("nan",)),
    nonfinite(640, what="buffer", names=("bn1.running_mean", "bn2.running_var"), kinds=("nan", "inf")),
)

ON_A_CPU = make_started(
    device="cpu",
    device_name="AMD EPYC",
    config={"experiment": "MnistDeep"},
    batch_size=32,
    steps_per_epoch=1875,
    total_steps=18_750,
)
SLOW = make_steps(1, 3, step_seconds=[9.0, 0.45, 0.45])

EVENTS: dict[str, Sequence[Record]] = {
    "start with stand-in data": [make_started(data=DataInfo(name="MNIST", real=False, samples=None))],
    "slow start on a CPU": [ON_A_CPU, in_one(SLOW)],
    "slow start of a model of the user's": [replace(ON_A_CPU, model="mine", batch_size=1), *SLOW],
    "start of less than an epoch on a CPU": [replace(ON_A_CPU, total_steps=1800), *SLOW],
    "start on a fast CPU": [ON_A_CPU, *make_steps(1, 3, step_seconds=[9.0, 0.15, 0.15])],
    "start of a script on a CPU": [replace(ON_A_CPU, config={}), *SLOW],
    "start on a GPU": [replace(ON_A_CPU, device="cuda:0"), *SLOW],
    "switch of a script's own": [make_switch(6, "fp16 weights", "unknown")],
    "epoch": [epoch()],
    "epoch whose validation is NaN": [epoch(validation=Validation(loss=math.nan, accuracy=None, samples=1))],
    "pause of its own": [
        PauseChanged(time=1.0, step=1204, paused=True, reason="at the floor\nchoose bf16 or FP32")
    ],
    "note": [Note(time=1.0, severity="info", text="look here")],
    "failure": [RunFailed(time=1.0, step=7, error="out of memory\nreally", traceback="Traceback ...")],
    "second optimizer": [followed("critic")],
    # ------------------------------------------------------------------------------------- loss scale
    "backoff alone": [backoff(7, 65536.0)],
    "skip before its backoff": [skip(612, names=())],
    "skip that names what holds what": [
        skip(612, names=("a.b.weight", "c.bias"), kinds=("nan", "inf"), count=4),
        backoff(612, 131072.0),
    ],
    "skip with an infinite loss": [skip(612, loss=math.inf, names=(), count=None)],
    "skip on one rank": [skip(612, ranks=(3,))],
    "skip on many ranks": [skip(612, ranks=tuple(range(8)), names=())],
    "skip whose rank is known later": [skip(612), RANK_3],
    "first skips of a run": skip_row(1, 3, 65536.0, names=()),
    "long row of skips": skip_row(1000, 24, 65536.0),
    "five skips in a row": skip_row(1000, 5, 2.0**60),
    "skip below a scale of 1": [skip(612, loss_scale=0.5)],
    "skip and its trace": [skip(612, loss=math.nan), backoff(612, 131072.0), OVERFLOWED],
    "skip with a NaN loss and a trace of the backward pass": [
        skip(612, loss=math.nan),
        traced(612, first=module(way="backward", largest=math.inf)),
    ],
    # --------------------------------------------------------------------------------- NaN and probes
    "NaN gradients in FP32": [nonfinite(7, what="gradient", names=("a.weight",), kinds=("nan",))],
    "NaN loss of NaN input": [nonfinite(7), NAN_INPUT],
    "NaN loss of lost weights": [replace(LOST_WEIGHTS, step=7), nonfinite(7)],
    "NaN loss that lost the weights": [nonfinite(7), replace(LOST_WEIGHTS, step=8)],
    "NaN loss in fp16 whose outputs are finite": [
        make_started(precision="fp16"),
        nonfinite(7),
        traced(7, first=module(way="backward"), cause="gradient"),
    ],
    "NaN loss and a trace long after": [nonfinite(7), replace(NAN_INPUT, step=18)],
    "NaN loss and traces of which the first found it": [
        nonfinite(7),
        traced(7, nearest=()),
        NAN_INPUT,
        LOST_WEIGHTS,
    ],
    "poisoned buffers": BUFFERS,
    "trace": [traced(asked=True)],
    "automatic trace": [OVERFLOWED],
    # ----------------------------------------------------------------------------------------- float8
    "layers in float8": [layers()],
    "one layer in float8": [layers(layers=1, names=("a",), left_out=(), left_out_count=0)],
    # ------------------------------------------------------------------------------------------ ranks
    "Inf found on one rank alone": [disagreement("found_inf", 0.0, 1.0)],
    "other scales on many ranks": [disagreement("loss scale", 1.0, *[2.0] * 8, count=12)],
    "agreement again": [disagreement("loss scale", 1.0)],
    "rank hung": [RankLost(time=1.0, step=7, rank=5, host="node-2", cause="hung", detail="")],
    "ranks awaited": [awaited(1, 2, phase="loading", seconds=100.0)],
    "rank no longer awaited": [awaited(1, over=True)],
    "stacks": [STACKS],
    "everything": [record for record in (*EVERYTHING, ENDS[0]) if not isinstance(record, Printed)],
}


def test_each_event_has_its_line_and_its_details(goldens: Goldens) -> None:
    said = {name: list(event_lines(view_of(*records).events)) for name, records in EVENTS.items()}
    goldens.check("words/events", table(said))
