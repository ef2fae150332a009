"""The X-ray on the screen: what it shows, how layers are sorted, and that trouble is visible."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amptui.diagnosis.float16_verdicts import MASKS_DIFFER
from amptui.records.findings import LayerAgreement
from amptui.telemetry.health import XRAY_CAREFUL_COSINE, XRAY_SAFE_COSINE
from amptui.telemetry.view import EMPTY_VIEW
from amptui.tui.canvas import Canvas
from amptui.tui.overlays.overlay import CLOSE, STAY, Answer
from amptui.tui.overlays.xray_overlay import ORDERS, XRay, agreement, draw_layers, layer_sign, share_word
from amptui.tui.panels.phrases import end_of
from amptui.tui.panels.screen_state import ScreenState
from amptui.tui.style import BOLD, Style
from tests.tui.overlays.opened import (
    LAYERS,
    SCREEN,
    drawn,
    layer,
    lines,
    text,
    with_float8_xray,
    with_xray,
    xray,
)
from tests.tui.panels.drawing import style_of

both_sizes = pytest.mark.parametrize("size", [(80, 24), (120, 40)])


def names(overlay: XRay, width: int = 120, height: int = 40) -> list[str]:
    """The layers in the order in which they stand there."""
    layer_names = [agreement.name or "(model)" for agreement in LAYERS]
    shown = [line for line in lines(overlay, with_xray(), width, height) if "outputs" not in line]
    table = shown[next(i for i, line in enumerate(shown) if "7 layers, " in line) :]
    return [name for line in table for name in layer_names if f" {name} " in line]


@both_sizes
def test_the_verdict_is_first_in_its_style(size: tuple[int, int]) -> None:
    canvas = drawn(XRay(), with_xray(layers=LAYERS[:4]), *size)
    assert canvas.lines()[1].startswith("│ ✖ gradients disagree in 1 of 4 layers")
    assert style_of(canvas, "gradients disagree") == Style.ERROR | BOLD
    careful = drawn(XRay(), with_xray(layers=LAYERS[:3]), *size)
    assert style_of(careful, "⚠ gradients differ") == Style.WARNING | BOLD
    safe = drawn(XRay(), with_xray(layers=LAYERS[:2]), *size)
    assert style_of(safe, "✔ gradients agree") == Style.GOOD | BOLD


@both_sizes
def test_losses_memory_and_cost_are_shown(size: tuple[int, int]) -> None:
    shown = text(XRay(), with_xray(), *size)
    assert "step 1,204: FP32 and AMP fp16 at loss scale 65,536" in shown
    assert "■ FP32 0.031214  ▲ AMP fp16 0.0312295  0.050% apart  took 412 ms" in shown
    assert "■ FP32 236 MiB  ▲ AMP fp16 121 MiB  saved for backward, 49% less" in shown
    for part in ("weights 56.0 MiB", "gradients 56.0 MiB", "optimizer 112 MiB", "buffers 12.0 KiB"):
        assert part in shown
    assert "dropout" not in shown


def test_what_was_not_measured_is_not_shown() -> None:
    shown = text(XRay(), with_xray(saved_bytes_fp32=None, saved_bytes_amp=None, loss_scale=None))
    assert "saved for backward" not in shown
    assert "loss scale" not in shown
    assert "weights" in shown


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [(0, 0, "saved for backward "), (200, 200, "the same"), (100, 150, "50% more"), (100, 50, "50% less")],
)
def test_amp_may_also_save_more_memory_for_backward(before: int, after: int, words: str) -> None:
    view = with_xray(saved_bytes_fp32=before, saved_bytes_amp=after)
    assert words in text(XRay(), view)


def test_equal_losses_are_equal() -> None:
    assert "0.5  equal" in text(XRay(), with_xray(loss_fp32=0.5, loss_amp=0.5))
    assert " apart" not in text(XRay(), with_xray(loss_fp32=0.0, loss_amp=0.5))


def test_a_loss_that_overflowed_is_an_error_and_has_no_distance() -> None:
    canvas = drawn(XRay(), with_xray(loss_amp=float("inf")))
    assert style_of(canvas, "inf  took") == Style.ERROR
    assert " apart" not in "\n".join(canvas.lines())


def test_active_dropout_is_pointed_out() -> None:
    assert style_of(drawn(XRay(), with_xray(random=True), 80, 24), MASKS_DIFFER) == Style.WARNING


def test_islands_in_fp32_are_counted_and_named() -> None:
    shown = text(XRay(), with_xray())
    assert "5 ▲ float16  1 ■ float32  in FP32: head.island" in shown
    everywhere = with_xray(output_dtypes={"a": "float32", "b": "float32"})
    assert "in FP32:" not in text(XRay(), everywhere)
    many = {"a": "float16"} | {f"norm{i}": "float32" for i in range(7)}
    assert "in FP32: norm0, norm1, norm2, norm3 (+3)" in text(XRay(), with_xray(output_dtypes=many))


def test_before_the_first_one_it_says_how_to_take_one() -> None:
    canvas = drawn(XRay(), EMPTY_VIEW, screen=replace(SCREEN, accepts=frozenset({"x-ray"})))
    assert "x takes one" in "\n".join(canvas.lines())
    assert "x again" in canvas.lines()[-1]


def test_where_none_can_be_taken_it_names_no_key() -> None:
    assert "x takes one" not in text(XRay(), EMPTY_VIEW)
    assert "again" not in lines(XRay(), with_xray())[-1]


# ----------------------------------------------------------------------------------- layers


@both_sizes
def test_each_layer_has_its_numbers(size: tuple[int, int]) -> None:
    shown = lines(XRay(), with_xray(), *size)
    (row,) = (line for line in shown if "features.2.conv  " in line)
    for cell in ("✖", "Conv2d", "▲ float16", "0.44210", "34.0%", "31.0%"):
        assert cell in row
    (island,) = (line for line in shown if " head.island  " in line and "outputs" not in line)
    assert "■ float32" in island
    assert " 0% " in island


def test_rows_below_the_thresholds_have_sign_and_colour() -> None:
    canvas = drawn(XRay(), with_xray())
    assert style_of(canvas, "0.44210") == Style.ERROR
    assert style_of(canvas, "0.89730") == Style.WARNING
    assert style_of(canvas, "0.99961") == Style.TEXT
    assert style_of(canvas, "nan") == Style.ERROR
    assert style_of(canvas, "■ float32  ") == Style.FP32
    assert style_of(canvas, "▲ float16  ") == Style.FP16
    signs = {agreement.name: layer_sign(agreement)[0] for agreement in LAYERS}
    assert signs == {
        "features.0.conv": " ",
        "features.0.norm": " ",
        "features.1.conv": "⚠",
        "features.2.conv": "✖",
        "head.island": " ",
        "head.blown": "✖",
        "": "·",
    }


def test_a_value_at_a_threshold_gets_the_better_verdict() -> None:
    assert layer_sign(layer("a", XRAY_SAFE_COSINE))[0] == " "
    assert layer_sign(layer("a", XRAY_CAREFUL_COSINE))[0] == "⚠"


def test_a_cosine_is_never_rounded_up() -> None:
    shown = text(XRay(), with_xray(layers=(layer("a", 0.999999), layer("b", 0.998999))))
    assert "0.99999 " in shown
    assert "0.99899 " in shown
    assert "1.00000" not in shown
    opposite = text(XRay(), with_xray(layers=(layer("a", -0.99996), layer("b", 1.0))), 80, 24)
    assert " -0.9999 " in opposite
    assert " 1.00000 " in opposite


def test_a_key_goes_through_the_orders() -> None:
    overlay = XRay()
    orders = []
    for order in ORDERS:
        assert f"7 layers, {order}" in text(overlay, with_xray())
        orders.append(names(overlay))
        assert overlay.press("s", with_xray()) == STAY
    assert names(overlay) == orders[0]
    worst, model, lost, size = orders
    assert worst[:3] == ["head.blown", "features.2.conv", "features.1.conv"]
    assert worst[-1] == "(model)"
    assert model == [agreement.name or "(model)" for agreement in LAYERS]
    assert lost[:2] == ["features.2.conv", "features.1.conv"]
    assert size[0] == "features.1.conv"


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
    assert sorted(agreement.name for agreement in result) == sorted(agreement.name for agreement in layers)
    if order == "worst first":
        cosines = [agreement.cosine for agreement in result if agreement.cosine is not None]
        assert [agreement.cosine for agreement in result][: len(cosines)] == cosines
        finite = [cosine for cosine in cosines if not math.isnan(cosine)]
        assert finite == sorted(finite)
        assert cosines[len(cosines) - len(finite) :] == finite


def test_long_names_are_cut_at_the_front() -> None:
    assert end_of("features.12.conv", 13) == "…ures.12.conv"
    assert end_of("features.12.conv", 16) == "features.12.conv"
    deep = layer("backbone.encoder.layers.11.attention.self.projection.out")
    assert any("ection.out " in line for line in lines(XRay(), with_xray(layers=(deep,)), 80, 24))


def test_where_there_is_room_a_bar_shows_the_agreement() -> None:
    canvas = Canvas(116, 4)
    draw_layers(canvas, xray(layers=(layer("a", 0.999), layer("b", 0.5))), "model order", 0)
    assert "▰▰▰▰▰▰▰▰▰▰▰▱" in canvas.lines()[1]
    assert "▰▰▰▰▰▰▱▱▱▱▱▱" in canvas.lines()[2]
    assert not any("▰" in line for line in lines(XRay(), with_xray(), 80, 24))


@given(st.floats(-1, 1.0001))
def test_the_bar_is_longer_the_better_a_layer_agrees(cosine: float) -> None:
    assert 0 <= agreement(cosine) <= agreement(cosine + 1e-3) <= 1
    # Its colour says the verdict; its length does not contradict it.
    assert (agreement(cosine) < 0.5) == (layer_sign(layer("a", cosine))[1] == Style.ERROR)
    assert (agreement(cosine) >= 0.9) == (layer_sign(layer("a", cosine))[1] == Style.GOOD)
    assert agreement(float("nan")) == 0


@pytest.mark.parametrize(
    ("fraction", "words"),
    [(None, "n/a"), (0.0, "0%"), (0.114, "11.4%"), (2.5, "250%"), (1234.0, "1.23 k×"), (float("inf"), "inf")],
)
def test_shares_are_short(fraction: float | None, words: str) -> None:
    assert share_word(fraction).text == words
    assert len(words) <= 7


# ------------------------------------------------------------------------ operators and keys


def test_operators_have_a_column_for_each_dtype() -> None:
    overlay = XRay()
    assert overlay.press("o", with_xray()) == STAY
    shown = lines(overlay, with_xray())
    (head,) = (line for line in shown if "4 operators, most frequent first" in line)
    assert head.index("■ float32") < head.index("▲ float16") < head.index("int64")
    (casts,) = (line for line in shown if "│ _to_copy " in line)
    assert casts.split()[2:5] == ["44", "1,062", "·"]
    overlay.press("s", with_xray())
    overlay.press("o", with_xray())
    assert "7 layers, worst first" in text(overlay, with_xray())


def many_layers(count: int = 100) -> tuple[LayerAgreement, ...]:
    return tuple(layer(f"layer{i:03}", 0.9 + i / 10_000) for i in range(count))


def test_arrows_pages_and_ends_scroll() -> None:
    view, overlay = with_xray(layers=many_layers()), XRay()
    last = lines(overlay, view, 80, 24)[-1]
    page = int(last.split("–")[1].split()[0])
    assert f"1–{page} of 100" in last
    for key, first in (
        ("down", 2),
        ("j", 3),
        ("up", 2),
        ("pagedown", 2 + page),
        ("end", 101 - page),
        ("home", 1),
        ("k", 1),
    ):
        overlay.press(key, view)
        assert f" {first}–{first + page - 1} of 100 " in lines(overlay, view, 80, 24)[-1]
    overlay.press("end", view)
    overlay.press("s", view)
    assert f" 1–{page} of 100 " in lines(overlay, view, 80, 24)[-1]


def test_a_new_one_is_requested_and_the_edge_says_so() -> None:
    assert XRay().press("x", with_xray()) == Answer(action="take_xray")
    for screen, words in (
        (ScreenState(waiting="X-ray with the next step …"), "X-ray with the next step …"),
        (ScreenState(message="no X-ray: out of memory", waiting="x"), "no X-ray: out of memory"),
        (ScreenState(), "esc back"),
    ):
        assert words in drawn(XRay(), with_xray(), screen=screen).lines()[-1]


@pytest.mark.parametrize("key", ["escape", "q", "ctrl+q"])
def test_keys_close_it(key: str) -> None:
    assert XRay().press(key, with_xray()) == CLOSE


def test_a_smaller_x_ray_in_its_place_is_scrolled_back() -> None:
    overlay = XRay()
    lines(overlay, with_xray(layers=many_layers()), 80, 24)
    overlay.press("end", with_xray(layers=many_layers()))
    assert "layer000" in text(overlay, with_xray(layers=many_layers(3)), 80, 24)


def test_an_x_ray_without_layers_is_an_empty_table() -> None:
    view = with_xray(layers=(), operators=(), output_dtypes={})
    overlay = XRay()
    assert "0 layers" in text(overlay, view)
    overlay.press("o", view)
    assert "0 operators" in text(overlay, view)
    assert "outputs" not in text(overlay, replace(view))


# ------------------------------------------------------------------------------------------ FP8


@both_sizes
def test_in_fp8_each_layer_stands_beside_bf16_and_says_what_it_runs_in(size: tuple[int, int]) -> None:
    shown = lines(XRay(), with_float8_xray(), *size)
    assert "FP32, AMP bf16 and FP8 emulated" in shown[0]
    head = " ".join(next(line for line in shown if "4 layers, worst first" in line).split())
    assert "runs in cosine in bf16 to bf16 error" in head
    fc = next(line for line in shown if "⚠ blocks.0.mlp.fc" in line)
    for word in ("float8", "0.71234", "0.99991", "0.71222"):
        assert word in fc
    assert "bfloat16" in next(line for line in shown if "head" in line and "layers" not in line)
    losses = next(line for line in shown if "■ FP32" in line)
    assert "● AMP bf16 2.5008" in losses
    assert "▽ FP8 emulated 2.5112" in losses
    assert not any("saved for backward" in line for line in shown)  # by an emulation


def test_in_fp8_only_what_float8_adds_has_a_warning_sign() -> None:
    signs = {
        line.split()[2]: line.split()[1]
        for line in lines(XRay(), with_float8_xray())
        if "0.7" in line and "gradients" not in line
    }
    assert signs == {"blocks.0.mlp.fc": "⚠", "wte": "="}


def test_the_orders_of_fp8_have_one_by_what_float8_adds() -> None:
    overlay, view = XRay(), with_float8_xray()
    for order in ("model order", "by lost", "by size", "least to bf16"):
        overlay.press("s", view)
        assert f"4 layers, {order}" in text(overlay, view)
    overlay.draw(Canvas(120, 40), with_xray(), SCREEN)  # an order that AMP's X-ray has not
    assert "7 layers, worst first" in text(overlay, with_xray())
