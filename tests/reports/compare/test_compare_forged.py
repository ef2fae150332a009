"""Forged journals are compared as any others: nothing in them raises, and nothing reaches a terminal."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings

from amptui.base.errors import RunFolderError
from amptui.reports.compare.axis_cursor import press
from amptui.reports.compare.compare_frame import Choice, CompareFrame
from amptui.reports.compare.compare_page import page
from amptui.reports.compare.following import read_all
from amptui.reports.compare.output import as_json, plain_lines
from amptui.tui.canvas import Canvas
from tests.forging import forged_journals
from tests.reports.compare.compared_runs import FP32


@pytest.mark.ci
@given(first=forged_journals(), second=forged_journals())
@settings(max_examples=30, deadline=None)
def test_no_journal_makes_a_comparison_fail(first: bytes, second: bytes) -> None:
    with TemporaryDirectory() as folder:
        journals = [Path(folder) / name for name in ("first.jsonl", "second.jsonl")]
        for journal, content in zip(journals, (first, second), strict=True):
            journal.write_bytes(content)
        try:
            comparison = read_all([*journals, FP32[0]], target=None)
        except RunFolderError:
            return  # nothing of it could be read
    frame = CompareFrame()
    for axis in ("steps", "samples", "seconds"):
        for validation in (False, True):
            canvas = Canvas(80, 24)
            frame.draw(canvas, comparison, Choice(axis=axis, validation=validation, log_y=validation))
            assert "".join(canvas.lines()).isprintable()
            cursor = None
            for key in ("left", "plus", "left_square_bracket", "plus", "home", "minus", "right"):
                if frame.extent is not None:
                    cursor = press(cursor, key, frame.extent)
                canvas = Canvas(80, 24)
                frame.draw(canvas, comparison, Choice(axis=axis, validation=validation, cursor=cursor))
                assert "".join(canvas.lines()).isprintable()
    json.dumps(as_json(comparison), allow_nan=False)
    assert plain_lines(comparison)
    assert "\x1b" not in page(comparison)
