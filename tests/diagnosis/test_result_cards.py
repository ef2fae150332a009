"""A comparison's result as it may be quoted."""

from dataclasses import replace

import pytest

from amptui.diagnosis.event_words import event_text
from amptui.diagnosis.speed import result_cards
from amptui.telemetry.session import Session
from tests.telemetry.record_samples import compared, faster, measured, pair, run


def test_the_card_says_what_was_gained_how_surely_and_on_what() -> None:
    (card,) = result_cards(compared(), run(device_name="NVIDIA H200", model="mnist-deep", batch_size=256))
    assert card == (
        "AMP fp16 1.71× the speed of FP32 (1.68 to 1.74), 38% less peak memory, 0 skips, "
        "12 blocks of 20 steps, mnist-deep, batch 256, H200"
    )


def test_a_card_without_an_interval_says_why() -> None:
    (card,) = result_cards(compared(rows=(measured("fp32"), faster(speedup_low=None))), None)
    assert card.startswith("AMP fp16 1.71× the speed of FP32 (too few blocks for an interval), ")


@pytest.mark.parametrize(
    ("peak_bytes", "words"),
    [(None, "0 skips"), (2 * 2**30, "the same peak memory"), (3 * 2**30, "50% more peak memory")],
)
def test_memory_is_said_as_it_was_measured(peak_bytes: int | None, words: str) -> None:
    rows = (measured("fp32"), faster(peak_allocated_bytes=peak_bytes))
    (card,) = result_cards(compared(rows=rows), None)
    assert card.partition("), ")[2].startswith(words)


def test_what_compiling_gained_has_a_card_beside_those_of_the_baseline() -> None:
    rows = (
        measured("fp32 eager"),
        *(replace(faster(), precision=name) for name in ("fp32", "fp16 eager", "fp16")),
    )
    pairs = (pair("fp32", "fp32 eager", 1.71), pair(), pair(than="fp32", speedup=0.8), pair(speedup=0.0))
    cards = result_cards(compared(baseline="fp32 eager", rows=rows, pairs=pairs), None)
    assert [card.partition(" 1.71× the speed of ")[0] for card in cards[:3]] == [
        "FP32 compiled",
        "AMP fp16 eager",
        "AMP fp16 compiled",
    ]
    assert all("the speed of FP32 eager (1.68 to 1.74)" in card for card in cards[:3])
    assert cards[3] == "AMP fp16 compiled 1.25× the speed of AMP fp16 eager (1.20 to 1.30)"
    assert len(cards) == 5


def test_a_result_is_an_event_and_its_progress_none() -> None:
    session = Session()
    session.fold([compared(over=False, reason="running")])
    assert session.view().events == ()
    assert session.view().compared is not None
    session.fold([compared()])
    (event,) = session.view().events
    assert (event.kind, event.severity) == ("compared", "info")
    assert event_text(event).startswith("AMP fp16 1.71× the speed of FP32")


def test_stopped_before_the_first_pair_there_is_no_result() -> None:
    session = Session()
    session.fold([compared(rows=(measured("fp32"), measured("bf16")), reason="stopped")])
    assert event_text(session.view().events[0]) == "comparison stopped: no precision completed a block"
