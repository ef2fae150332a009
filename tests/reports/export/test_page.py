"""The page: it tells the run in words that are the screen's, needs nothing else, and is never taken over."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from amptui.diagnosis.amp_answer import amp_answer
from amptui.diagnosis.answer_words import answer_line
from amptui.diagnosis.event_words import event_text
from amptui.diagnosis.loss_scale import scaler_rule
from amptui.diagnosis.speed import times_speed, why_no_ratio
from amptui.records.findings import UpdatesMeasured
from amptui.records.run import Record
from amptui.records.steps import StepRecord
from amptui.reports.export import export
from amptui.reports.export.markup import chip
from amptui.reports.export.page import page
from amptui.reports.export.recorded_run import RecordedRun
from amptui.runs.reader import JournalReader
from amptui.telemetry.session import Session
from tests.reports.export import hostile
from tests.reports.export.recorded import write
from tests.single_steps import in_blocks
from tests.telemetry.record_samples import compared, steps
from tests.telemetry.record_samples import run as started
from tests.telemetry.record_strategies import RECORDS


class Reading(HTMLParser):
    """Tags, attributes and text as a browser finds them."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.text += f" {data}"


def page_of(*records: Record) -> str:
    recording = RecordedRun("a-run", "runs/a-run")
    recording.add(in_blocks(records))
    return page(recording)


def test_a_measured_speedup_is_shown_with_its_interval() -> None:
    both = (*steps(1, 30, step_seconds=0.004), *steps(31, 60, precision="fp16", step_seconds=0.002))
    tally, turns = (Reading(page_of(started(), *both, *more)).text for more in ((), (compared(),)))
    assert f" AMP fp16 {times_speed(2.0, 'FP32')} " in tally
    assert f" AMP fp16 {times_speed(1.71, 'FP32')} (1.68 to 1.74) " in turns
    assert "2.00×" not in turns


def test_the_page_of_a_run_shows_what_the_screen_shows(
    run: Path, records: list[Record], tmp_path: Path
) -> None:
    export(run, html=tmp_path / "run.html")
    reading = Reading((tmp_path / "run.html").read_text())
    session = Session()
    session.fold(records)
    view = session.view()
    assert view.run is not None
    assert "✔ done after 36 steps in 0:0" in reading.text
    for words in (
        view.run.device_name,
        "noise (synthetic data), 64 samples",
        "⚠ synthetic data",
        "▲ AMP fp16",
        why_no_ratio(view.comparison),
        scaler_rule(view.numerics.scaler),
        answer_line(amp_answer(view)),
        "tiny-run",
        f"{view.run.parameters:,} parameters",
        *(event_text(event) for event in view.events),
        *map(str, view.run.versions.values()),
        "learning_rate",
        "classify",
        "regress",
    ):
        assert words in reading.text, words


def test_only_measured_curves_have_charts(records: list[Record]) -> None:
    titles = re.findall(r"<h3>([\w /]+)", page_of(*records))
    assert titles == [
        "loss",
        "loss components",
        "throughput",
        "loss scale",
        "headroom",
        "gradient norm",
        "learning rate",
        "update/weight",
    ]
    bare = [record for record in records if isinstance(record, StepRecord) and record.precision == "fp32"]
    assert "<h3>loss scale" not in page_of(*bare)


def test_update_ratios_have_a_curve_for_each_layer_and_say_what_is_estimated(records: list[Record]) -> None:
    exact, estimated = (
        page_of(
            *records, UpdatesMeasured(time=101.0, step=1, ratios={"conv1": 2e-3, "fc": 1e-3}, sampled=some)
        )
        for some in ((), ("fc",))
    )
    for html in (exact, estimated):
        assert "<h3>update/weight" in html
        assert "conv1" in html
    assert "estimated" not in exact
    assert "estimated" in estimated


def test_hostile_texts_add_no_tag_and_no_attribute() -> None:
    reading = Reading(page_of(*hostile.records()))
    assert hostile.EVIL in reading.text
    assert reading.tags.count("script") == 1
    assert "img" not in reading.tags
    assert not [name for name, _ in reading.attributes if name.startswith("on")]
    assert not [value for name, value in reading.attributes if name in ("src", "href")]
    classes = {word for name, value in reading.attributes if name == "class" for word in value.split()}
    assert all(re.fullmatch(r"[a-z]+\d?|fp32|fp16|bf16|tf32", name) for name in classes)


def test_the_policy_allows_only_the_page_s_own_script() -> None:
    text = page_of(*steps(1, 3))
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert policy.startswith("default-src &#x27;none&#x27;; style-src &#x27;sha256-")
    assert "unsafe" not in policy
    assert " style=" not in text
    assert not re.search(r"https?://|@import|url\(", text)


@pytest.mark.parametrize("records", [[], [started()], steps(7, 7), [started(), *steps(1, 2)]])
def test_a_nearly_empty_journal_has_a_page(records: list[Record]) -> None:
    assert "<main" in page_of(*records)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(records=st.lists(RECORDS, max_size=20))
def test_any_journal_has_a_page(records: list[Record]) -> None:
    assert page_of(*records).endswith("</html>\n")


@pytest.mark.ci
def test_a_long_run_is_a_page_of_bounded_size() -> None:
    sizes = [len(page_of(started(total_steps=n), *steps(1, n, losses={"a": 1.0}))) for n in (2_000, 20_000)]
    assert sizes[1] < 1.5 * sizes[0]


def test_curves_go_on_from_where_a_run_was_resumed() -> None:
    recording = RecordedRun("a", "a")
    recording.add(in_blocks([started(), *steps(1, 10, grad_norm=1.0)]))
    recording.add(in_blocks([started(time=200.0), *steps(6, 8, grad_norm=2.0)]))
    assert recording.step_curve("grad_norm").recent.tolist() == [1.0] * 5 + [2.0] * 3
    assert recording.steps == 13


def test_unreadable_parts_are_named_on_the_page(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "damaged"
    folder.mkdir()
    lines = (run / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "journal.jsonl").write_bytes(b"".join([*lines[:5], b"{half\n", *lines[5:-1], lines[-1][:40]]))
    export(folder, html=tmp_path / "run.html")
    reader = JournalReader(folder / "journal.jsonl")
    assert len(list(reader)) < len(lines)
    assert reader.passed_over.count(",") == 1, "two kinds of damage"
    assert reader.passed_over in (tmp_path / "run.html").read_text()


def test_precisions_have_the_signs_of_the_screen() -> None:
    assert chip("fp16") == '<span class="chip fp16">▲ AMP fp16</span>'


def test_an_unfinished_run_has_a_page(tmp_path: Path) -> None:
    export(write(tmp_path / "run", [started(), *steps(1, 5)]), html=tmp_path / "run.html")
    assert "unfinished at step 5" in (tmp_path / "run.html").read_text()
