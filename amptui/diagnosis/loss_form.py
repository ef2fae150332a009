"""What the loss of a step is where it is not that of one backward pass, and why there is none."""

from collections.abc import Mapping

from amptui.base import units
from amptui.records.own_loop import LossForm
from amptui.records.steps import StepRecord

_WORDS: Mapping[LossForm, str] = {
    "": "",
    "first closure": "first of several closures",
    "no backward": "no loss: gradients without backward()",
    "unattributed": "no loss: not clear whose backward() it was",
    "edited": "no loss: gradients changed between two passes",
    "several values": "no loss: backward() of several values",
    "scaled": "no loss: scaled by the script",
}


def loss_form_words(form: LossForm, passes: int, *, brief: bool = False) -> str:
    """``sum of 4 backward passes``, or ``no loss: ...``; empty for the loss of one pass.

    ``passes``: the micro-batches of the step. ``brief``: ``sum of 4 passes``.
    """
    if form == "sum":
        return f"sum of {units.count(passes)} {'' if brief else 'backward '}passes"
    return _WORDS[form]


def step_loss_words(step: StepRecord | None, *, brief: bool = False) -> str:
    """The same for a step; empty without one."""
    return "" if step is None else loss_form_words(step.loss_form, step.micro_batches, brief=brief)


def has_no_loss(step: StepRecord | None) -> bool:
    """Whether a measured step has no loss, for a reason."""
    return step is not None and step.loss is None and bool(step.loss_form)
