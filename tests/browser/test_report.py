"""The report in a real browser: silent, sortable, readable on a phone, in the dark and by ear."""

from __future__ import annotations

import json
import subprocess
import time

import pytest

from polymode.metrics import compare
from polymode.plots import Comparison
from polymode.report import report

EVIL = "<script>alert(1)</script>"
INSTANT = "{block: 'center', inline: 'center', behavior: 'instant'}"
WIDE, PHONE, HEIGHT = 1280, 390, 900


@pytest.fixture(scope="module")
def page(digits_board, tmp_path_factory):
    """A real report of two methods, with a comparison to a paper."""
    rows = [Comparison("NLL", 0.2, None, 0.21, 0.01, 0.02, "nats", "down")]
    path = tmp_path_factory.mktemp("page") / "report.html"
    return report(digits_board, path, command="polymode run --task digits", comparisons=rows)


@pytest.fixture(scope="module")
def many(made_up, tmp_path_factory):
    """A report of six methods whose names are as bad as names can be."""
    names = (EVIL, "x" * 60, *(f"method_{number}" for number in range(4)))
    results = [r.replace(kept={}) for r in made_up.results(names=names, num_seeds=3, examples=50)]
    path = tmp_path_factory.mktemp("many") / "report.html"
    return report(compare(results), path, failures=[{"method": EVIL, "seed": 1, "error": EVIL}])


@pytest.mark.parametrize("scripts", [True, False])
def test_nothing_on_the_console_and_nothing_from_the_network(tab, page, scripts) -> None:
    shown = tab(scripts=scripts).go(page)
    assert shown.complaints == []
    assert shown.requests == []
    assert shown.run("document.images.length") > 8
    assert shown.run("[...document.images].every((i) => i.complete && i.naturalWidth > 50)")


def test_the_policy_lets_nothing_else_run(tab, page) -> None:
    shown = tab().go(page)
    shown.run(
        "(() => {const s = document.createElement('script'); s.textContent = 'window.hit = 1';"
        "document.body.append(s); const i = new Image(); i.src = 'https://example.org/x.png';"
        "document.body.append(i)})()"
    )
    assert shown.run("window.hit === undefined")
    assert len(shown.complaints) >= 2  # the policy refused both


HEADS = "[...document.querySelectorAll('.main thead tr:last-child th')]"
ROWS = "[...document.querySelectorAll('.main tbody tr')]"


def column(shown, place: int) -> list[str]:
    """Return what the leaderboard's rows are sorted by, in their present order."""
    return shown.run(f"{ROWS}.map((row) => row.cells[{place}].dataset.v ?? '')")


def place_of(shown, title: str) -> int:
    return shown.run(f"{HEADS}.map((head) => head.dataset.title)").index(title)


def test_sorting_by_click_and_by_key(tab, many) -> None:
    shown = tab().go(many)
    place = place_of(shown, "accuracy")
    head = f".main thead tr:last-child th:nth-child({place + 1})"
    shown.click(f"{head} .sort")
    values = [float(value) for value in column(shown, place)]
    assert values == sorted(values, reverse=True)  # the best first
    assert shown.run(f"document.querySelector('{head}').ariaSort") == "descending"
    assert shown.run("document.querySelectorAll('.main th[aria-sort]').length") == 1
    shown.run(f"document.querySelector('{head} .sort').focus()")
    shown.press("Enter", 13, "\r")
    assert [float(value) for value in column(shown, place)] == values[::-1]
    shown.click(".main thead tr:last-child th:first-child .sort")
    names = column(shown, 0)
    assert names[1:] == sorted(names[1:]) and names[0] == EVIL


def test_what_is_not_known_is_sorted_to_the_end(tab, many) -> None:
    shown = tab().go(many)
    place = place_of(shown, "AUROC, MI")
    for _ in range(2):
        shown.click(f".main thead tr:last-child th:nth-child({place + 1}) .sort")
        values = column(shown, place)
        assert "" in values and values == sorted(values, key=lambda v: v == "")


def test_filter_hides_and_says_how_many_are_left(tab, many) -> None:
    shown = tab().go(many)
    shown.run("document.querySelector('#filter').focus()")
    shown.call("Input.insertText", text="method_ 2")
    visible = shown.run(f"{ROWS}.filter((r) => !r.hidden).map((r) => r.dataset.m)")
    assert visible == ["method_2"]
    assert shown.run("document.querySelector('#filtered').textContent") == "1 of 6 shown"


def test_a_link_to_a_configuration_unfolds_it(tab, many) -> None:
    shown = tab().go(many)
    shown.click(".main tbody tr .method a")
    target = shown.run("location.hash")
    assert target.startswith("#config-")
    assert shown.until(f"document.querySelector('{target}').open")


