"""What each low precision is judged against, and that its gain is that of the two rows alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.records.run import EAGER_SUFFIX, PRECISION_ORDER
from amptui.telemetry.comparison import MIN_STEPS, compare
from amptui.telemetry.view import PrecisionStats

WITHOUT_AUTOCAST = {"fp32", "ieee", "tf32"}
JUDGED_AGAINST = {
    "fp16": WITHOUT_AUTOCAST,
    "bf16": WITHOUT_AUTOCAST,
    "fp8": {"bf16"},
    "fp8-emulated": {"bf16"},
}
"""Written out, not derived."""

SECONDS = st.none() | st.floats(1e-4, 10)


@st.composite
def rows_of(draw: st.DrawFn, precision: str) -> PrecisionStats:
    """A row whose steps were not disturbed: its mean is its median."""
    seconds = draw(SECONDS)
    return PrecisionStats(
        precision=precision,
        steps=draw(st.integers(0, 3 * MIN_STEPS)),
        warm_up_steps=draw(st.integers(0, 50)),
        median_step_seconds=seconds,
        mean_step_seconds=seconds,
        samples_per_second=None,
        peak_allocated_bytes=draw(st.none() | st.integers(1, 10**9)),
        last_loss=None,
        skipped=0,
    )


NAMES = st.sampled_from((*PRECISION_ORDER, "fp32" + EAGER_SUFFIX, "bf16" + EAGER_SUFFIX, "fp4"))
ROWS = st.lists(NAMES, unique=True).flatmap(
    lambda names: st.tuples(*(rows_of(name) for name in names)).map(list)
)
QUESTIONS = ("", *JUDGED_AGAINST)


def most_used(rows: list[PrecisionStats], names: set[str]) -> set[str]:
    """Those of ``names`` with the most steps, of which warm-up steps count least."""
    used = [row for row in rows if row.precision in names]
    most = max(((row.steps, row.warm_up_steps) for row in used), default=None)
    return {row.precision for row in used if (row.steps, row.warm_up_steps) == most}


@given(ROWS, st.sampled_from(QUESTIONS))
def test_each_question_has_its_own_pair_and_gain(rows: list[PrecisionStats], question: str) -> None:
    comparison = compare(rows, question)
    by_name = {row.precision: row for row in rows}
    assert {row.precision: row for row in comparison.rows} == by_name
    lows = {question} if question else {"fp16", "bf16"}
    bases = JUDGED_AGAINST[question or "fp16"]
    assert comparison.low in (most_used(rows, lows) or (question or None,))
    assert comparison.baseline in (most_used(rows, bases) or (None,))
    low, base = by_name.get(comparison.low or ""), by_name.get(comparison.baseline or "")
    gains = (comparison.speedup, comparison.provisional_speedup, comparison.memory_saving)
    if question == "fp8-emulated" or low is None or base is None:
        assert gains == (None, None, None)
        assert comparison.missing
        return
    enough = min(low.steps, base.steps) >= MIN_STEPS
    seconds, peaks = (
        (base.median_step_seconds, low.median_step_seconds),
        (base.peak_allocated_bytes, low.peak_allocated_bytes),
    )
    ratio = None if None in seconds else (seconds[0] or 0) / (seconds[1] or 1)
    assert comparison.speedup == (pytest.approx(ratio) if enough and ratio is not None else None)
    saving = None if None in peaks else 1 - (peaks[1] or 0) / (peaks[0] or 1)
    assert comparison.memory_saving == (None if saving is None else pytest.approx(saving))
    assert (comparison.missing == "more steps") == (not enough)
