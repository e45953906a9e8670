"""`polymode run --table FILE --target COLUMN`."""

from __future__ import annotations

import csv
import random

import pytest


@pytest.fixture
def houses(tmp_path):
    draw = random.Random(0)
    path = tmp_path / "houses.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["size", "city", "sold", "price"])
        for _ in range(120):
            size, city = draw.gauss(100, 20), draw.choice(["Bonn", "Ulm"])
            price = 3 * size + 50 * (city == "Ulm") + draw.gauss(0, 5)
            missing = draw.random() < 0.1
            writer.writerow(
                ["" if missing else size, city, f"2020-0{draw.randint(1, 9)}-01", price]
            )
    return path


@pytest.mark.cpu_seconds(12)
def test_a_table_is_fitted_and_evaluated(command, houses, tmp_path) -> None:
    out = tmp_path / "run"
    words = ["--method", "map", "--set", "epochs=2", "--set", "net.hidden=[8]", "--json"]
    assert (
        command("run", "--table", str(houses), "--target", "price", *words, "--out", str(out)) == 0
    )
    assert command.json()["cells"]["failed"] == 0 and (out / "report.html").is_file()
    report = (out / "report.html").read_text()  # rows of the table, as they are in the file
    assert all(word in report for word in (">size<", ">city<", ">Bonn<", ">2020-0"))
    words = [
        "--table",
        str(houses),
        "--target",
        "city",
        "--dry-run",
        "--json",
        "--out",
        str(out) + "2",
    ]
    assert command("run", *words) == 0
    (cell,) = command.json()["cells"]
    assert cell["method"] == "deep_ensemble"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--target", "price"], "--target is a column of --table FILE"),
        (["--table", "a.csv"], "needs --target COLUMN"),
        (["--table", "a.csv", "--target", "b", "--task", "digits"], "leave out --task"),
        (["--table", "none.csv", "--target", "b"], "none.csv"),
    ],
)
def test_wrong_calls(command, words, message) -> None:
    assert command("run", *words) == 2
    assert message in command.err


def test_a_wrong_column_is_named(command, houses) -> None:
    assert command("run", "--table", str(houses), "--target", "prise") == 2
    assert "no column 'prise'. Did you mean 'price'" in command.err
