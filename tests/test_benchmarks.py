"""Measured cases: how they come into `results/`, and what the README says without a peer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.__main__ import parse, update
from docs.speed_tables import speed_table


def case(name: str, kind: str, figure: str, **seconds: list[float]) -> dict:
    """Return a measured case; a contender without rounds was not installed."""
    contenders = {
        label.replace("_with_", ", "): {"rounds": [{"wall": s, "cpu": 2 * s} for s in taken]}
        for label, taken in seconds.items()
    }
    return {
        "name": name, "title": name, "kind": kind, "figure": figure, "contenders": contenders,
        "cpu": "a processor", "cores": 2, "date": "2026-01-02",
    }  # fmt: skip


def training(polymode: float, peer: list[float]) -> dict:
    return case("train_lenet", "train", "wall", plain_loop=[4.0], polymode=[polymode],
                torch_uncertainty=peer)  # fmt: skip


def written(file: Path, *cases: dict) -> Path:
    file.write_text(json.dumps({"cases": cases}))
    return file


def seconds_in(file: Path) -> dict[str, float]:
    cases = json.loads(file.read_text())["cases"]
    return {each["name"]: each["contenders"]["polymode"]["rounds"][0]["wall"] for each in cases}


def test_new_cases_replace_those_of_their_name_and_the_others_stay(tmp_path: Path) -> None:
    other, unwanted = (
        case(f"scores_{n}", "scores", "wall", polymode=[9.0]) for n in ("all", "shared")
    )
    held = written(tmp_path / "held.json", training(2.0, [8.0]), other)
    new = written(tmp_path / "new.json", training(1.0, [8.0]), unwanted)
    update(held, new, {"train_lenet"})
    assert seconds_in(held) == {"train_lenet": 1.0, "scores_all": 9.0}


def test_a_case_without_its_peer_does_not_replace_one_with_it(tmp_path: Path, capsys) -> None:
    held = written(tmp_path / "held.json", training(2.0, [8.0]))
    new = written(tmp_path / "new.json", training(1.0, []))
    update(held, new, {"train_lenet"})
    assert seconds_in(held) == {"train_lenet": 2.0}
    assert "not taken, 2 contenders after 3: torch_uncertainty" in capsys.readouterr().out
    empty = tmp_path / "empty.json"
    update(empty, new, {"train_lenet"})
    assert seconds_in(empty) == {"train_lenet": 1.0}


def test_update_without_measured_cases_is_refused(monkeypatch, capsys, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.argv", ["benchmarks", "--update", str(tmp_path / "held.json")])
    with pytest.raises(SystemExit):
        parse()
    assert "--update needs --json FILE" in capsys.readouterr().err


def test_the_readme_shows_each_way_and_leaves_out_a_missing_peer() -> None:
    ways = {"polymode_with_20 metrics": [2.0], "polymode": [4.0]}
    evaluated = case("evaluate_large", "evaluate", "cpu", torchmetrics=[6.0], **ways)
    text = speed_table({"cases": [training(2.0, []), evaluated]})
    assert "| train_lenet | 2.0× (2.0–2.0) | n/a | n/a |" in text
    assert (
        "- evaluate_large: 20 metrics 4 s of CPU time, 3.0× (3.0–3.0) the speed of torchmetrics;"
        " all 8 s of CPU time, 1.5× (1.5–1.5) the speed of torchmetrics"
    ) in text
    alone = case("evaluate_large", "evaluate", "cpu", torchmetrics=[], **ways)
    text = speed_table({"cases": [training(2.0, [8.0]), alone]})
    assert "| train_lenet | 2.0× (2.0–2.0) | n/a | 4.0× (4.0–4.0) |" in text
    assert "- evaluate_large: 20 metrics 4 s of CPU time; all 8 s of CPU time\n" in text
