"""The report: one file, no request, everything escaped, all that the registry and results know."""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from html.parser import HTMLParser

import pytest
import torch

import polymode
from polymode.methods import METHODS
from polymode.metrics import Results, compare
from polymode.metrics.results import Cost, Row
from polymode.plots import Comparison
from polymode.report import cite, list_methods, report
from polymode.report.page import render, write_report
from polymode.report.template import HERE
from polymode.runs.archive import pack
from polymode.runs.run_folder import RunFolder

EVIL = "<script>alert(1)</script>"


class Page(HTMLParser):
    """Checks that tags close, and collects what the tests look at."""

    VOID = {"meta", "img", "br", "hr", "link", "input", "wbr"}

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

    def all(self, tag: str, **wanted: str) -> list[dict[str, str | None]]:
        return [
            attributes
            for name, attributes in self.tags
            if name == tag and all(attributes.get(key) == value for key, value in wanted.items())
        ]

    @property
    def ids(self) -> list[str]:
        return [a["id"] for _, a in self.tags if a.get("id")]


def result(method: str, seed: int, nll: float, task: str = "digits", **config: object) -> Results:
    rows = (Row("test", "nll", nll, "nats/example", "down", 400, 0.02),)
    return Results(task, method, "mlp", seed, config, rows, Cost(1, 1, 10, 0.1, 100, 2.0))


