from __future__ import annotations

import numpy as np
import pytest
import torch

import polymode as pm
from polymode.likelihoods.kinds import Gaussian
from polymode.tasks import TASKS, Task, task
from polymode.tasks.files import DATASETS, MissingData
from polymode.tasks.tables.uci import TABLES

NAMES = [f"uci_{table.name}" for table in TABLES]
SPECS = dict(DATASETS.get("uci").value.arrays)  # of the real file


def rows_of(built: Task, part: str) -> list[int]:
    """Row numbers in the file, which the first feature is before standardisation."""
    x = built.input_scaling.inverse(getattr(built, part).x.double())
    rows = x[:, 0].round()
    assert float((x[:, 0] - rows).abs().max()) < 1e-3
    return rows.long().tolist()


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_what_is_told_of_a_table_is_so(table):
    metadata = TASKS.get(f"uci_{table.name}").metadata
    assert set(metadata) == {"description", "source", "licence", "kind", "size", "data"}
    assert metadata["kind"] == "real" and metadata["data"] == ("uci",)
    assert all(metadata[key] for key in ("description", "source", "licence", "size"))
    real = SPECS[f"{table.name}_x"].shape
    assert real == (table.num_examples, table.num_features)
    assert sum(int(part.replace(",", "")) for part in metadata["size"].split(" / ")) == real[0]


@pytest.mark.parametrize("name", NAMES)
def test_every_table_builds(put, tables, name):
    put(tables)
    built = task(name)
    key = name.removeprefix("uci_")
    assert built.name == name and built.likelihood == Gaussian(noise="learned")
    assert built.input_shape == tables[f"{key}_x"].shape[1:] and built.num_outputs == 1
    assert [len(data) for data in (built.train, built.val, built.test)] == [49, 5, 6]
    assert built.train.x.dtype == built.train.y.dtype == torch.float32
    assert built.train.y.shape == (49, 1) and "standard split 0" in built.description
    assert torch.cat([built.train.x, built.val.x, built.test.x]).isfinite().all()


@pytest.mark.parametrize("options", [{}, {"split": 2}, {"gap": 0}, {"gap": 3, "val_fraction": 0.3}])
def test_parts_are_disjoint_and_the_test_rows_are_those_of_the_file(put, tables, options):
    put(tables)
    built = task("uci_power", **options)
    train, val, test = (rows_of(built, part) for part in ("train", "val", "test"))
    assert sorted(train + val + test) == list(range(60))
    masks = tables["power_gap_test"] if "gap" in options else tables["power_test"]
    mask = masks[options.get("gap", options.get("split", 0))]
    assert test == np.flatnonzero(mask).tolist()
    assert len(val) == round(options.get("val_fraction", 0.1) * (60 - len(test)))
    for part, rows in (("train", train), ("val", val), ("test", test)):
        y = torch.tensor(tables["power_y"][rows], dtype=torch.float32)[:, None]
        assert torch.equal(getattr(built, part).y, y)  # in the units of the file


@pytest.mark.parametrize("gap", [0, 5])
def test_a_gap_split_tests_on_the_middle_third_of_its_feature(put, tables, gap):
    put(tables)
    built = task("uci_yacht", gap=gap)
    test = built.test.x[:, gap]
    seen = torch.cat([built.train.x, built.val.x])[:, gap]
    assert len(test) == 20 and "gap split by feature" in built.description
    assert int((seen < test.min()).sum()) == int((seen > test.max()).sum()) == 20


def test_standardised_with_the_training_rows_and_nothing_else(put, tables):
    put(tables)
    before = task("uci_wine")
    train = rows_of(before, "train")
    x, y = tables["wine_x"][train], tables["wine_y"][train]
    np.testing.assert_allclose(before.input_scaling.shift.numpy(), x.mean(0), rtol=1e-12)
    np.testing.assert_allclose(before.input_scaling.scale.numpy(), x.std(0), rtol=1e-12)
    assert before.target_scaling.shift.item() == pytest.approx(y.mean(), rel=1e-12)
    assert before.target_scaling.scale.item() == pytest.approx(y.std(), rel=1e-12)
    assert float(before.train.x.mean(0).abs().max()) < 1e-5

    changed = {key: array.copy() for key, array in tables.items()}
    others = rows_of(before, "test") + rows_of(before, "val")
    changed["wine_x"][others, 1:] *= 1e3
    changed["wine_y"][others] -= 1e6
    put(changed)
    after = task("uci_wine")
    assert torch.equal(before.train.x, after.train.x) and torch.equal(before.train.y, after.train.y)
    for scaling in ("input_scaling", "target_scaling"):
        assert getattr(before, scaling).to_dict() == getattr(after, scaling).to_dict()
    assert float(after.test.x[:, 1:].abs().max()) > 1e3


