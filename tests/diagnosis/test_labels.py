"""Labels, letters, glyphs and colours of the precisions, and what the loss of a step is."""

from typing import get_args

import pytest

from amptui.diagnosis.labels import (
    has_no_loss,
    layer_label,
    loss_form_words,
    operand_label,
    optimizers_left_out,
    precision_glyph,
    precision_label,
    precision_letter,
    short_label,
    signed_label,
    step_loss_words,
)
from amptui.diagnosis.speed import why_no_ratio
from amptui.records.own_loop import LossForm
from amptui.records.run import PRECISION_ORDER, PRECISIONS
from amptui.reports.export.markup import css_class
from amptui.telemetry.comparison import compare
from amptui.telemetry.view import OptimizerView, SessionView
from amptui.tui.canvas import Canvas
from amptui.tui.style import precision_style
from tests.telemetry.record_samples import step, steps
from tests.telemetry.whole_runs import session_of


@pytest.mark.parametrize("tell", [precision_label, precision_letter, precision_glyph, signed_label])
def test_no_two_precisions_are_told_alike(tell: object) -> None:
    assert callable(tell)
    words = [tell(name) for name in PRECISION_ORDER]
    assert len(set(words)) == len(words)


@pytest.mark.parametrize(
    ("name", "label", "letter"),
    [
        ("fp32", "FP32", "F"),
        ("ieee", "FP32 ieee", "I"),
        ("tf32", "TF32", "T"),
        ("fp16", "AMP fp16", "A"),
        ("bf16", "AMP bf16", "B"),
        ("fp8", "FP8", "8"),
        ("fp8-emulated", "FP8 emulated", "E"),
        ("fp4", "fp4", "?"),
        ("fp16 weights", "fp16 weights", "H"),
        ("bf16 weights", "bf16 weights", "b"),
        ("float8 layers", "float8 layers", "L"),
        ("float64", "float64", "D"),
        ("mixed", "mixed precisions", "M"),
        ("unknown", "precision unknown", "?"),
    ],
)
def test_precisions_have_names_for_people(name: str, label: str, letter: str) -> None:
    assert (precision_label(name), precision_letter(name)) == (label, letter)


def test_beside_others_a_precision_is_named_without_amp() -> None:
    names = ("fp32", "fp16", "bf16", "fp8", "fp8-emulated", "")
    assert [short_label(name) for name in names] == ["fp32", "fp16", "bf16", "FP8", "FP8 emulated", ""]


def test_an_operand_is_named_by_its_layer() -> None:
    assert operand_label("gradient", "mlp.fc") == "output gradient of mlp.fc"
    assert operand_label("weight", "0") == "weight of layer 0"
    assert operand_label("input", "") == "input of the model"
    assert [layer_label(name) for name in ("mlp.fc", "0", "")] == ["mlp.fc", "layer 0", "the model"]


def test_glyphs_have_one_character_each_on_ascii_terminals() -> None:
    canvas = Canvas(len(PRECISION_ORDER), 1, ascii_only=True)
    canvas.text(0, 0, "".join(map(precision_glyph, PRECISION_ORDER)))
    (line,) = canvas.lines()
    assert line.isascii()
    assert len(set(line)) == len(PRECISION_ORDER)


def test_only_precisions_of_one_number_type_share_a_colour() -> None:
    assert precision_style("fp16 weights") == precision_style("fp16")
    assert css_class("fp16 weights") == "fp16"
    assert precision_style("float8 layers") == precision_style("fp8")
    assert css_class("float8 layers") == "fp8"
    for name in ("float64", "mixed", "unknown"):
        assert css_class(name) == "other"
        assert precision_style(name) not in {precision_style(precision) for precision in PRECISIONS}


def test_a_run_without_fp32_and_amp_says_so() -> None:
    assert why_no_ratio(compare([])) == "no steps yet"
    view = session_of(steps(1, 40, precision="float64")).view()
    assert why_no_ratio(view.comparison) == "neither FP32 nor AMP ran"


# ------------------------------------------------------------------------------ the loss of a step


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("", ""),
        ("sum", "sum of 4 backward passes"),
        ("first closure", "first of several closures"),
        ("no backward", "no loss: gradients without backward()"),
        ("unattributed", "no loss: unclear whose backward() it was"),
        ("edited", "no loss: gradients changed between two passes"),
        ("several values", "no loss: backward() of several values"),
        ("scaled", "no loss: scaled by the script"),
    ],
)
def test_each_form_has_its_words(form: LossForm, words: str) -> None:
    assert loss_form_words(form, 4) == words
    assert step_loss_words(step(1, loss_form=form, micro_batches=4)) == words


def test_every_form_has_words() -> None:
    assert [form for form in get_args(LossForm) if form and not loss_form_words(form, 1)] == []


def test_a_sum_is_short_where_there_is_little_room() -> None:
    assert loss_form_words("sum", 4, brief=True) == "sum of 4 passes"


@pytest.mark.parametrize(
    ("loss", "form", "has_none"),
    [(0.5, "", False), (0.5, "sum", False), (None, "", False), (None, "scaled", True)],
)
def test_a_step_that_was_not_measured_is_not_one_without_a_loss(
    loss: float | None, form: LossForm, *, has_none: bool
) -> None:
    assert has_no_loss(step(1, loss=loss, loss_form=form)) is has_none
    assert not has_no_loss(None)


def test_optimizers_beyond_those_that_are_kept_are_pointed_out() -> None:
    optimizers = (OptimizerView(name="", label="generator"), OptimizerView(name="d", label="discriminator"))
    assert optimizers_left_out(SessionView(optimizers=optimizers)) == []
    assert optimizers_left_out(SessionView(optimizers=optimizers, optimizers_left_out=True)) == [
        "more than 2 optimizers: the others are left out"
    ]
