"""The benchmark of watched scripts, in small: each form of watching trains to the bare script's bits."""

import pytest

from tests.benchmarks.lab import open_lab
from tests.benchmarks.own_loop import BARE, FORMS, Form, run


@pytest.mark.ci  # four processes import torch
@pytest.mark.parametrize("form", FORMS, ids=[form.name for form in FORMS])
def test_a_watched_script_ends_in_the_bits_of_the_bare_one_with_and_without_a_fault(form: Form) -> None:
    options = ("--precision", "fp16", "--steps", "60")
    with open_lab(600) as lab:
        bare, ours = (run(lab, each, *options) for each in (BARE, form))
        faulty = run(lab, form, *options, "--fault", "step")
    assert bare["state"] == ours["state"] == faulty["state"]
    assert (bare["told"], ours["told"], faulty["told"]) == (0, 0, 1)
    assert ours["seconds"] > 0
