"""What each line of the event list says."""

import math
from dataclasses import replace
from typing import Any

import pytest

from amptui.diagnosis.event_words import event_details, event_text, not_saved, run_ended, steps_missing
from amptui.diagnosis.loss_scale import skip_means
from amptui.records.findings import Float8Layers, Float8LayerWindow, LayerLeftOut
from amptui.records.keeping import KeepingChanged
from amptui.records.ranks import (
    RankLost,
    RankPlace,
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
    PrecisionChanged,
    Printed,
    Record,
    RunFailed,
    RunFinished,
    Validation,
)
from amptui.telemetry.eventlog import EventLog
from amptui.telemetry.events import Event, SkipRow
from amptui.telemetry.session import Session
from amptui.telemetry.stragglers import RankVerdict, SlowRankNews
from amptui.telemetry.view import SessionView
from tests.telemetry.record_samples import (
    backoff,
    dropped,
    float8_operand,
    float8_window,
    followed,
    growth,
    nonfinite,
    run,
    skip,
    skip_row,
)


def view_of(*records: Record) -> SessionView:
    session = Session()
    session.fold(records)
    return session.view()


def the_event(*records: Record) -> Event:
    (event,) = view_of(*records).events
    return event


@pytest.mark.parametrize(
    ("ranges", "said"),
    [
        ([(1, 512), (600, 600)], "the journal lacks 513 of the 1,200 steps so far: 1 to 512, 600"),
        (
            [(n, n) for n in range(1, 15, 2)],
            "the journal lacks 7 of the 1,200 steps so far: 1, 3, 5, 7, 9 and 2 more ranges",
        ),
    ],
)
def test_missing_steps_are_told_by_their_ranges(ranges: list[tuple[int, int]], said: str) -> None:
    assert steps_missing(ranges, 1200) == said


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


def lost(cause: Any, detail: str = "") -> RankLost:
    return RankLost(time=1.0, step=7, rank=5, host="node-2", cause=cause, detail=detail)


def awaited(*ranks: int, **changes: Any) -> RanksAwaited:
    record = RanksAwaited(time=1.0, step=7, ranks=ranks, count=len(ranks), phase="after_step", seconds=34.0)
    return replace(record, **changes)


