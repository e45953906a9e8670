"""The page of a study in a real browser: silent, readable on a phone, in the dark and by ear."""

from __future__ import annotations

import pytest

from polymode.plots import Comparison, sweep
from polymode.report.study_page import Summary, study_page
from polymode.studies import STUDIES, Claim, Table

EVIL = "<script>alert(1)</script>"
PHONE = 390


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    head = ("method", *(f"a column with a long name {n} ↓" for n in range(6)))
    lines = tuple((f"{EVIL} {n}", *["0.1234 ± 0.0012"] * 6) for n in range(4))
    claims = [
        Claim(f"{EVIL}: {'x' * 70} is above DE's", "+2.4 points", "+0.1 [−0.2, +0.4]", verdict)
        for verdict in ("holds", "does not hold", "undecided", "not run")
    ]
    part = {
        "task": EVIL, "options": {}, "net": "lenet", "members": 5, "arms": ["a", "b"],
        "seeds": [0, 1], "cells": 4, "failed": 1, "train_seconds": 12.0, "report": "p/report.html",
    }  # fmt: skip
    summary = Summary(
        name="forde",
        preset="cpu",
        study=STUDIES.get("forde").value,
        tables={"t": Table(f"Benchmark: {EVIL}", head, lines, "mean ± s.e.")},
        figures={"f": sweep([0.0, 0.1, 1.0], {"nll": [1.0, 2.0, 3.0]}, name="alpha")},
        claims=claims,
        comparisons=[Comparison("NLL", 0.2, None, 0.31, 0.01, 0.02, "nats", "down")],
        parts={"p": part},
        command="polymode run forde --out runs/forde",
        environment={"system": "Linux"},
    )
    path = tmp_path_factory.mktemp("study") / "report.html"
    path.write_text(study_page(summary))
    return path


@pytest.mark.parametrize("scripts", [True, False])
def test_silent_and_all_text_is_text(tab, page, scripts) -> None:
    summary = tab(scripts=scripts).go(page)
    assert summary.complaints == [] and summary.requests == []
    assert summary.run("document.scripts.length") == 1
    assert summary.run("document.body.innerText.includes('<script>alert(1)')")
    assert summary.run("document.images.length") == 2


def test_no_sideways_scrolling_on_a_phone(tab, page) -> None:
    summary = tab(PHONE).go(page)
    summary.run("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    assert summary.run("document.documentElement.scrollWidth") <= PHONE


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (PHONE, True)])
def test_axe_finds_nothing(tab, page, axe, width, dark) -> None:
    assert axe(tab(width, dark=dark).go(page)) == []
