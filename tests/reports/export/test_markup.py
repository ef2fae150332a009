"""Markup: whatever text goes in, it comes out as text."""

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from amptui.base.text import printable
from amptui.reports.export.markup import Markup, element, joined


class Reading(HTMLParser):
    """What a browser would find."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


TEXTS = st.text() | st.sampled_from(
    ["</p><script>alert(1)</script>", '" onclick="alert(1)', "<!--", "]]>", "&lt;", "' autofocus '"]
)


@given(text=TEXTS, attribute=TEXTS)
def test_no_text_becomes_markup(text: str, attribute: str) -> None:
    found = Reading(element("p", text, title=attribute))
    assert found.tags == [("p", {"title": inert(attribute)})]
    assert found.text == inert(text)


def inert(text: str) -> str:
    """Text as a page shows it: line by line."""
    return "\n".join(printable(line) for line in text.expandtabs(4).split("\n"))


def test_lines_and_indents_stay_but_not_direction_marks() -> None:
    shown = element("pre", "Traceback:\n\tx = 1\n\x1b[31m\u202eevil\u2069\ud800")
    assert shown == "<pre>Traceback:\n    x = 1\n?[31m?evil??</pre>"


def test_nested_markup_is_kept_and_none_left_out() -> None:
    inner = element("b", "<1>")
    assert element("p", "a & ", inner, None, class_="x", data_values="[1]", hidden=None) == (
        '<p class="x" data-values="[1]">a &amp; <b>&lt;1&gt;</b></p>'
    )
    assert joined("<", inner, None) == "&lt;<b>&lt;1&gt;</b>"
    assert isinstance(joined(), Markup)


def test_changed_markup_is_text_again() -> None:
    assert element("p", element("b", "x") + "<") == "<p>&lt;b&gt;x&lt;/b&gt;&lt;</p>"


def test_a_void_element_has_no_end_tag() -> None:
    assert element("meta", charset="utf-8") == '<meta charset="utf-8">'
