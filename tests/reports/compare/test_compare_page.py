"""The page of a comparison: what it says, and that it is safe with any text."""

import math

from amptui.reports.compare.compare_page import page
from amptui.reports.compare.contrasts import Compared, compared
from amptui.reports.compare.following import read_all
from tests.golden import Goldens
from tests.reports.compare.compared_runs import (
    BF16,
    FP32,
    figures,
    many_groups,
    started,
    trained,
    validating,
    whole_run,
)
from tests.reports.texts import Reading, page_words, without_style


def of_every_state() -> Compared:
    """One run with validations, one that ended at NaN, one that has no steps, one without a record."""
    broken = figures(whole_run([1.0] * 20 + [math.nan] * 20, precision="bf16"))
    return compared([validating(), broken, figures([started()]), figures([])])


def test_a_page_says_and_draws_what_was_compared(goldens: Goldens) -> None:
    recorded = read_all([*FP32, *BF16], target=None)
    goldens.check("reports/compare page", page_words(page(recorded)))
    pages = {
        "recorded": recorded,
        "every state": of_every_state(),
        "validations": compared([validating(), figures(trained([1.0] * 30, precision="bf16"))]),
        "ten groups": many_groups(),
    }
    goldens.check_digests({name: without_style(page(comparison)) for name, comparison in pages.items()})


HOSTILE = "<script>alert(1)</script>\x1b[2J&\"'"


def test_no_text_of_a_run_becomes_markup() -> None:
    runs = [
        figures(whole_run(config={HOSTILE: HOSTILE}, model=HOSTILE, device_name=HOSTILE), name=HOSTILE),
        figures(whole_run(config={HOSTILE: 1}, precision=HOSTILE), name="other"),
    ]
    html = page(compared(runs))
    assert html.count("<script") == 1
    assert "\x1b" not in html
    assert "<script>alert(1)</script>?[2J&\"'" in Reading(html).text
