"""What share of a gradient's norm underflows, and that an alarm of it is told once."""

import math

import pytest

from amptui.telemetry.underflow import (
    RECOVERED_SHARE,
    UNDERFLOW_SHARE,
    UnderflowFound,
    UnderflowWatch,
    underflowing_share,
    xray_share,
)
from tests.builders import fold
from tests.telemetry import record_samples as samples
from tests.telemetry.float16_windows import losing, spread, squares_of
from tests.telemetry.record_samples import layer, window, xray


def test_the_share_is_of_the_norm_of_flushed_and_subnormal_elements() -> None:
    assert underflowing_share(losing(0.31)) == pytest.approx(0.31)
    assert underflowing_share(window(**squares_of())) == 0
    assert underflowing_share(samples.parameter("a", **squares_of(flushed=0.09, subnormal=0.16))) == 0.5


def test_without_elements_or_with_nan_there_is_no_share() -> None:
    assert underflowing_share(window(nonfinite=1)) is None
    assert underflowing_share(window(elements=0, zeros=0, counts=())) is None


def test_squares_too_small_for_float32_have_all_underflowed() -> None:
    assert underflowing_share(window(**squares_of(whole=0.0))) == 1
    assert underflowing_share(window(zeros=10_000, **squares_of(whole=0.0))) is None


def test_an_xray_s_share_is_that_of_all_layers_together() -> None:
    layers = (
        layer("small", 1.0, norm=3.0, underflowing=1.0),
        layer("large", 1.0, norm=4.0, underflowing=0.0),
    )
    assert xray_share(xray(layers=layers)) == pytest.approx(0.6)
    assert xray_share(xray(layers=(*layers, layer("bad", math.nan)))) is None


@pytest.mark.parametrize("hypothetical", [True, False])
def test_an_alarm_is_told_once_and_again_after_it_was_better(*, hypothetical: bool) -> None:
    watch = UnderflowWatch()
    shares = [0.1, UNDERFLOW_SHARE, 0.9, 0.2, 0.9, RECOVERED_SHARE / 2, 0.2, 0.3, 0.3]
    result = [
        watch.see_window(losing(share, step, hypothetical=hypothetical)) for step, share in enumerate(shares)
    ]
    assert [None if element is None else element.step for element in result] == [
        *(None, 1, None, None, None, None, None, 7, None)
    ]
    assert result[7] is not None
    assert result[7].hypothetical == hypothetical
    assert result[7].share == pytest.approx(0.3)


def test_what_shows_no_norm_neither_raises_nor_ends_an_alarm() -> None:
    watch = UnderflowWatch()
    assert watch.see_window(losing(0.9)) is not None
    assert watch.see_window(window(nonfinite=3)) is None
    assert watch.see_window(spread({-30: 9, 19: 1})) is None
    assert watch.see_window(losing(0.9)) is None


def test_an_xray_raises_the_same_alarm_and_names_the_layer() -> None:
    watch = UnderflowWatch()
    layers = (layer("a", 1.0, norm=1.0, underflowing=0.2), layer("b", 1.0, norm=1.0, underflowing=0.9))
    result = watch.see_xray(xray(layers=layers))
    assert result is not None
    assert (result.place, result.hypothetical) == ("b", False)
    assert watch.see_window(losing(0.9, hypothetical=False)) is None


@pytest.mark.parametrize(
    ("amp", "hypothetical", "alarms"), [("fp16", True, 1), ("bf16", True, 0), ("bf16", False, 1)]
)
def test_it_is_foretold_where_p_would_switch_to_fp16(amp: str, alarms: int, *, hypothetical: bool) -> None:
    session = fold([samples.run(amp_precision=amp)])
    session.fold([losing(0.5, step, hypothetical=hypothetical) for step in (1, 2, 3)])
    view = session.view()
    result = [event for event in view.events if isinstance(event.about, UnderflowFound)]
    assert [event.severity for event in result] == ["warning"] * alarms
    assert view.warnings == alarms