def test_copy_button(tab, page) -> None:
    shown = tab().go(page)
    rights = {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    shown.browser.call("Browser.grantPermissions", rights)
    shown.click(".command .copy")
    assert shown.until("document.querySelector('.command .copy').textContent === 'Copied'")
    assert shown.run("navigator.clipboard.readText()") == "polymode run --task digits"


@pytest.fixture(scope="module")
def three(made_up, tmp_path_factory):
    """A report of three methods with all sections that predictions give, alerts included."""
    results = made_up.results(3, 2, names=("map", "deep_ensemble", "dropout"))
    return report(compare(results), tmp_path_factory.mktemp("three") / "report.html")


@pytest.mark.cpu_seconds(15)
def test_three_methods_fit_nine_thousand_pixels_and_the_leaderboard_the_screen(tab, three) -> None:
    shown = tab(WIDE).go(three)
    assert shown.run("document.querySelectorAll('section').length") >= 11
    assert shown.run("document.documentElement.scrollHeight") <= 9_000
    box = "document.querySelector('.scroll.main')"
    assert shown.run(f"{box}.scrollWidth <= {box}.clientWidth")


def test_the_glossary_is_folded_and_links_unfold_it(tab, three) -> None:
    shown = tab(WIDE).go(three)
    assert shown.run("document.querySelector('#glossary').offsetHeight") < 150
    link = "document.querySelector('.main tbody') && document.querySelector('.main .term')"
    target = shown.run(f"({link}).hash")
    shown.run(f"({link}).click()")
    assert shown.until(f"document.querySelector('{target}').offsetHeight > 0")


def test_names_of_methods_are_not_torn_on_a_phone(tab, three) -> None:
    """A short name stays on one line, however narrow the screen."""
    shown = tab(PHONE).go(three)
    heights = shown.run(
        "[...document.querySelectorAll('.main .method a')].map((a) => a.getClientRects().length)"
    )
    assert heights == [1, 1, 1]


@pytest.mark.parametrize("scripts", [True, False])
def test_no_sideways_scrolling_on_a_phone(tab, page, many, scripts) -> None:
    shown = tab(PHONE, scripts=scripts)
    for path in (page, many):
        shown.go(path)
        shown.run("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        assert shown.run("document.documentElement.scrollWidth") <= PHONE
        outside = shown.run(
            "[...document.querySelectorAll('main *')].filter((e) => !e.closest('.scroll') &&"
            f" e.getBoundingClientRect().right > {PHONE + 1}).map((e) => e.outerHTML.slice(0, 80))"
        )
        assert outside == []


def test_everything_is_reached_by_keyboard_and_seen_there(tab, many) -> None:
    """The first stop is the skip link; a stop has an outline; regions that scroll are stops."""
    shown = tab(PHONE).go(many)
    shown.press("Tab", 9)
    assert shown.run("document.activeElement.className") == "skip"
    assert shown.run("document.activeElement.getBoundingClientRect().left >= 0")
    shown.press("Enter", 13, "\r")
    assert shown.run("location.hash") == "#main"
    seen = set()
    for _ in range(12):
        shown.press("Tab", 9)
        where, outline = shown.run(
            "(() => {const e = document.activeElement; return [e.tagName + '.' + e.className,"
            " getComputedStyle(e).outlineStyle]})()"
        )
        assert outline != "none", where
        seen.add(where)
    assert {"INPUT.", "DIV.scroll main", "BUTTON.sort", "A.term"} <= seen
    assert shown.run("[...document.querySelectorAll('.scroll')].every((e) => e.tabIndex === 0)")


def test_tooltips_show_on_focus_and_stay_on_the_screen(tab, page) -> None:
    for width in (WIDE, PHONE):
        shown = tab(width).go(page)
        for place in (0, -1):
            term = f"[...document.querySelectorAll('.main .term')].at({place})"
            shown.run(f"{term}.scrollIntoView({INSTANT})")
            shown.run(f"{term}.focus({{focusVisible: true}})")
            shown.run("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 50)))")
            boxes = shown.run(
                f"(() => {{const tip = {term}.nextElementSibling; const box ="
                " tip.getBoundingClientRect(); return [getComputedStyle(tip).visibility, box.left,"
                " box.right, box.top, box.bottom]})()"
            )
            assert boxes[0] == "visible"
            assert 0 <= boxes[1] and boxes[2] <= width
            assert 0 <= boxes[3] and boxes[4] <= HEIGHT


def test_user_text_is_text(tab, many) -> None:
    shown = tab().go(many)
    assert shown.complaints == []
    assert shown.run("document.scripts.length") == 1
    assert shown.run(f"document.body.innerText.split({json.dumps(EVIL)}).length") > 3


@pytest.mark.parametrize(("width", "dark"), [(WIDE, False), (PHONE, True)])
def test_axe_finds_nothing(tab, page, axe, width, dark) -> None:
    """Contrast, names, order of headings, tables, alternative texts: the rules of axe-core."""
    assert axe(tab(width, dark=dark).go(page)) == []


def test_dark_is_dark_and_print_is_light(tab, page) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    shown = tab(dark=True).go(page)
    assert shown.run(f"{background}.match(/\\d+/g).every((c) => c < 60)")
    shown.call("Emulation.setEmulatedMedia", media="print")
    assert shown.run(background) == "rgb(255, 255, 255)"
    assert shown.run("getComputedStyle(document.querySelector('nav')).display") == "none"


def test_a_browser_leaves_no_process(browser, tmp_path) -> None:
    made = type(browser)(browser.program, tmp_path / "profile")
    made.open().close()
    made.close()
    assert made.process.poll() is not None
    for _ in range(50):  # its children end a moment later
        listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
        if str(tmp_path) not in listed:
            break
        time.sleep(0.1)
    assert str(tmp_path) not in listed


def test_tables_next_to_figures_have_room(tab, page, three) -> None:
    """On a wide screen no table of numbers needs scrolling sideways."""
    for path in (page, three):
        shown = tab(WIDE).go(path)
        narrow = shown.run(
            "[...document.querySelectorAll('section > .scroll, .aside > .scroll')].filter((e) =>"
            " e.scrollWidth > e.clientWidth).map((e) => e.ariaLabel)"
        )
        assert narrow == []
