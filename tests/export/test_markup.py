"""Markup: whatever text goes in, it comes out as text."""

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from amptui.export.markup import Markup, element, joined


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


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r")) | st.sampled_from(
    ["</p><script>alert(1)</script>", '" onclick="alert(1)', "<!--", "]]>", "&lt;", "' autofocus '"]
)


@given(text=TEXTS, attribute=TEXTS)
def test_no_text_becomes_markup(text: str, attribute: str) -> None:
    found = Reading(element("p", text, title=attribute))
    assert found.tags == [("p", {"title": attribute})]
    assert found.text == text


def test_markup_within_markup_is_kept_and_nothing_is_left_out_but_none() -> None:
    inner = element("b", "<1>")
    assert element("p", "a & ", inner, None, class_="x", data_values="[1]", hidden=None) == (
        '<p class="x" data-values="[1]">a &amp; <b>&lt;1&gt;</b></p>'
    )
    assert joined("<", inner, None) == "&lt;<b>&lt;1&gt;</b>"
    assert isinstance(joined(), Markup)


def test_what_is_done_to_markup_makes_it_text_again() -> None:
    assert element("p", element("b", "x") + "<") == "<p>&lt;b&gt;x&lt;/b&gt;&lt;</p>"


def test_an_element_without_an_end_has_none() -> None:
    assert element("meta", charset="utf-8") == '<meta charset="utf-8">'
