from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from polymode.likelihoods.kinds import Bernoulli, Categorical, Gaussian, StudentT
from polymode.tasks import TASKS, task


@pytest.fixture
def houses(tmp_path: Path) -> Path:
    """40 rows: number, area, price = 2000 area + number, kind 3 (24 rows) or 7 (16 rows)."""
    lines = ["number,area,price,kind"]
    for k in range(40):
        lines.append(f"{k},{50 + k % 7},{2000 * (50 + k % 7) + k},{7 if k % 5 < 2 else 3}")
    path = tmp_path / "houses.csv"
    path.write_text("\n".join(lines))
    return path


def numbers(built, part: str) -> list[int]:
    x = built.input_scaling.inverse(getattr(built, part).x.double())
    return x[:, 0].round().long().tolist()


def test_regression_in_its_own_units(houses):
    built = task("table", path=houses, target="price", target_unit="EUR")
    assert built.likelihood == Gaussian(noise="learned") and built.target_unit == "EUR"
    assert built.input_shape == (3,) and built.num_outputs == 1
    train, val, test = (numbers(built, part) for part in ("train", "val", "test"))
    assert sorted(train + val + test) == list(range(40)) and (len(val), len(test)) == (4, 4)
    assert built.test.y[:, 0].tolist() == [2000 * (50 + k % 7) + k for k in test]
    y = np.array([2000 * (50 + k % 7) + k for k in train], float)
    assert built.target_scaling.shift.item() == pytest.approx(y.mean(), rel=1e-12)
    assert built.target_scaling.scale.item() == pytest.approx(y.std(), rel=1e-12)
    assert float(built.train.x.mean(0).abs().max()) < 1e-5
    assert len(built.shifts) == 3 and len(built.shifts["missing_columns"][5]) == 4
    assert "'houses.csv'" in built.description and TASKS.get("table").metadata["data"] == ()


def test_split_is_that_of_its_number_and_not_of_the_seed(houses):
    base, seed = (task("table", path=houses, target="price", seed=seed) for seed in (0, 1))
    assert numbers(base, "test") == numbers(seed, "test")
    other = task("table", path=houses, target="price", split=1)
    assert numbers(base, "test") != numbers(other, "test")
    part = task("table", path=houses, target="price", test_fraction=0.25, val_fraction=0)
    assert (len(part.train), part.val, len(part.test)) == (30, None, 10)


def test_classification_by_values_of_a_column(houses):
    built = task("table", path=str(houses), target="kind", likelihood="categorical")
    assert built.likelihood == Categorical() and built.class_names == ("3", "7")
    assert built.target_size == 2 and built.target_scaling is None
    assert built.test.y.bincount().tolist() == [2, 2] or built.test.y.bincount().tolist() == [3, 1]
    kinds = [7 if k % 5 < 2 else 3 for k in numbers(built, "test")]
    assert [(3, 7)[label] for label in built.test.y.tolist()] == kinds
    two = task("table", path=houses, target=3, likelihood="bernoulli")
    assert two.likelihood == Bernoulli() and two.num_outputs == 1


def test_columns_position_and_other_likelihoods(houses):
    built = task("table", path=houses, target="price", columns=["area"])
    assert built.input_shape == (1,)
    law = StudentT(df=4.0, scale="learned")
    built = task("table", path=houses, target=2, columns=[1, 0], likelihood=law)
    assert built.likelihood == law and built.input_shape == (2,)
    first = built.input_scaling.inverse(built.test.x.double())[:, 0]
    assert ((first >= 50 - 1e-6) & (first <= 56 + 1e-6)).all()
    assert task("table", path=houses, target=2, noise=0.1).likelihood == Gaussian(noise=0.1)


def test_a_file_without_header(tmp_path):
    path = tmp_path / "plain.txt"
    np.savetxt(path, np.arange(60.0).reshape(20, 3) ** 1.5)
    built = task("table", path=path, target=2)
    assert built.input_shape == (2,) and len(built.train) == 16


def test_missing_values_name_row_and_column(houses):
    lines = houses.read_text().splitlines()
    lines[5] = "4,nan,100,3"
    houses.write_text("\n".join(lines))
    with pytest.raises(ValueError, match="row 6, column 'area'"):
        task("table", path=houses, target="price")


@pytest.mark.parametrize(
    "options, words",
    [
        ({"path": None}, "`path` and `target` of table must name a file and its column"),
        ({"target": None}, "`path` and `target` of table"),
        ({"target": "prize"}, "no column 'prize'. Did you mean 'price'. It has: number, area"),
        ({"target": 4}, "has no column 4"),
        ({"columns": ["area", "price"]}, "the target 'price' is in them"),
        ({"likelihood": "gausian"}, "Unknown likelihood 'gausian'. Did you mean 'gaussian'"),
        ({"target": "area", "split": -1}, "`split` of table must be an integer >= 0, got -1"),
        ({"test_fraction": 0}, "`test_fraction` of table must be > 0"),
        ({"val_fraction": 2}, "`val_fraction` of table must be in"),
    ],
)
def test_options_that_cannot_be_are_refused(houses, options, words):
    with pytest.raises(ValueError, match=words):
        task("table", **{"path": houses, "target": "price", **options})


def test_targets_that_are_no_classes_are_refused(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1,2\n2,2.5\n3,2")
    with pytest.raises(ValueError, match="column 'b' has 1 of 3 values that are not integers.*2.5"):
        task("table", path=path, target="b", likelihood="categorical")
    path.write_text("a,b\n1,2\n2,2\n3,2")
    with pytest.raises(ValueError, match="column 'b' has one class only, 2"):
        task("table", path=path, target="b", likelihood="categorical")


def test_files_that_are_too_small_are_refused(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a\n1\n2")
    with pytest.raises(ValueError, match="one column; it needs inputs"):
        task("table", path=path, target="a")
    path.write_text("a,b\n1,2")
    with pytest.raises(ValueError, match="1 row.* too few"):
        task("table", path=path, target="a")
    with pytest.raises(ValueError, match="does not exist"):
        task("table", path=tmp_path / "no.csv", target="a")


def test_classes_absent_from_training_do_not_shrink_the_task(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b\n" + "\n".join(f"{k},{9 if k == 5 else k % 2}" for k in range(20)))
    built = task("table", path=path, target="b", likelihood="categorical")
    assert built.class_names == ("0", "1", "9") and built.num_outputs == 3
    assert torch.cat([built.train.y, built.val.y, built.test.y]).bincount().tolist() == [10, 9, 1]
