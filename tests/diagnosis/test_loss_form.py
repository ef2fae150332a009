"""What the loss of a step is, in words."""

from typing import get_args

import pytest

from amptui.diagnosis.loss_form import has_no_loss, loss_form_words, step_loss_words
from amptui.records.own_loop import LossForm
from tests.telemetry.record_samples import step


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("", ""),
        ("sum", "sum of 4 backward passes"),
        ("first closure", "first of several closures"),
        ("no backward", "no loss: gradients without backward()"),
        ("unattributed", "no loss: not clear whose backward() it was"),
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