STACKS = StacksTaken(
    time=1.0,
    step=7,
    stacks=(RankStack(rank=0, phase="training", step=8, stack='  File "a.py", line 3, in loss\n    f()\n'),),
    silent=(3,),
)


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (run(), "run started: mnist-deep on NVIDIA H200, MNIST, FP32"),
        (
            run(data=DataInfo(name="MNIST", real=False, samples=None)),
            "run started: mnist-deep on NVIDIA H200, MNIST (synthetic data), FP32",
        ),
        (PrecisionChanged(time=1.0, step=600, previous="fp32", current="fp16"), "FP32 → AMP fp16"),
        (growth(2000, 65536.0), "loss scale 65,536 → 131,072"),
        (backoff(7, 65536.0), "overflow: loss scale 65,536 → 32,768"),
        (epoch(), "epoch 3: loss 0.0312, validation loss 0.0351, accuracy 99.1% in 2.30 s"),
        (epoch(seconds=83.2, validation=None), "epoch 3: loss 0.0312 in 1:23"),
        (epoch(seconds=None, validation=None, mean_loss=None), "epoch 3: loss n/a"),
        (
            epoch(validation=Validation(loss=math.nan, accuracy=None, samples=1)),
            "epoch 3: loss 0.0312, validation loss nan in 2.30 s",
        ),
        (PauseChanged(time=1.0, step=1204, paused=True), "paused after step 1,204"),
        (PauseChanged(time=1.0, step=1204, paused=False), "resumed after step 1,204"),
        (Note(time=1.0, severity="info", text="look here"), "look here"),
        (Printed(time=1.0, stream="stdout", text="hello\n"), "hello"),
        (
            RunFinished(time=1.0, steps=2340, seconds=41.0, reason="done"),
            "done after 2,340 steps in 0:41",
        ),
        (
            disagreement("loss scale", 65536.0, 32768.0),
            "replicas disagree: rank 3 has loss scale 32,768, the others 65,536",
        ),
        (
            disagreement("loss scale", 65536.0, 32768.0, 16384.0),
            "replicas disagree: ranks 3, 4 have other loss scales, the others 65,536",
        ),
        (
            disagreement("found_inf", 0.0, 1.0),
            "replicas disagree: rank 3 found Inf and skipped a step that the others applied",
        ),
        (
            disagreement("found_inf", 1.0, 0.0),
            "replicas disagree: rank 3 found no Inf and applied a step that the others skipped",
        ),
        (
            disagreement("weights", 1.0, *[2.0] * 8, count=12),
            "replicas disagree: the weights of 12 ranks (3, 4, 5, 6, ...) differ from the others'",
        ),
        (disagreement("weights", 1.0), "replicas agree again: the weights' hash"),
        (lost("killed", "signal 9"), "rank 5 on node-2 was killed: signal 9"),
        (lost("hung"), "rank 5 on node-2 hung"),
        (awaited(1), "rank 1 makes the others wait: in after_step() for 0:34"),
        (
            awaited(1, 2, phase="loading", seconds=100.0),
            "ranks 1, 2 make the others wait: loading data for 1:40",
        ),
        (awaited(1, phase="silent"), "rank 1 makes the others wait: its process has not answered for 0:34"),
        (awaited(1, over=True), "rank 1 made the others wait: in after_step() for 0:34"),
        (STACKS, "no progress: stacks of 1 rank; rank 3 did not answer"),
        (replace(lost("failed"), host=""), "rank 5 failed"),
        (lost("out of memory"), "rank 5 on node-2 ran out of memory"),
        (followed(""), "Adam trains Discriminator, 2,765,568 parameters"),
        (followed("", kind="AdamW", replaces="SGD"), "optimizer replaced: AdamW for SGD"),
        (followed("critic"), "critic: Adam trains Discriminator, 2,765,568 parameters"),
        (dropped(7), "gradients of 2 backward passes cleared before a step, loss nan"),
        (dropped(7, passes=1, loss=None), "gradients cleared before a step"),
        (dropped(7, passes=1, optimizer="critic"), "critic: gradients cleared before a step, loss nan"),
        (
            PrecisionChanged(time=1.0, step=6, previous="fp16 weights", current="unknown"),
            "fp16 weights → precision unknown",
        ),
    ],
)
def test_each_record_has_its_line(record: Record, text: str) -> None:
    assert event_text(the_event(record)) == text


def test_a_slow_rank_is_told_with_what_its_numbers_show() -> None:
    verdict = RankVerdict(rank=5, cause="input", seconds=0.00305, others_seconds=0.00024)
    place = RankPlace(rank=5, host="node-1", device="cuda:5")
    news = SlowRankNews(time=1.0, step=7, verdict=verdict, place=place)
    log = EventLog()
    log.add(news)
    log.add(replace(news, verdict=None, place=None))
    over, slow = map(event_text, log.events())
    assert slow == "rank 5 (node-1 cuda:5) is slow: it waits 3.05 ms for data, the other ranks 0.240 ms"
    assert over == "the ranks are equally fast again"


def test_a_failure_says_at_which_step_if_there_was_one() -> None:
    failed = RunFailed(time=1.0, step=1204, error="out of\nmemory", traceback="")
    assert run_ended(failed) == "failed at step 1,204: out of memory"
    assert run_ended(replace(failed, step=0)) == "failed: out of memory"


def test_what_is_not_saved_is_named() -> None:
    change = KeepingChanged(time=1.0, what="journal", trouble="the disk is full")
    assert not_saved([change]) == "journal not saved"
    assert not_saved([change, replace(change, what="checkpoints")]) == "journal and checkpoints not saved"


def test_a_failure_keeps_its_traceback_for_who_opens_it() -> None:
    event = the_event(RunFailed(time=1.0, step=7, error="out of memory\nreally", traceback="Traceback ..."))
    assert event_text(event) == "failed: out of memory"
    assert event_details(event) == ["really", "Traceback ..."]


def test_stacks_are_read_rank_by_rank() -> None:
    assert event_details(the_event(STACKS)) == [
        "rank 0, in its step, step 8",
        '  File "a.py", line 3, in loss',
        "    f()",
    ]


def test_growth_tells_after_how_many_clean_steps() -> None:
    newest, _ = view_of(run(), growth(2000, 65536.0)).events
    assert event_text(newest) == "loss scale 65,536 → 131,072 after 2,000 clean steps"


