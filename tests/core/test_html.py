"""Pieces of HTML for notebooks: everything is escaped, nothing comes from outside."""

from __future__ import annotations

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from polymode.core.html import html_block, html_details, html_facts, html_table

TAGS = {"div", "table", "caption", "thead", "tbody", "tr", "th", "td", "details", "summary"}


class Pieces(HTMLParser):
    """Collects tags and text, and checks that all tags close."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[str] = []
        self.text: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        assert tag in TAGS and {key for key, _ in attrs} <= {"style"}
        self.open.append(tag)
        self.found.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


@given(st.text(alphabet="<>&\"'ab/ ", min_size=1))
def test_any_text_stays_text(text) -> None:
    table = html_table([text, text], [[text, text]], caption=text)
    whole = html_block(text, table, html_facts({text: text}), html_details(text), note=text)
    page = Pieces(whole)
    assert "".join(page.text) == text * 10


def test_table_has_its_cells() -> None:
    html = html_table(["method", "NLL"], [["map", 0.5], ["x", None]], bold={(0, 1)})
    page = Pieces(html)
    assert page.text == ["method", "NLL", "map", "0.5", "x", "None"]
    assert html.count("font-weight:700") == 1
    assert page.found.count("th") == 2 and page.found.count("td") == 4


def test_colours_are_those_of_the_page_around() -> None:
    html = html_block("t", html_table(["a"], [[1]]), html_facts({"a": 1}), note="n")
    assert "#" not in html and "url" not in html
    assert "color:" not in html.replace("color:inherit", "")
