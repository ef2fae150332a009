"""The guide's page on comparing runs says what the code does."""

import re

import pytest

from amptui.reports.compare.compare_frame import KEYS
from amptui.reports.compare.contrasts import CONFIDENCE, SAME_SAMPLES
from amptui.reports.compare.overlay_plot import MAX_GROUPS
from amptui.reports.compare.trace import FINAL_SHARE, MAX_UNTIMED_SHARE, MEAN_STEPS
from amptui.reports.compare.welch import ENOUGH_SEEDS, MIN_SEEDS, POWER, detectable_difference
from tests.checkout import ROOT
from tests.reports.compare.test_welch import spread_out

PAGE = (ROOT / "demo" / "guide" / "compare.md").read_text()
TEXT = " ".join(PAGE.split())


def test_every_key_that_it_names_is_one() -> None:
    (table,) = re.findall(r"\| key \|.*?\n\n", PAGE, re.DOTALL)
    cells = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    labelled = {label for cell in cells for label in re.findall(r"`([^`]+)`", cell)}
    assert labelled == {part for key in KEYS for part in key.label.split()}


def test_its_numbers_are_the_code_s() -> None:
    assert f"last {FINAL_SHARE:.0%} of the steps, at least {MEAN_STEPS}" in TEXT
    assert f"{CONFIDENCE:.0%} interval" in TEXT
    assert f"more than {SAME_SAMPLES:.0%}" in TEXT
    assert f"more than {MAX_UNTIMED_SHARE:.0%} of the steps" in TEXT
    assert (MIN_SEEDS, "two seeds or more" in TEXT) == (2, True)
    assert (MAX_GROUPS, "eight groups" in TEXT) == (8, True)


def test_the_differences_that_so_many_seeds_show_are_the_code_s() -> None:
    (head, row) = (
        re.findall(rf"\| {name}[^|]*\|(.*)\|", PAGE)[0].split("|") for name in ("seeds of", "difference")
    )
    told = {(int(size), int(size)): float(shown) for size, shown in zip(head, row, strict=True)}
    (two,) = re.findall(r"2 seeds against 10 show a difference of ([\d.]+)", TEXT)
    (three,) = re.findall(r"3 against 10 one of ([\d.]+)", TEXT)
    for sizes, shown in (told | {(2, 10): float(two), (3, 10): float(three)}).items():
        assert detectable_difference(*(spread_out(size, 1) for size in sizes)) == pytest.approx(
            shown, rel=0.01
        )
    assert f"{round(10 * POWER)} times in 10 (a power of {POWER:.0%})" in TEXT
    assert f"fewer than {ENOUGH_SEEDS} seeds" in TEXT


def test_the_verdict_that_it_quotes_is_what_the_recorded_runs_give() -> None:
    from amptui.reports.compare.following import read_all
    from amptui.reports.compare.output import plain_lines
    from tests.reports.compare.compared_runs import BF16, FP32

    (quoted,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    assert set(quoted.splitlines()) <= set(plain_lines(read_all([*FP32, *BF16], target=None)))