def test_a_skip_and_its_backoff_are_one_line() -> None:
    event, _ = view_of(growth(600, 65536.0), skip(612), backoff(612, 131072.0)).events
    assert event_text(event) == (
        "overflow: step skipped, scale 131,072 → 65,536, "
        "non-finite gradient in features.13.conv.weight (+2); normal"
    )


def test_a_skip_whose_backoff_has_not_come_tells_the_scale_it_had() -> None:
    event = the_event(skip(612, names=()))
    assert event_text(event) == "overflow: step skipped, scale 131,072; calibration, normal"


@pytest.mark.parametrize(("ranks", "where"), [((3,), "on rank 3"), ((1, 2), "on ranks 1, 2")])
def test_a_skip_names_the_ranks_whose_gradients_overflowed(ranks: tuple[int, ...], where: str) -> None:
    event = the_event(skip(612, ranks=ranks))
    assert f"non-finite gradient in features.13.conv.weight (+2) {where};" in event_text(event)
    nameless = the_event(skip(612, ranks=ranks, names=()))
    assert f"scale 131,072, {where};" in event_text(nameless)
    assert f"loss 0.500, {where}" in event_details(event)[1]


def test_many_ranks_are_not_all_named() -> None:
    event = the_event(skip(612, ranks=tuple(range(8)), names=()))
    assert "scale 131,072, on ranks 0, 1, 2, 3 and others;" in event_text(event)


def test_ranks_that_are_told_later_are_named_in_the_same_line() -> None:
    at_fault = RanksOverflowed(time=2.0, step=612, ranks=(3,), count=1)
    assert "(+2) on rank 3;" in event_text(the_event(skip(612), at_fault))
    storm = the_event(nonfinite(612, kind="inf"), at_fault)
    assert event_text(storm).startswith(
        "the loss is Inf on rank 3; averaging spread it to all ranks; the step"
    )


def test_the_first_skips_of_a_run_are_one_calm_line() -> None:
    event = the_event(*skip_row(1, 3, 65536.0, names=()))
    assert event_text(event) == (
        "overflow: 3 steps in a row skipped (1–3), scale 65,536 → 8,192; calibration, normal"
    )


def test_a_long_row_of_skips_tells_its_steps_and_how_far_the_scale_fell() -> None:
    event = the_event(*skip_row(1000, 24, 65536.0))
    assert isinstance(event.about, SkipRow)
    assert event.about.meaning == "collapsed"
    text = event_text(event)
    assert text.startswith("overflow: 24 steps in a row skipped (1,000–1,023), scale 65,536 → 0.00391")
    assert text.endswith(f"; {skip_means(event.about)}")


def test_a_storm_tells_how_often_and_where() -> None:
    event = the_event(*(nonfinite(number) for number in range(612, 1612)))
    assert event_text(event).startswith("the loss is NaN, 1,000 times (612–1,611); ")


def test_the_same_again_and_again_is_counted() -> None:
    printed = [Printed(time=float(n), stream="stdout", text="tick") for n in range(1, 1001)]
    assert event_text(the_event(*printed)) == "tick (×1,000)"


def test_an_event_says_which_layers_multiply_in_float8_and_why_others_do_not() -> None:
    head = LayerLeftOut(name="head", kind="Linear", why="size", shape=(100, 256))
    stem = LayerLeftOut(name="", kind="Conv2d", why="kind", shape=(16, 3, 3, 3))
    record = Float8Layers(
        time=1.0,
        step=4,
        precision="fp8",
        recipe="rowwise",
        emulated=False,
        layers=3,
        names=("a", "b"),
        parameters=10,
        left_out=(head, stem),
        left_out_count=3,
    )
    event = the_event(record)
    assert event_text(event) == "FP8, rowwise: 3 of 6 layers in float8"
    assert event_details(event) == [
        "head in bfloat16: Linear 100×256, not divisible by 16",
        "the model in bfloat16: Conv2d 16×3×3×3, not an nn.Linear",
        "and 1 more in bfloat16",
        "in float8: a, b and 1 more",
    ]
    emulated = replace(record, precision="fp8-emulated", emulated=True, layers=1, left_out_count=0)
    assert event_text(the_event(emulated)) == (
        "FP8 emulated, rowwise: 1 of 1 layer in float8, computed in float32"
    )


