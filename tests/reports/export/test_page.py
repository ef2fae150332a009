"""The page: what it says of a run, that it needs nothing else, and that nobody's text takes it over."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from amptui.base.text import printable
from amptui.records.run import Note, Record
from amptui.reports.export import page as cards
from amptui.reports.export.template import Card, Span, document
from amptui.telemetry.events import event_of
from amptui.telemetry.flops import flops_now
from amptui.telemetry.view import SessionView
from tests.builders import make_started, make_steps
from tests.gan_journal import gan_records
from tests.golden import Goldens
from tests.reports.export import hostile
from tests.reports.export.pages import card_html, page_of
from tests.reports.texts import Reading, page_words
from tests.telemetry import record_samples
from tests.telemetry.record_strategies import RECORDS
from tests.tui import numerics_views, rank_views, views
from tests.tui.overlays.opened import float8_xray

RUNS: dict[str, list[Record]] = {
    "every kind of record": list(hostile.records("a text")),
    "two optimizers": list(gan_records(60)),
    "in mixed": [
        make_started(precision="mixed"),
        *make_steps(1, 60),
        *make_steps(61, 160, precision="mixed", grad_max=0.25, step_seconds=0.002),
    ],
}


def test_whole_pages_say_what_was_recorded(goldens: Goldens) -> None:
    for name, records in RUNS.items():
        goldens.check(f"reports/page of {name}", page_words(page_of(*records)))


# ---------------------------------------------------------------------------------------- its cards


def with_flops() -> SessionView:
    """What both precisions achieved."""
    run = record_samples.run()
    full = flops_now(record_samples.flops(flops=10**12), 0.02, run)
    half = flops_now(record_samples.flops("fp16", flops=10**12, nchw_flops=10**12), 0.0025, run)
    return replace(views.compared(), flops=(full, half))


def eventful() -> SessionView:
    """More events than are in sight, one of them of several lines."""
    texts = (f"event {n}" + "\nmore" * (n == 3) for n in range(cards.EVENTS_IN_SIGHT + 3))
    notes = [Note(time=views.NOW - n, severity="warning", text=text) for n, text in enumerate(texts)]
    events = tuple(replace(event_of(note), step=100 - n) for n, note in enumerate(notes))
    return replace(views.compared(), events=events)


CARDS: dict[str, Callable[[], Card | None]] = {
    "comparison with FLOP/s": lambda: cards.comparison(with_flops()),
    "comparison, A/B test": lambda: cards.comparison(
        replace(views.compared(), compared=record_samples.compared())
    ),
    "float16": lambda: cards.float16_window(numerics_views.float16_window(-8, worst=numerics_views.LOSING)),
    "trace": lambda: cards.trace(numerics_views.traced()),
    "X-ray": lambda: cards.xray(numerics_views.xrayed()),
    "X-ray in FP8": lambda: cards.xray(float8_xray()),
    "events": lambda: cards.events(eventful()),
    "8 ranks, slow input": lambda: cards.ranks(rank_views.view(8, "input")),
    "1,024 ranks, slow compute": lambda: cards.ranks(rank_views.view(1024, "compute")),
    "8 ranks in trouble": lambda: cards.ranks(rank_views.ALL["8 ranks in trouble"]()),
    "ranks without numbers": lambda: cards.ranks(rank_views.unsampled()),
}
"""Those that the approved words of all situations lack."""


def test_each_card_has_its_words(goldens: Goldens) -> None:
    words = [f"== {name}\n{page_words(f'<body>{card_html(make())}')}" for name, make in CARDS.items()]
    goldens.check("reports/page cards", "\n".join(words))


# ------------------------------------------------------------------------------ any text, any journal


def test_hostile_texts_add_no_tag_and_no_attribute() -> None:
    reading = Reading(page_of(*hostile.records()))
    tags = [tag for tag, _ in reading.tags]
    assert hostile.EVIL in reading.text
    assert (tags.count("script"), "img" in tags) == (1, False)
    attributes = [(name, value) for _, own in reading.tags for name, value in own.items()]
    assert not [name for name, _ in attributes if name.startswith("on") or name in ("src", "href", "style")]
    classes = {word for name, value in attributes if name == "class" for word in value.split()}
    assert all(re.fullmatch(r"[a-z]+\d?|fp32|fp16|bf16|tf32", name) for name in classes)


def test_the_policy_allows_only_the_page_s_own_script() -> None:
    html = page_of(*make_steps(1, 3))
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html)
    sources = r"default-src 'none'; style-src 'sha256-\S+'; script-src 'sha256-\S+'; base-uri 'none'"
    assert re.fullmatch(sources, policy)
    assert not re.search(r"https?://|@import|url\((?!`?#)", html.replace("http://www.w3.org/2000/svg", ""))


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(records=st.lists(RECORDS, max_size=20))
def test_any_journal_has_a_page(records: list[Record]) -> None:
    assert page_of(*records).endswith("</html>\n")


TEXTS = st.text() | st.sampled_from(
    ["</p><script>alert(1)</script>", '" onclick="alert(1)', "<!--", "]]>", "&lt;", "' autofocus '"]
)


@given(text=TEXTS)
def test_no_text_becomes_markup(text: str) -> None:
    def reading(text: str) -> Reading:
        card = (
            text,
            ("verdict", [[text, Span(text, text)], text]),
            ("table", [["", [Span(text, text)]], [text, text]]),
            ("facts", [(text, text)]),
            ("legend", [Span(text, text)]),
            ("pre", [(text, text)]),
            ("charts", [{"title": text, "readout": text, "note": text, "numbers": {"unit": text}}]),
            ("histogram", {"labels": [(0, text)], "bars": [(text, 1, text)]}),
            ("events", [{"time": text, "step": text, "severity": text, "text": text, "details": text}]),
            ("fold", ("note", [text]), text),
        )
        header: dict[str, Any] = {"heading": text, "where": text, "badges": [Span(text, text)]}
        return Reading(document(text, [card], **header, tiles=[(text,) * 3], footer=text))

    mark = "\N{SNOWMAN}"
    inert = "\n".join(printable(line) for line in f"{mark}{text}".expandtabs(4).split("\n"))
    plain, shown = reading(mark), reading(f"{mark}{text}")
    assert "".join(shown.texts) == "".join(plain.texts).replace(mark, inert)
    for (tag, own), (plain_tag, plain_own) in zip(shown.tags, plain.tags, strict=True):
        assert (tag, own.keys()) == (plain_tag, plain_own.keys())
        own.pop("data-chart", None)  # escapes of JSON
        assert all(value == plain_own[name].replace(mark, inert) for name, value in own.items())
