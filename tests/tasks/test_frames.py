"""Tables with columns of any kind: what is learned, what travels, what is said of bad ones."""

from __future__ import annotations

import json
import warnings
from datetime import date, datetime, timezone
from decimal import Decimal

import numpy as np
import pytest
import torch
from scipy import stats

import polymode as pm
from polymode.core.safe_files import FileProblem
from polymode.tasks.frames.columns import read_column, read_columns
from polymode.tasks.frames.encoder import Encoding, TableEncoder
from polymode.tasks.readers.mixed_tables import read_mixed_table

N = 200


class Series:
    """A column as DataFrames have them."""

    def __init__(self, values, dtype: str = "") -> None:
        self.values = np.asarray(values)
        self.dtype = dtype or self.values.dtype

    def to_numpy(self) -> np.ndarray:
        return self.values


class Frame(dict):
    """The least that counts as a DataFrame."""

    @property
    def columns(self) -> list[str]:
        return list(self)

    @property
    def shape(self) -> tuple[int, int]:
        return len(next(iter(self.values())).values), len(self)


def houses(n: int = N, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    size, city = rng.normal(100, 20, n), rng.choice(["Bonn", "Kiel", "Ulm"], n)
    days = rng.integers(0, 900, n).astype("timedelta64[D]")
    price = 3 * size + 50 * (city == "Ulm") + rng.normal(0, 5, n)
    size[rng.random(n) < 0.1] = np.nan
    return {
        "size": size,
        "city": city,
        "new": rng.random(n) < 0.5,
        "sold": np.datetime64("2020-01-01") + days,
        "price": price,
    }


def frame(columns: dict[str, np.ndarray]) -> Frame:
    return Frame({name: Series(values) for name, values in columns.items()})


def encoded(name: str, values, at=None, **encoding) -> np.ndarray:
    columns = read_columns({name: values})
    encoder = TableEncoder.fit(columns, Encoding(**encoding))
    return encoder({name: values if at is None else at}).numpy()


def test_kinds_of_columns() -> None:
    for values, kind in (
        ([1, 2, None], "number"),
        ([Decimal("1.5"), 2.0], "number"),
        ([True, None, False], "boolean"),
        ([date(2020, 1, 1), None], "date"),
        ([datetime(2020, 1, 1, tzinfo=timezone.utc)], "date"),
        (np.array(["2020-01-01", "NaT"], "datetime64[D]"), "date"),
        (["a", None, float("nan")], "category"),
        (Series([1, 2], "category"), "category"),
        (torch.arange(3), "number"),
    ):
        column = read_column("c", values)
        assert column.kind == kind, values
    assert read_column("c", [date(1970, 1, 3), None]).values.tolist()[0] == 2.0
    moment = datetime(1970, 1, 1, 12, tzinfo=timezone.utc)
    assert read_column("c", [moment]).values[0] == 0.5
    with pytest.raises(ValueError, match="spread it over several columns"):
        read_column("c", [[1, 2], [3]])
    with pytest.raises(ValueError, match="differ in length"):
        read_columns({"a": [1], "b": [1, 2]})


def test_numbers_by_hand() -> None:
    """Standard scores, bins and normal scores of 1 ... 9."""
    values = np.arange(1.0, 10)
    np.testing.assert_allclose(
        encoded("x", values, numeric="standard")[:, 0], stats.zscore(values), rtol=1e-6
    )
    pieces = encoded("x", values, [5.0, 2.0, 11.0], numeric="piecewise", num_bins=2)
    np.testing.assert_allclose(pieces[:, 1:], [[1, 0], [0.25, 0], [1, 1.5]], atol=1e-6)
    np.testing.assert_allclose(pieces[:, 0], (np.array([5, 2, 11]) - 5) / values.std(), rtol=1e-6)
    scores = encoded("x", values, numeric="quantile")[:, 0]
    np.testing.assert_allclose(scores, stats.norm.ppf((values - 0.5) / 9), rtol=1e-5)
    far = encoded("x", values, [1e3, -1e3], numeric="quantile")[:, 0]
    assert far[0] > 5 and far[1] < -5  # told from the values of training


@pytest.mark.parametrize("numeric", ["standard", "quantile", "piecewise"])
def test_forms_keep_the_order_and_missing_is_the_median(numeric) -> None:
    rng = np.random.default_rng(0)
    values = rng.exponential(size=301)
    rising = encoded("x", values, np.sort(values), numeric=numeric).sum(1)
    assert (np.diff(rising) >= -1e-6).all()
    values[::10] = np.nan
    features = encoded("x", values, [np.nan, np.nanmedian(values)], numeric=numeric)
    np.testing.assert_array_equal(features[:, -1], [1, 0])
    np.testing.assert_allclose(features[0, :-1], features[1, :-1])


def test_dates_and_truth_values() -> None:
    days = np.datetime64("2021-01-01") + np.arange(730).astype("timedelta64[D]")
    encoder = TableEncoder.fit(read_columns({"day": days, "flag": np.arange(730) % 2 == 0}))
    assert [n for n in encoder.feature_names if "sine" in n] == [
        "day, sine of year", "day, cosine of year", "day, sine of week", "day, cosine of week",
    ]  # fmt: skip
    x = encoder({"day": days, "flag": np.arange(730) % 2 == 0})
    week = encoder.feature_names.index("day, sine of week")
    torch.testing.assert_close(x[:7, week], x[7:14, week], atol=1e-5, rtol=0)
    assert x[:4, -1].tolist() == [1, -1, 1, -1]


def test_categories_rare_unseen_and_many() -> None:
    values = ["a"] * 5 + ["b"] * 3 + ["c"] + [None] * 2
    with pytest.warns(UserWarning, match=r"1 categories with one row each \(first: 'c'\)"):
        encoder = TableEncoder.fit(read_columns({"k": values}))
    assert encoder.feature_names == ["k = a", "k = b", "k = missing", "k = (other)"]
    with pytest.warns(UserWarning, match=r"not seen: 'z' \(1 of 4 rows\)"):
        x = encoder({"k": ["a", "z", "c", None]})
    assert x.argmax(1).tolist() == [0, 3, 3, 2] and (x.sum(1) == 1).all()
    many = [str(k % 30) for k in range(300)]
    with pytest.warns(UserWarning, match="30 categories; only the 10 most frequent"):
        encoder = TableEncoder.fit(read_columns({"k": many}), Encoding(most_categories=10))
    assert len(encoder.feature_names) == 11
    coding = Encoding(most_categories=10, large_categories="codes")
    coded = TableEncoder.fit(read_columns({"x": np.arange(300.0), "k": many}), coding)
    assert coded.codes == [(17, 31)] and coded.feature_names[-1] == "code of k"
    x = coded({"x": np.arange(300.0), "k": many})
    assert [coded.features[1].labels[int(c)] for c in coded.decode(x)[:, 1]] == many
    net = pm.nets.tabular((18,), 2, codes=coded.codes)
    assert net(x).shape == (300, 2)
    with pytest.raises(ValueError, match="positions below 18 and different"):
        pm.nets.tabular((18,), 2, codes=[(18, 3)])
    numbers = TableEncoder.fit(read_columns({"k": Series([1, 2, 1, 2], "category")}))
    assert numbers({"k": [2.0, 1.0]}).tolist() == [[0, 1], [1, 0]]  # as DataFrames with gaps have


def test_what_is_learned_is_of_training_rows_only() -> None:
    """Validation and test rows far outside change nothing of the encoder."""
    columns = houses()
    task = pm.Task.from_frame(columns, "price")
    held_out = torch.cat([task.row_numbers["val"], task.row_numbers["test"]]).numpy()
    changed = {name: values.copy() for name, values in columns.items()}
    changed["size"][held_out] = 1e6
    again = pm.Task.from_frame(changed, "price")
    assert again.encoder == task.encoder
    torch.testing.assert_close(again.train.x, task.train.x)
    rows = task.row_numbers["train"].numpy()
    np.testing.assert_allclose(task.train.y[:, 0], columns["price"][rows], rtol=1e-6)
    parts = torch.cat(list(task.row_numbers.values())).sort().values
    assert parts.tolist() == list(range(N)) and len(task.test) == 20


def test_encoder_is_json_and_names_columns() -> None:
    task = pm.Task.from_frame(houses(), "price")
    stored = json.loads(json.dumps(task.encoder.to_dict(), allow_nan=False))
    again = TableEncoder.from_dict(stored)
    columns = houses(50, seed=1)
    turned = {name: columns[name] for name in reversed(columns)}
    torch.testing.assert_close(again(turned), task.encoder(columns))
    for damage, message in (
        ({"columns": {}}, "features must be of columns"),
        ({"features": [{"kind": "tensor"}]}, "not the features of a column"),
    ):
        with pytest.raises(ValueError, match=message):
            TableEncoder.from_dict({**stored, **damage})


@pytest.mark.parametrize("numeric", ["standard", "quantile", "piecewise"])
def test_decoding_gives_the_table_back(numeric) -> None:
    columns = houses()
    task = pm.Task.from_frame(columns, "price", numeric=numeric)
    decoded = task.encoder.decode(task.encoder(columns)).numpy()
    facts = {name: (k, labels) for k, (name, _, labels) in enumerate(task.encoder.column_facts)}
    np.testing.assert_allclose(decoded[:, facts["size"][0]], columns["size"], rtol=1e-4)
    np.testing.assert_allclose(decoded[:, facts["new"][0]], columns["new"])
    days = (columns["sold"] - np.datetime64("1970-01-01")).astype(float)
    np.testing.assert_allclose(decoded[:, facts["sold"][0]], days, atol=0.1)
    place, labels = facts["city"]
    assert [labels[int(k)] for k in decoded[:, place]] == columns["city"].tolist()


@pytest.mark.cpu_seconds(8)
def test_a_posterior_predicts_from_tables_after_loading(tmp_path) -> None:
    task = pm.Task.from_frame(frame(houses()), "price", numeric="standard")
    post = pm.fit("map", net=pm.nets.mlp, task=task, epochs=2, progress="silent")
    new = frame(houses(30, seed=2))
    expected = post.predict(task.encoder(new)).mean
    torch.testing.assert_close(post.predict(new).mean, expected)
    post.save(tmp_path / "post")
    loaded = pm.load(tmp_path / "post", net=pm.nets.mlp)
    torch.testing.assert_close(loaded.predict(new).mean, expected)
    del new["size"]
    with pytest.raises(ValueError, match="no column 'size'"):
        loaded.predict(new)


def test_frames_and_names_of_classes_where_arrays_are_taken() -> None:
    columns = houses()
    city = Series(columns.pop("city"))
    table = frame(columns)
    task = pm.Task(train=(table, city), test=(table, city), likelihood="categorical")
    assert task.class_names == ("Bonn", "Kiel", "Ulm") and task.encoder.classes == task.class_names
    assert task.test.y.tolist() == task.train.y.tolist()
    arrays = pm.Task(train=(np.zeros((3, 1), "float32"), ["b", "a", "b"]), likelihood="categorical")
    assert arrays.train.y.tolist() == [1, 0, 1] and arrays.class_names == ("a", "b")
    with pytest.raises(ValueError, match="test has the class 'c' in row 0, which train has not"):
        pm.Task(
            train=(np.zeros((2, 1), "float32"), ["a", "b"]),
            test=(np.zeros((1, 1), "float32"), ["c"]),
            likelihood="categorical",
        )
    with pytest.raises(ValueError, match="not fitted on a table"):
        small = pm.fit("map", net=pm.nets.mlp, task="two_moons", epochs=1, progress="silent")
        small.predict(table)


BAD = [
    ({"price": np.r_[np.nan, np.ones(N - 1)]}, {}, "target 'price' is missing .* in 1 of 200"),
    ({"copy": houses()["price"] * 2 + 1}, {}, "column 'copy' repeats the target 'price'"),
    ({"size": np.r_[np.inf, np.ones(N - 1)]}, {}, "'size' has 1 of .* infinite, the first in row"),
    ({"name": [f"house {k}" for k in range(N)]}, {}, "'name' looks like text .*drop=\\['name'\\]"),
    ({}, {"columns": ["size", "price"]}, "the target 'price' is among them"),
    ({}, {"columns": ["sise"]}, "no column 'sise'. Did you mean 'size'"),
    ({}, {"target": "prise"}, "no column 'prise'. Did you mean 'price'"),
    ({}, {"target": "city", "likelihood": "gaussian"}, "holds category values; gaussian needs"),
    ({"price": np.ones(N)}, {}, "target 'price' has one value in all rows"),
    ({}, {"test_fraction": 2}, "`test_fraction` of FrameOptions must be in \\[0, 1\\), got 2"),
    ({}, {"test_fractoin": 0.2}, "no option 'test_fractoin'. Did you mean 'test_fraction'"),
    ({}, {"numeric": "ranks"}, "`numeric` of FrameOptions must be one of"),
    ({name: [] for name in houses()}, {}, "the table has columns, but no rows"),
]


@pytest.mark.parametrize(("change", "options", "message"), BAD, ids=[b[2][:30] for b in BAD])
def test_bad_tables_are_refused_in_one_line(change, options, message) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        pm.Task.from_frame({**houses(), **change}, **{"target": "price", **options})
    assert "\n" not in str(caught.value)


def test_targets_by_number_and_several_of_them() -> None:
    """A column may be named by a number; targets that are still in a table are no new columns."""
    values = np.arange(30.0)
    task = pm.Task.from_frame({0: values, 1: values**2}, target=1)
    assert task.encoder.columns == {"0": "number"} and task.encoder.target == "1"
    columns = {**houses(), "rent": houses()["price"] ** 2}
    several = pm.Task.from_frame(columns, target=["price", "rent"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        several.encoder(columns)
        several.encoder({name: v for name, v in columns.items() if name != "rent"})


def test_doubtful_tables_warn_in_one_line() -> None:
    columns = houses()
    with pytest.warns(UserWarning, match=r"1 column\(s\) are constant .*: 'same'"):
        task = pm.Task.from_frame({**columns, "same": np.ones(N)}, "price")
    with pytest.warns(UserWarning, match=r"1 column\(s\) that training did not have.*: later"):
        task.encoder({**columns, "later": np.ones(N)})
    without = {**columns, "new": [None, *columns["new"][1:].tolist()]}
    with pytest.warns(UserWarning, match="'new' lacks 1 of 200 values, and none in training"):
        task.encoder(without)
    with pytest.raises(ValueError, match="'size' of the table holds categories, and numbers in"):
        task.encoder({**columns, "size": ["big"] * N})


def test_files(tmp_path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(
        'size;city;sold;new;"note, long"\n1.5;Bonn;2020-01-01;yes;a\n;Ulm;NA;no;"b\nc"\n'
    )
    columns = read_mixed_table(path)
    assert columns["size"] == [1.5, None] and columns["new"] == [True, False]
    assert columns["sold"] == [datetime(2020, 1, 1), None] and columns["note, long"] == [
        "a",
        "b\nc",
    ]
    for text, message in (
        ("", "is empty"),
        ("a,b\n", "a header and no rows"),
        ("a,b\n1\n", r"line 2 has 1 field\(s\), the header has 2"),
        ("a,a\n1,2\n", "the name 'a' of another one"),
    ):
        path.write_text(text)
        with pytest.raises(FileProblem, match=message):
            read_mixed_table(path)
    with pytest.raises(FileProblem, match="pyarrow|not there"):
        read_mixed_table(tmp_path / "t.parquet")


def test_the_same_from_pandas_and_polars() -> None:
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    columns = houses()
    encoder = pm.Task.from_frame(columns, "price").encoder
    expected = encoder(columns)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(encoder(pandas.DataFrame(columns)), expected)
        torch.testing.assert_close(encoder(polars.DataFrame(columns)), expected)
        whole = pandas.DataFrame(columns).convert_dtypes().astype({"city": "category"})
        torch.testing.assert_close(encoder(whole), expected)
        zoned = pandas.DataFrame(columns)
        zoned["sold"] = zoned["sold"].dt.tz_localize("UTC")
        torch.testing.assert_close(encoder(zoned), expected)