def test_an_event_names_the_operand_that_float8_loses_and_the_channel_that_sets_the_scale() -> None:
    gradient = float8_operand("gradient", 0.3, format="e5m2", scale_high=4096.0)
    layer = Float8LayerWindow(name="mlp.fc", operands=(float8_operand("weight", 0.03), gradient))
    kept = the_event(float8_window(4, layer))
    assert kept.severity == "info"
    assert event_text(kept) == (
        "FP8 keeps all 2 operands; worst for its format: 30.0% off in the output gradient of mlp.fc"
    )
    assert event_details(kept)[0] == (
        "mlp.fc gradient E5M2: 30.0% off in the median channel, flushed 0.40%, subnormal 25.0%, "
        "saturated 0%, scale 2.00 to 4.10 k"
    )
    spoiled = Float8LayerWindow(
        name="", operands=(float8_operand("input", 0.9), float8_operand("weight", 0.5))
    )
    lost = the_event(float8_window(4, layer, spoiled))
    assert lost.severity == "warning"
    assert event_text(lost) == (
        "FP8 loses most of the input of the model and 1 other operand: "
        "channel 17 is 12.3 k times the median one"
    )


def test_rows_that_set_the_scale_are_told_without_a_channel() -> None:
    tokens = float8_operand("input", 0.03, row_error=0.95)
    lost = the_event(float8_window(4, Float8LayerWindow(name="a", operands=(tokens,))))
    assert lost.severity == "warning"
    assert event_text(lost) == (
        "FP8 loses most of the input of a: some rows (tokens or samples) are far above the others"
    )
    assert event_details(lost)[0].startswith("a input E4M3: 95.0% off in the median row, flushed")
    features = Float8LayerWindow(name="a", operands=(float8_operand("weight", 0.03, row_error=0.95),))
    assert event_text(the_event(float8_window(4, features))).endswith(
        ": some rows (input features) are far above the others"
    )
    both = Float8LayerWindow(name="a", operands=(float8_operand("input", 0.9, row_error=0.95),))
    assert "channel 17" in event_text(the_event(float8_window(4, both)))
    kept = float8_operand("gradient", 0.03, row_error=0.95)  # its rows are added up
    assert the_event(float8_window(4, Float8LayerWindow(name="a", operands=(kept,)))).severity == "info"
    spoiled = Float8LayerWindow(name="a", operands=(float8_operand("input", 0.03, row_error=math.nan),))
    assert event_text(the_event(float8_window(4, spoiled))) == "FP8 computes with NaN or Inf: the input of a"


def test_zeros_lose_nothing_and_nan_is_no_channel_above_the_others() -> None:
    zeros = float8_operand("gradient", math.nan, zeros=1.0, channel_excess=math.nan)
    fine = Float8LayerWindow(name="a", operands=(float8_operand("input", 0.03), zeros))
    kept = the_event(float8_window(4, fine))
    assert event_text(kept) == "FP8 keeps all 2 operands; worst for its format: 3.0% off in the input of a"
    assert event_details(kept)[1].startswith("a gradient E4M3: all zero, flushed")
    nothing = the_event(float8_window(4, Float8LayerWindow(name="a", operands=(zeros,))))
    assert event_text(nothing) == "FP8 keeps all 1 operand: all are zero"
    spoiled = float8_operand("weight", math.nan, channel_excess=math.nan)
    lost = the_event(float8_window(4, Float8LayerWindow(name="a", operands=(spoiled, zeros))))
    assert lost.severity == "warning"
    assert event_text(lost) == "FP8 computes with NaN or Inf: the weight of a"


def test_windows_are_told_first_when_asked_for_and_when_something_new_is_lost() -> None:
    fine = Float8LayerWindow(name="a", operands=(float8_operand("input", 0.03),))
    lossy = Float8LayerWindow(name="a", operands=(float8_operand("input", math.nan),))
    other = Float8LayerWindow(name="b", operands=(float8_operand("input", 0.8),))
    records = [
        float8_window(1, fine),
        float8_window(2, fine),
        float8_window(3, fine, requested=True),
        float8_window(4, lossy),
        float8_window(5, lossy),
        float8_window(6, lossy, other),
    ]
    assert [event.step for event in view_of(*records).events] == [6, 4, 3, 1]
