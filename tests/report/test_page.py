"""The report: one file, no request, everything escaped, figures where predictions are kept."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

import polymode
from polymode.metrics import Results, compare
from polymode.metrics.results import Cost, Row
from polymode.report import cite, list_methods, report
from polymode.report.page import render


class Page(HTMLParser):
    """Checks that tags close, and collects what the tests look at."""

    VOID = {"meta", "img", "br", "hr", "link", "input"}

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def result(method: str, seed: int, nll: float, task: str = "digits", **rows: float) -> Results:
    found = [Row("test", "nll", nll, "nats/example", "down", 400, 0.02)]
    found += [Row("test", k, v, "fraction of pairs", "", 400, 0.0) for k, v in rows.items()]
    return Results(task, method, "mlp", seed, {}, tuple(found), Cost(1, 10, 0.1, 100, 2.0))


@pytest.fixture(scope="module")
def html(digits_board):
    return render(digits_board, command="polymode run --task digits")


def test_page_is_whole_and_asks_nobody(html):
    page = Page(html)
    assert html.startswith("<!doctype html>")
    assert page.all("script") == []
    assert page.all("link") == []
    for _, attributes in page.tags:
        for key in ("src", "href"):
            value = attributes.get(key)
            assert value is None or value.startswith(("data:", "#"))
    assert not re.search(r"url\(|@import", html)
    assert len(html) < 3_000_000


def test_page_has_its_parts(html):
    page = Page(html)
    anchors = {attributes.get("id") for attributes in page.all("section")}
    assert {"leaderboard", "calibration", "ood", "shift", "methods", "reproduce"} <= anchors
    links = {a["href"][1:] for a in page.all("a") if a["href"].startswith("#")}
    assert links <= anchors
    assert all(len(image["alt"]) > 30 for image in page.all("img"))
    assert len(page.all("img")) == 2 + 3 + 2
    for words in ("Lakshminarayanan", "polymode run --task digits", "torch", "nats/example"):
        assert words in html
    assert "(needs ≥ 2 samples)" in html


def test_same_numbers_same_bytes(digits_board, html):
    assert render(digits_board, command="polymode run --task digits") == html


def test_user_text_is_escaped():
    evil = "<script>alert(1)</script>"
    board = compare([result(evil, seed, 0.1, task=evil) for seed in (0, 1)])
    html = render(board, command=evil, environment={"versions": {evil: evil}, "system": evil})
    assert "<script" not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    Page(html)


def test_report_of_regression_has_bands(gap_results, tmp_path):
    path = report(gap_results, tmp_path / "deep" / "er" / "r.html")
    html = path.read_text()
    assert 'id="regression"' in html
    assert "One seed only" in html
    Page(html)


def test_results_from_json_give_tables_without_prediction_figures(digits_results, tmp_path):
    read = [Results.from_json(each.to_json()) for each in digits_results]
    html = report(read, tmp_path / "r.html").read_text()
    assert 'id="calibration"' not in html
    assert 'id="shift"' in html


def test_polymode_report_is_callable_as_module(gap_results, tmp_path):
    assert polymode.report(gap_results, tmp_path / "r.html").exists()


def test_cite_and_list():
    assert "mackay1992" in cite("map")
    assert "lakshminarayanan2017" in cite(result("deep_ensemble", 0, 0.1))
    assert list_methods("*ensemble") == ["deep_ensemble"]
    with pytest.raises(ValueError, match="Did you mean 'deep_ensemble'"):
        cite("deep_ensembel")
    with pytest.raises(ValueError, match="got a int"):
        cite(3)
