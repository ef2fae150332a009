"""The recommendation as lines of 80 columns, as strict JSON, and as a page."""

import json
from html.parser import HTMLParser
from typing import Any

import pytest

from amptui.reports.advise.advice import recommend
from amptui.reports.advise.advice_report import (
    WIDTH,
    Recommendation,
    advice_page,
    report_json,
    report_lines,
    table_lines,
)
from amptui.reports.advise.advise_words import headline
from amptui.reports.advise.evidence import Candidate, Evidence, Exclusion
from amptui.reports.advise.loss_race import LossRace
from amptui.reports.advise.paste import Setting, lines_for
from amptui.telemetry.view import EMPTY_VIEW
from tests.reports.advise.situations import SAME_LOSSES, candidate, finding

NAN = float("nan")

LONG = "encoder.layers.11.self_attention.output_projection.dense"


def found(*candidates: Candidate, interrupted: bool = False) -> Recommendation:
    advice = recommend(candidates)
    precision = advice.precision or "fp32"
    losses = {"fp32": SAME_LOSSES[0], "bf16": SAME_LOSSES[1]}
    return Recommendation(
        subject="tiny",
        is_script=False,
        evidence=Evidence(view=EMPTY_VIEW, missing={"x-ray": "<b>no</b> forward pass"}),
        candidates=candidates,
        advice=advice,
        race=LossRace(steps=300, finals=losses),
        lines=lines_for(Setting(precision=precision, device_type="cuda", command="amptui train tiny")),
        seconds=12.0,
        interrupted=interrupted,
    )


DIFFERS = finding(
    "agreement", "differ", "warning", value=0.7, place=LONG, about="bf16", precision="bf16", happened=False
)

FOUND = found(
    candidate("bf16", 1.65, DIFFERS, memory=0.71),
    candidate("fp16", 1.9, finding("loss", "not finite", "error", value=NAN, about="fp16", precision="fp16")),
    candidate("tf32", losses=None, exclusion=Exclusion("not here", "no TF32 here")),
)


def test_no_line_is_longer_than_80_columns() -> None:
    lines = report_lines(FOUND)
    assert max(map(len, lines)) <= WIDTH
    first = lines[2]
    assert first.startswith("Use AMP bf16: 1.65×")
    assert headline(FOUND.advice).startswith(first)
    assert any(line.startswith("  look out: gradients differ: 0.700") for line in lines)
    assert "  TF32: left out, no TF32 here" in lines


def test_columns_that_do_not_fit_stand_below() -> None:
    rows = [
        ("", "FP32", "bf16", "fp16"),
        ("speed", "baseline", "b" * 40, "c" * 40),
        ("loss", "", "", "x" * 90),
    ]
    lines = table_lines(rows)
    assert max(map(len, lines)) <= WIDTH
    assert lines[0].split() == ["FP32", "bf16"]
    assert lines[2] == ""
    assert lines[3].split() == ["fp16"]
    assert lines[5] == "loss   " + "x" * 72 + "…"


def test_only_one_framework_s_lines_are_printed_where_one_is_asked_for() -> None:
    lines = report_lines(FOUND, "lightning")
    assert lines[-2:] == ["Lightning:", '    Trainer(precision="bf16-mixed")']
    assert not [line for line in lines if "autocast" in line]


def test_a_partial_result_says_so() -> None:
    output_text = "Interrupted: based on what was measured so far."
    assert output_text in report_lines(found(candidate("bf16", 1.5), interrupted=True))
    assert output_text not in report_lines(FOUND)


def test_fp32_leaves_nothing_to_paste() -> None:
    assert report_lines(found(candidate("bf16", 0.8)))[-1].startswith("Nothing to paste")


def test_the_json_is_strict_and_has_every_number() -> None:
    text = json.dumps(report_json(FOUND), allow_nan=False)
    content: dict[str, Any] = json.loads(text, parse_constant=pytest.fail)
    assert (content["type"], content["recommended"], content["reason"]) == ("Advice", "bf16", "faster")
    bf16, fp16, tf32 = content["candidates"]
    assert (bf16["recommended"], bf16["memory_ratio"], bf16["measured"]["speedup"]) == (True, 0.71, 1.65)
    assert bf16["losses"]["outcome"] == "same"
    by_subject = {item["subject"]: item for item in fp16["answer"]["findings"]}
    assert by_subject["loss"]["value"] == "nan"
    assert (tf32["measured"], tf32["answer"], tf32["excluded"]["kind"]) == (None, None, "not here")
    assert content["lines"]["accelerate"] == ['Accelerator(mixed_precision="bf16")']
    assert content["not_measured"] == [
        "TF32: left out, no TF32 here",
        "agreement of the gradients: <b>no</b> forward pass",
    ]


class _Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert not {"src", "href"} & {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_is_self_contained_and_safe_with_any_text() -> None:
    found_tags = _Tags(advice_page(FOUND))
    assert "script" not in found_tags.tags
    assert "<b>no</b> forward pass" in found_tags.text
    for words in ("Use AMP bf16", "1.65× (1.62 to 1.68)", "lines to paste", "torch.autocast", "300 steps"):
        assert words in found_tags.text