def test_standardised_targets_invert_exactly(put, tables):
    """Exactly: to the last bits of float64, which keeps 16 digits."""
    put(tables)
    built = task("uci_naval")
    for data in (built.train, built.val, built.test):
        y = data.y.double()
        z = built.target_scaling(y)
        torch.testing.assert_close(built.target_scaling.inverse(z), y, rtol=4e-16, atol=0)
    z = built.target_scaling(built.train.y.double())
    assert abs(float(z.mean())) < 1e-5 and float(z.std(correction=0)) == pytest.approx(1, abs=1e-5)


def test_constant_columns_are_shifted_only(put, tables):
    put(tables)
    built = task("uci_naval")
    assert built.input_scaling.scale[[8, 11]].tolist() == [1, 1]
    assert float(built.train.x[:, [8, 11]].abs().max()) < 1e-5


def test_seeds_have_the_same_split_and_splits_have_others(put, tables):
    put(tables)
    base = task("uci_boston")
    assert rows_of(base, "val") == rows_of(task("uci_boston", seed=7), "val")
    other = task("uci_boston", split=1)
    assert rows_of(base, "test") != rows_of(other, "test")
    assert rows_of(base, "val") != rows_of(other, "val")
    assert rows_of(base, "val") != rows_of(task("uci_boston", gap=1), "val")


def test_shifts_are_of_the_standard_test_set_and_the_seed_draws_them(put, tables):
    put(tables)
    built, again, other = task("uci_boston"), task("uci_boston"), task("uci_boston", seed=1)
    assert set(built.shifts) == {"column_scaling", "column_noise", "missing_columns"}
    for kind, levels in built.shifts.items():
        assert list(levels) == [1, 2, 3, 4, 5]
        away = [float((data.x - built.test.x).square().mean()) for data in levels.values()]
        assert 0 < away[0] and away == sorted(away)
        assert all(torch.equal(data.y, built.test.y) for data in levels.values())
        assert torch.equal(levels[5].x, again.shifts[kind][5].x)
        assert not torch.equal(levels[5].x, other.shifts[kind][5].x)
    assert not task("uci_boston", gap=2).shifts


def test_without_validation_all_of_the_published_training_part_is_used(put, tables):
    put(tables)
    built = task("uci_boston", val_fraction=0)
    assert built.val is None and len(built.train) == 54


def test_units_are_told_where_they_are_known(put, tables):
    put(tables)
    units = {name: task(name).target_unit for name in NAMES}
    assert units["uci_boston"] == "1,000 USD" and units["uci_power"] == "MW"
    assert units["uci_energy"] == units["uci_yacht"] == ""
    assert "column B" in task("uci_boston").description
    assert "duplicates" in task("uci_wine").description


@pytest.mark.parametrize(
    "options, words",
    [
        ({"split": 3}, "`split` of uci_yacht must be 0 to 2, got 3"),
        ({"split": -1}, "`split` of uci_yacht must be 0 to 2, got -1"),
        ({"split": True}, "got True"),
        ({"gap": 6}, "`gap` of uci_yacht must be 0 to 5, got 6"),
        ({"gap": "speed"}, "`gap` of uci_yacht must be 0 to 5, got 'speed'"),
        ({"gap": 1, "split": 2}, "takes the place of `split`: give one of them"),
        ({"val_fraction": 1.0}, r"must be in \[0, 1\), got 1.0"),
        ({"noise": -1.0}, "`noise` of Gaussian must be a finite number > 0"),
        ({"spilt": 1}, "no option 'spilt'. Did you mean 'split'"),
    ],
)
def test_options_that_cannot_be_are_refused(put, tables, options, words):
    put(tables)
    with pytest.raises(ValueError, match=words):
        task("uci_yacht", **options)


def test_missing_file_names_the_command(tmp_path, monkeypatch):
    monkeypatch.setenv("POLYMODE_DATA", str(tmp_path))
    with pytest.raises(MissingData, match="polymode data get uci"):
        task("uci_yacht")


def test_a_fit_is_reported_in_the_units_of_the_table(put, tables):
    """Targets are 1000 +- 30; a network of standardised units would predict numbers near 0."""
    put(tables)
    built = task("uci_yacht")
    post = pm.fit("map", net=pm.nets.mlp, task=built, epochs=3, progress="silent")
    prediction = post.predict(built.test.x)
    assert 900 < float(prediction.mean.mean()) < 1100
    table = pm.evaluate(post, built).rows
    rows = {row.metric: row.value for row in table if row.dataset == "test"}
    errors = (prediction.mean - built.test.y).square().mean().sqrt()
    assert rows["rmse"] == pytest.approx(float(errors), rel=1e-4) and rows["rmse"] > 5