def decoded(uri: str) -> str:
    raw = base64.b64decode(uri.partition("base64,")[2])
    return (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode()


@pytest.fixture(scope="module")
def html(digits_board):
    torch.set_num_threads(1)  # the page names them, and tests have one
    return render(digits_board, command="polymode run --task digits")


def test_page_is_whole_and_asks_nobody(html) -> None:
    page = Page(html)
    assert html.startswith("<!doctype html>")
    assert page.all("link") == []
    for _, attributes in page.tags:
        for key in ("src", "href", "srcset", "action", "data", "poster"):
            value = attributes.get(key)
            assert value is None or value.startswith(("data:", "#"))
    assert not re.search(r"url\(|@import|http-equiv=.refresh", html)
    assert len(html.encode()) < 3_000_000


def test_only_its_own_script_can_run(html) -> None:
    """The policy in the page names the hash of the one script, which is small."""
    script = (HERE / "page.js").read_text()
    assert len(script) < 5_000
    assert html.count("<script") == 1 and f"<script>{script}</script>" in html
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = Page(html).all("meta", **{"http-equiv": "Content-Security-Policy"})[0]["content"]
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy


def test_sections_come_in_order_and_links_lead_somewhere(html) -> None:
    page = Page(html)
    anchors = [attributes.get("id") for attributes in page.all("section")]
    assert anchors == [
        "alerts", "leaderboard", "calibration", "selective", "mistakes", "ood", "shift",
        "uncertainty", "diversity", "methods", "glossary", "reproduce",
    ]  # fmt: skip
    assert len(page.ids) == len(set(page.ids))
    links = {a["href"][1:] for a in page.all("a") if a["href"].startswith("#")}
    assert links <= set(page.ids)
    described = {a["aria-describedby"] for _, a in page.tags if a.get("aria-describedby")}
    assert described <= set(page.ids)


def test_without_javascript_nothing_is_missing(html) -> None:
    """What only works with the script is hidden until it runs."""
    page = Page(html)
    assert all("hidden" in button for button in page.all("button"))
    assert "hidden" in page.all("div", **{"class": "tools"})[0]


def test_every_metric_is_explained(html, digits_board) -> None:
    page = Page(html)
    explained = {i for i in page.ids if i.startswith("metric-")}
    assert len(explained) == len({column.metric for column in digits_board.columns})
    shown = {a["href"][1:] for a in page.all("a", **{"class": "term"})}
    assert shown and shown <= explained
    assert {f"about-{anchor}" for anchor in explained} <= set(page.ids)


def test_the_glossary_is_folded(html) -> None:
    section = html.partition('id="glossary"')[2].partition("</section>")[0]
    assert section.index("<details>") < section.index("metric-1-")
    assert section.rindex("</details>") > section.rindex("metric-")


def test_figures_of_a_kind_share_a_caption(html) -> None:
    """What is said of all is said once; what is said of one stands with that one."""
    assert html.count("Band: where the bins of a calibrated method fall") == 1
    own = re.findall(r"<figcaption>[^<]*adaptive ECE", html)
    assert len(own) == 2  # one per method
    for name in ("predictive_entropy", "mutual_information"):
        score = name.replace("_", " ").capitalize()
        assert html.count(f"{score} of test and OOD inputs") == 1


def test_mistakes_have_matrices_classes_and_pictures(html, digits_results) -> None:
    section = html.partition('<section id="mistakes"')[2].partition("</section>")[0]
    assert section.count('alt="Confusion matrix of') == 2
    assert section.count('alt="Test images of') == 2
    table = section.partition("By class")[2]
    assert re.findall(r'<th scope="row">(\w)</th>', table) == list("0123456789")
    kept = [r for r in digits_results if r.method == "deep_ensemble"]
    label, said = (
        torch.cat(part)
        for part in zip(
            *((r.kept["test"].targets, r.kept["test"].prediction.classes) for r in kept),
            strict=True,
        )
    )
    recall = (said[label == 3] == 3).double().mean().item()
    order = re.findall(r'scope="colgroup" colspan="3">(\w+)<', table.replace("<wbr>", ""))
    line = re.search(r'<th scope="row">3</th>(.*?)</tr>', table)[1]
    numbers = re.findall(r"<td>(.*?)</td>", line)
    assert float(numbers[1 + 3 * order.index("deep_ensemble")]) == pytest.approx(recall, abs=5e-4)


def test_examples_of_tables_are_rows(gap_results) -> None:
    section = render(compare(gap_results)).partition('<section id="mistakes"')[2]
    lines = re.findall(r'<th scope="row">(most uncertain|surely wrong)</th>', section)
    assert lines == 6 * ["most uncertain"] + 6 * ["surely wrong"]
    assert "error / std" in section


def test_results_without_examples_give_a_page_without_them(digits_results) -> None:
    """As runs of before examples were kept."""
    older = [
        each.replace(
            kept={"test": each.kept["test"]},
            class_names=(),
        )
        for each in digits_results
    ]
    html = render(compare(older))
    assert "Test images of" not in html and 'alt="Confusion matrix of' in html
    Page(html)


def test_numbers_have_true_minus_signs(html) -> None:
    """No hyphen before a digit in what is read: text, and words for those who cannot see."""
    text = re.sub(r"<(style|script|pre)\b.*?</\1>|<[^>]*>", " ", html, flags=re.S)
    alts = " ".join(re.findall(r'alt="([^"]*)"', html))
    assert not re.search(r"(?<![\w.])-\.?\d", text + alts)


def test_figures_have_words_and_numbers(html) -> None:
    page = Page(html)
    images, figures = page.all("img"), page.all("figure")
    assert len(images) == len(figures) > 8
    assert all(len(image["alt"]) > 30 for image in images)
    links = page.all("a", **{"class": "svg"})
    assert [decoded(link["href"]) for link in links] == [decoded(i["src"]) for i in images]
    tables = [a for a in page.all("a") if re.search(r"\.csv(\.gz)?$", a.get("download") or "")]
    assert len(tables) > 6
    assert all("," in decoded(link["href"]) or "\n" in decoded(link["href"]) for link in tables)
    assert html.count("<figcaption>") == len(figures)


def test_page_says_what_the_registry_and_the_run_know(html) -> None:
    for method in ("map", "deep_ensemble"):
        facts = METHODS.get(method).metadata
        for key in ("summary", "equation", "cost", "limits", "paper"):
            assert str(facts[key]).replace("'", "&#39;") in html
    for words in ("polymode run --task digits", "torch", "nats/", "handwritten digits"):
        assert words in html
    assert "needs ≥ 2 samples" in html
    assert "&#34;num_modes&#34;: 2" in html  # the configuration


@pytest.mark.cpu_seconds(10)
def test_same_numbers_same_bytes(digits_board, html) -> None:
    assert render(digits_board, command="polymode run --task digits") == html


@pytest.mark.cpu_seconds(15)
def test_user_text_is_text_everywhere(made_up) -> None:
    results = made_up.results(
        names=(EVIL, f"{EVIL}'\"&"), num_seeds=2, task=EVIL, shift_name=EVIL, ood_name=EVIL
    )
    results += [each.replace(config={EVIL: EVIL}) for each in results[2:]]
    rows = [Row("test", EVIL, 0.5, EVIL, "up", 9, None, EVIL)]
    results = [each.replace(rows=(*each.rows, *rows)) for each in results]
    html = render(
        compare(results),
        command=EVIL,
        environment={"versions": {EVIL: EVIL}, "system": EVIL, EVIL: EVIL},
        failures=[{"method": EVIL, "seed": EVIL, "error": EVIL}],
        comparisons=[Comparison(EVIL, 0.1, None, 0.1, 0.01, 0.05, EVIL, "down")],
    )
    script = (HERE / "page.js").read_text()
    assert html.count("<script") == 1 and "<script>alert" not in html.replace(script, "")
    assert html.count("&lt;script&gt;alert(1)&lt;") > 20
    page = Page(html)
    assert EVIL in page.all("img")[0]["alt"] or any(EVIL in i["alt"] for i in page.all("img"))
    for image in page.all("img"):
        assert "<script" not in decoded(image["src"])
    for link in page.all("a"):
        assert re.fullmatch(r"[\w.-]*", link.get("download") or "")
        assert link["href"].startswith(("#", "data:"))


def test_report_of_regression_has_bands_and_coverage(gap_results, tmp_path) -> None:
    path = report(gap_results, tmp_path / "deep" / "er" / "r.html")
    html = path.read_text()
    assert 'alt="Regression of deep_ensemble' in html
    assert "One seed only" in html
    assert 'id="selective"' not in html or "<h2>Selective" in html
    Page(html)


def test_results_from_json_give_tables_without_prediction_figures(digits_results) -> None:
    read = compare([Results.from_json(each.to_json()) for each in digits_results])
    html = render(read)
    alts = [image["alt"] for image in Page(html).all("img")]
    assert alts and all(alt.startswith(("Scores against", "NLL against")) for alt in alts)
    assert 'id="ood"' in html


def test_one_number_is_enough_for_a_page() -> None:
    html = render(compare([result("mine", 0, 0.1, task="own")]))
    assert [a["id"] for a in Page(html).all("section")] == [
        "alerts", "leaderboard", "methods", "glossary", "reproduce",
    ]  # fmt: skip


def test_a_figure_that_cannot_be_drawn_does_not_cost_the_page(monkeypatch) -> None:
    def refuse(board):
        raise ValueError("3 numbers are too few")

    monkeypatch.setitem(polymode.report.figures.MAKERS, "leaderboard", [refuse])
    html = render(compare([result("mine", 0, 0.1), result("other", 0, 0.2)]))
    assert "Not drawn: 3 numbers are too few." in html


def test_paper_and_ours() -> None:
    rows = [
        Comparison("NLL", 0.20, None, 0.21, 0.004, 0.02, "nats", "down"),
        Comparison("accuracy", 0.90, 0.01, 0.80, 0.004, 0.02, "fraction", "up"),
    ]
    html = render(compare([result("mine", 0, 0.1)]), comparisons=rows)
    assert 'id="paper"' in html
    assert "✓ reproduced" in html and "✗ outside" in html
    assert "<dt>reproduced</dt><dd>1 of 2</dd>" in html


@pytest.mark.cpu_seconds(20)
def test_ten_methods_fit_into_three_megabytes(made_up) -> None:
    board = compare(made_up.results(10, 2, examples=100, shifts=4))
    html = render(board)
    assert len(html.encode()) < 3_000_000
    assert html.count("<figure") > 15


def test_polymode_report_is_callable_as_module(gap_results, tmp_path) -> None:
    assert polymode.report(gap_results, tmp_path / "r.html").exists()


def test_cite_and_list() -> None:
    assert "mackay1992" in cite("map")
    assert "lakshminarayanan2017" in cite(result("deep_ensemble", 0, 0.1))
    assert list_methods("deep*") == ["deep_ensemble"]
    shown, page = repr(list_methods()), list_methods("map")._repr_html_()
    (line,) = (line for line in shown.splitlines() if line.startswith("map "))
    assert line.split()[:3] == ["map", "1×", "1×"] and "maximum of its posterior" in line + page
    assert "1×" in page and "<table" in page
    with pytest.raises(ValueError, match="Did you mean 'deep_ensemble'"):
        cite("deep_ensembel")
    with pytest.raises(ValueError, match="got a int"):
        cite(3)


def test_an_odd_environment_is_shown_as_it_is():
    """It comes from a file of the run, which anyone may have edited."""
    html = render(compare([result("map", 0, 0.1)]), environment={"versions": 3, "threads": "many"})
    assert "CPU, many threads" in html


def test_wrong_arguments_are_named(gap_results, tmp_path) -> None:
    board = compare(gap_results)
    with pytest.raises(ValueError, match=r"are swapped: pm.report\(board, 'report.html'\)"):
        report("report.html", board)
    with pytest.raises(ValueError, match=r"are wrong: pm.report\(board, 'report.html'\)"):
        report(gap_results, gap_results)
    with pytest.raises(ValueError, match="compare takes results of pm.evaluate.*got a str"):
        report(str(tmp_path), tmp_path / "report.html")
    with pytest.raises(ValueError, match="is a folder; name the file to write: .*report.html"):
        report(board, tmp_path)


def test_one_seed_is_not_taken_for_no_seeds() -> None:
    one, two = (render(compare([result("map", s, 0.1) for s in range(n)])) for n in (1, 2))
    assert ">seed<" in one and ">seeds<" not in one.split("<main")[0]
    assert ">seeds<" in two.split("<main")[0]


@pytest.mark.cpu_seconds(5)
@pytest.mark.parametrize("older", [False, True])
def test_examples_come_from_the_folder_alone(digits_results, tmp_path, older) -> None:
    """A folder of before examples were kept gives a page without them."""
    folder = RunFolder(tmp_path)
    (tmp_path / "predictions").mkdir()
    for number, each in enumerate(digits_results[:2]):
        names = ("test",) if older else ("test", "examples")
        kept = {name: each.kept[name] for name in names}  # others would only take time
        folder.add(f"cell{number}", each.replace(kept={}), pack(kept))
    read = RunFolder(tmp_path)
    assert read.damage() == []
    results = read.results(predictions=True)
    assert [r.class_names for r in results] == 2 * [tuple("0123456789")]
    write_report(read, compare(results))
    html = read.report.read_text()
    assert html.count('alt="Test images of') == (0 if older else 2)
    assert html.count('alt="Confusion matrix of') == 2
