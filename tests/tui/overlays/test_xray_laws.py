"""The signs that say how well each layer of an X-ray agrees."""

from hypothesis import given
from hypothesis import strategies as st

from amptui.telemetry.health import XRAY_CAREFUL_COSINE, XRAY_SAFE_COSINE
from amptui.tui.overlays.xray_overlay import agreement, layer_sign
from amptui.tui.style import Style
from tests.tui.overlays.opened import layer


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
