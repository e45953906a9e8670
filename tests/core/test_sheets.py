"""CSV whose text no spreadsheet takes for a formula, from every place that writes it."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest

from polymode.cli.formats import FORMATS
from polymode.cli.study_formats import STUDY_FORMATS
from polymode.core.sheets import csv_text, safe_cell
from polymode.metrics import compare
from polymode.metrics.results import Cost, Results, Row
from polymode.plots.image_rows import image_rows
from polymode.report.page import _csv
from polymode.studies import Table

FORMULAS = ["=1+1", "+cmd|'/c calc'!A1", "-2+3", "@SUM(A1)", " =1", "\t=1", "\r=1", "＝1", "-a"]
NUMBERS = ["-0.5", "+0.5", "-1e-5", "-.5", "-1,234.5", "-3 %", "-3%", "-inf", "-nan", "-7", "-1."]


@pytest.mark.parametrize("text", FORMULAS)
def test_text_that_would_be_a_formula_has_an_apostrophe(text) -> None:
    assert safe_cell(text) == f"'{text}"


@pytest.mark.parametrize("value", [*NUMBERS, -0.5, -3, None, "", "a=1", "a-b", "−2.1 ± 0.4", "'=1"])
def test_numbers_and_other_text_stay(value) -> None:
    assert safe_cell(value) is value


def read(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text)))


def test_rows_come_back_from_a_reader() -> None:
    rows = [["a,b", 'c"d', "=e\nf"], [1, -0.5, None]]
    assert read(csv_text(rows)) == [["a,b", 'c"d', "'=e\nf"], ["1", "-0.5", ""]]


def board(label: str):
    rows = (
        Row("@data", "nll", -0.25, "-nats", "down", 40, None),
        Row("@data", "accuracy", 0.5, "fraction", "up", 40, None),
    )
    return compare([Results("t", label, "mlp", 0, {}, rows, Cost(1, 1, 3, 0.1, 40))])


@pytest.mark.parametrize("label", ["=HYPERLINK(1)", "+map", "-map", "@map"])
@pytest.mark.parametrize("write", [lambda b: FORMATS["csv"](b, True), _csv])
def test_labels_and_data_sets_of_a_leaderboard(label, write) -> None:
    head, *rows = read(write(board(label)))
    assert {row[0] for row in rows} == {f"'{label}"}
    assert {row[1] for row in rows} == {"'@data"}
    means = {row[head.index("metric")]: float(row[head.index("mean")]) for row in rows}
    assert means == {"nll": -0.25, "accuracy": 0.5}
    assert {row[head.index("unit")] for row in rows} == {"'-nats", "fraction"}


def test_tables_of_a_study() -> None:
    table = Table("=title", ("method", "-head"), (("@line", "-0.5"), ("plain", "+x")), "")
    _, *rows = read(STUDY_FORMATS["csv"]([table]))
    assert rows == [["'=title", "'@line", "'-head", "-0.5"], ["'=title", "plain", "'-head", "'+x"]]


def test_columns_of_a_display() -> None:
    display = image_rows({"=row": np.full((2, 3, 4), -0.5)}, label="x", caption="y", summary="z")
    head, first, *_ = read(display.to_csv())
    assert head[0].startswith("'=row") and first[0] == "-0.5"
