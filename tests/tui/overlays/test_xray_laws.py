"""Layers of an X-ray in every order, and the signs that say how well each agrees."""

import math

from hypothesis import given
from hypothesis import strategies as st

from amptui.telemetry.health import XRAY_CAREFUL_COSINE, XRAY_SAFE_COSINE
from amptui.tui.overlays.xray_overlay import ORDERS, agreement, layer_sign
from amptui.tui.style import Style
from tests.tui.overlays.opened import layer

maybe = st.none() | st.floats(-1, 1) | st.just(float("nan"))


@given(st.lists(st.tuples(maybe, maybe, st.integers(0, 10**9))), st.sampled_from(sorted(ORDERS)))
def test_sorting_loses_no_layer_and_puts_the_unmeasured_last(
    numbers: list[tuple[float | None, float | None, int]], order: str
) -> None:
    layers = [
        layer(str(i), cosine, lost=lost, elements=elements)
        for i, (cosine, lost, elements) in enumerate(numbers)
    ]
    result = sorted(layers, key=ORDERS[order])
    assert sorted(one.name for one in result) == sorted(one.name for one in layers)
    if order == "worst first":
        cosines = [one.cosine for one in result if one.cosine is not None]
        assert [one.cosine for one in result][: len(cosines)] == cosines
        finite = [cosine for cosine in cosines if not math.isnan(cosine)]
        assert finite == sorted(finite)
        assert cosines[len(cosines) - len(finite) :] == finite


@given(st.floats(-1, 1.0001))
def test_the_bar_is_longer_the_better_a_layer_agrees(cosine: float) -> None:
    assert 0 <= agreement(cosine) <= agreement(cosine + 1e-3) <= 1
    # Its colour says the verdict; its length does not contradict it.
    assert (agreement(cosine) < 0.5) == (layer_sign(layer("a", cosine))[1] == Style.ERROR)
    assert (agreement(cosine) >= 0.9) == (layer_sign(layer("a", cosine))[1] == Style.GOOD)
    assert agreement(float("nan")) == 0


def test_a_value_at_a_threshold_gets_the_better_verdict() -> None:
    assert layer_sign(layer("a", XRAY_SAFE_COSINE))[0] == " "
    assert layer_sign(layer("a", XRAY_CAREFUL_COSINE))[0] == "⚠"
