r"""From columns of any kind to the inputs of a network, learned on training rows only.

=========  =====================================================================================
number     `numeric`: "standard" (x - mean) / std; "piecewise", that and, for the bins between
           `num_bins` quantiles, the share of each that lies below x (values outside the outermost
           bins go on linearly); "quantile", the normal score of its rank among the training
           values, linear between at most 256 of them and beyond
boolean    -1 and 1
date       days as a number, and sine and cosine of the day of the year and of the week, and of
           the hour if the training rows differ in it
category   a column of 0 and 1 for each category. Of more than `most_categories` the most frequent
           ones have one, or (`large_categories`) the column becomes one number, a code for the
           embedding of `pm.nets.tabular`. Those that occur once or are new are "other"
=========  =====================================================================================

A missing number, date or truth value becomes the median and sets an indicator, which is there for
columns with missing training values; a missing category is a category. Columns that are constant in
training are left out. An encoder is JSON-safe (`to_dict`) and travels with the posterior, which
then predicts from tables, by the names of their columns.

References: Y. Gorishniy, I. Rubachev, A. Babenko, On embeddings for numerical features in tabular
deep learning, NeurIPS 2022 (piecewise linear); Y. Gorishniy, A. Kotelnikov, A. Babenko, TabM, ICLR
2025 (the best form of its inputs). `N` rows, `F` features.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polymode.core.checks import check_call
from polymode.core.options import Config, option
from polymode.core.warn import warn
from polymode.tasks.frames.columns import Column, columns_named, read_columns

NUMERIC = ("standard", "quantile", "piecewise")
_KNOTS = 256  # of the quantile map
_PERIODS = {"year": 365.2425, "week": 7.0, "day": 1.0}  # in days
_OTHER = "(other)"
_FEW_ROWS = 50  # below, a text column cannot be told from a category


@dataclass(frozen=True, kw_only=True)
class Encoding(Config):
    """How columns become inputs."""

    numeric: str = option("piecewise", choices=NUMERIC, doc="form of numbers")
    num_bins: int = option(16, ge=2, le=1000, doc="bins of piecewise numbers")
    large_categories: str = option(
        "frequent",
        choices=("frequent", "codes"),
        doc="columns of more categories: the most frequent ones, or a code for `pm.nets.tabular`",
    )
    most_categories: int = option(64, ge=2, le=10_000, doc="categories of a column that are told"
                                  " apart")  # fmt: skip


@dataclass(frozen=True)
class NumberFeatures:
    """Features of a number.

    Attributes:
        name: of the column. form: of `NUMERIC`.
        centre, width: mean and standard deviation of the training values.
        knots: increasing training values between which "quantile" and "piecewise" are linear.
        heights: normal scores of the knots, of "quantile".
        median: what replaces a missing value. indicator: whether there is a feature for it.
    """

    name: str
    form: str
    centre: float
    width: float
    knots: list[float]
    heights: list[float]
    median: float
    indicator: bool

    @classmethod
    def fit(cls, column: Column, encoding: Encoding) -> NumberFeatures:
        values = column.values[~column.missing]
        median, indicator = float(np.median(values)), bool(column.missing.any())
        form, knots, heights = encoding.numeric, list[float](), list[float]()
        centre, width = float(values.mean()), float(values.std()) or 1.0
        if form == "quantile":
            knots, heights = _normal_scores(values)
        elif form == "piecewise":
            shares = np.linspace(0, 1, encoding.num_bins + 1)
            knots = np.unique(np.quantile(values, shares)).tolist()
        return cls(column.name, form, centre, width, knots, heights, median, indicator)

    @property
    def feature_names(self) -> list[str]:
        bins = len(self.knots) - 1 if self.form == "piecewise" else 0
        names = [self.name, *(f"{self.name} in bin {k}" for k in range(bins))]
        return [*names, *_indicator_name(self.name, self.indicator)]

    def __call__(self, column: Column) -> np.ndarray:
        missing = column.missing
        values = np.where(missing, self.median, column.values)
        if self.form == "quantile":
            features = np.interp(values, self.knots, self.heights)[:, None]
        else:
            features = ((values - self.centre) / self.width)[:, None]
        if self.form == "piecewise":
            features = np.column_stack([features, self._bins(values)])
        return _with_indicator(features, missing, self.indicator)

    def _bins(self, values: np.ndarray) -> np.ndarray:
        """Return the share of each bin that lies below the values, (N, bins)."""
        knots = np.asarray(self.knots)
        shares = (values[:, None] - knots[:-1]) / np.diff(knots)
        low, high = np.zeros(shares.shape[1]), np.ones(shares.shape[1])
        low[:1], high[-1:] = -np.inf, np.inf
        return np.clip(shares, low, high)

    def decode(self, features: np.ndarray) -> np.ndarray:
        """Return the values (N,) of features (N, F), NaN where missing."""
        if self.form == "quantile":
            values = np.interp(features[:, 0], self.heights, self.knots)
        else:
            values = features[:, 0] * self.width + self.centre
        return np.where(features[:, -1] > 0.5, np.nan, values) if self.indicator else values


@dataclass(frozen=True)
class BooleanFeatures:
    """Features of a truth value.

    Attributes:
        name: of the column.
        likely: what replaces a missing value. indicator: whether there is a feature for it.
    """

    name: str
    likely: float
    indicator: bool

    @classmethod
    def fit(cls, column: Column, encoding: Encoding) -> BooleanFeatures:
        values = column.values[~column.missing]
        return cls(column.name, float(values.mean() >= 0.5), bool(column.missing.any()))

    @property
    def feature_names(self) -> list[str]:
        return [self.name, *_indicator_name(self.name, self.indicator)]

    def __call__(self, column: Column) -> np.ndarray:
        missing = column.missing
        values = np.where(missing, self.likely, column.values)
        return _with_indicator(2.0 * values[:, None] - 1.0, missing, self.indicator)

    def decode(self, features: np.ndarray) -> np.ndarray:
        """Return the values (N,) of features (N, F), NaN where missing."""
        values = (features[:, 0] > 0).astype(float)
        return np.where(features[:, -1] > 0.5, np.nan, values) if self.indicator else values


@dataclass(frozen=True)
class DateFeatures:
    """Features of a date.

    Attributes:
        days: those of its number of days, with median and indicator.
        periods: "year", "week", "day" as far as the training rows differ in their phase.
    """

    name: str
    days: dict[str, Any]
    periods: list[str]

    @classmethod
    def fit(cls, column: Column, encoding: Encoding) -> DateFeatures:
        days = NumberFeatures.fit(column, encoding)
        values = column.values[~column.missing]
        periods = [n for n, p in _PERIODS.items() if np.ptp(np.mod(values, p)) > 1e-9]
        return cls(column.name, asdict(days), periods)

    @property
    def feature_names(self) -> list[str]:
        phases = [f"{self.name}, {k} of {p}" for p in self.periods for k in ("sine", "cosine")]
        return [*NumberFeatures(**self.days).feature_names, *phases]

    def __call__(self, column: Column) -> np.ndarray:
        numbers = NumberFeatures(**self.days)
        values = np.where(column.missing, numbers.median, column.values)
        angles = [
            2 * np.pi * np.mod(values, _PERIODS[name]) / _PERIODS[name] for name in self.periods
        ]
        phases = [function(angle) for angle in angles for function in (np.sin, np.cos)]
        return np.column_stack([numbers(column), *phases])

    def decode(self, features: np.ndarray) -> np.ndarray:
        """Return the days (N,) of features (N, F), NaN where missing."""
        numbers = NumberFeatures(**self.days)
        return numbers.decode(features[:, : len(numbers.feature_names)])


@dataclass(frozen=True)
class CategoryFeatures:
    """Features of a category: one of 0 and 1 for each.

    Attributes:
        name: of the column.
        categories: those that are told apart; None is a missing value.
        other: whether there is a feature for all others.
        seen: every category of the training rows.
        coded: whether there is one feature, the place of the category, for an embedding.
    """

    name: str
    categories: list[str | None]
    other: bool
    seen: list[str | None]
    coded: bool = False

    @classmethod
    def fit(cls, column: Column, encoding: Encoding) -> CategoryFeatures:
        counts = Counter(column.values.tolist())
        if once := sorted(str(name) for name, n in counts.items() if n == 1 and name is not None):
            warn(
                f"column '{column.name}' has {len(once)} categories with one row each (first:"
                f" '{once[0]}'); they are taken together as {_OTHER}"
            )
        several = [name for name, n in counts.most_common() if n > 1]
        coded = len(several) > encoding.most_categories and encoding.large_categories == "codes"
        frequent = several if coded else several[: encoding.most_categories]
        if len(frequent) < len(several):
            warn(
                f"column '{column.name}' has {len(counts):,} categories; only the"
                f" {encoding.most_categories} most frequent ones have inputs of their own, see"
                " `most_categories` and `large_categories`"
            )
        return cls(
            column.name,
            sorted(frequent, key=lambda name: (name is None, str(name))),
            len(frequent) < len(counts),
            sorted(counts, key=lambda name: (name is None, str(name))),
            coded,
        )

    @property
    def feature_names(self) -> list[str]:
        if self.coded:
            return [f"code of {self.name}"]
        names = [f"{self.name} = {'missing' if c is None else c}" for c in self.categories]
        return [*names, *([f"{self.name} = {_OTHER}"] if self.other else [])]

    def __call__(self, column: Column) -> np.ndarray:
        places = {name: k for k, name in enumerate(self.categories)}
        width = len(self.categories) + self.other
        codes = np.array([places.get(v, len(places)) for v in column.values], dtype=np.int64)
        if self.coded:
            features = codes[:, None].astype(float)
        else:
            features = np.zeros((len(codes), width))
            rows = np.flatnonzero(codes < width)  # without "other", an unseen one is all zeros
            features[rows, codes[rows]] = 1.0
        seen = {*map(str, self.seen)}
        others = Counter(v for v in map(_text_of, column.values) if v is not None and v not in seen)
        if others:
            unseen, count = sorted(others), others.total()
            names = ", ".join(f"'{name}'" for name in unseen[:3])
            more = f" and {len(unseen) - 3} more" if len(unseen) > 3 else ""
            warn(
                f"column '{self.name}' has categories that training has not seen: {names}{more}"
                f" ({count} of {len(codes)} rows); they are taken as {_OTHER}"
            )
        return features

    def decode(self, features: np.ndarray) -> np.ndarray:
        """Return the places (N,) of the categories in `labels`."""
        if self.coded:
            return features[:, 0].round()
        return np.where(features.any(1), features.argmax(1), len(self.categories)).astype(float)

    @property
    def labels(self) -> list[str]:
        """Names of what is told apart, as tables show them."""
        return [*("missing" if c is None else c for c in self.categories), _OTHER]


Features = NumberFeatures | BooleanFeatures | DateFeatures | CategoryFeatures
_KINDS: dict[str, type[Features]] = {
    "number": NumberFeatures,
    "boolean": BooleanFeatures,
    "date": DateFeatures,
    "category": CategoryFeatures,
}


@dataclass(frozen=True)
class TableEncoder:
    """What turns a table into inputs (N, F): call it on a DataFrame or a dictionary of columns.

    Attributes:
        columns: kind of each input column, by name.
        features: how they become inputs; columns that were constant have none.
        target: name of the target column, or "".
        classes: names of the classes in the order of their labels; None for a regression.
    """

    columns: dict[str, str]
    features: tuple[Features, ...]
    target: str = ""
    classes: tuple[str, ...] | None = None

    @classmethod
    def fit(
        cls,
        columns: Mapping[str, Column],
        encoding: Encoding | None = None,
        *,
        target: str = "",
        classes: Sequence[str] | None = None,
    ) -> TableEncoder:
        """Return the encoder of training rows."""
        features: list[Features] = []
        constant = []
        for column in columns.values():
            _check_infinite(column)
            _check_text(column)
            if _is_constant(column):
                constant.append(column.name)
            else:
                features.append(_KINDS[column.kind].fit(column, encoding or Encoding()))
        if constant:
            names = ", ".join(f"'{name}'" for name in constant[:5])
            warn(f"{len(constant)} column(s) are constant in training and left out: {names}")
        if not features:
            raise ValueError("no input column is left: all are constant in training")
        kinds = {name: column.kind for name, column in columns.items()}
        return cls(kinds, tuple(features), target, None if classes is None else tuple(classes))

    @property
    def feature_names(self) -> list[str]:
        """Names of the F inputs."""
        return [name for part in self.features for name in part.feature_names]

    @property
    def codes(self) -> list[tuple[int, int]]:
        """Position and number of categories of each coded column, for `pm.nets.tabular`."""
        starts = np.cumsum([0, *(len(part.feature_names) for part in self.features)]).tolist()
        return [
            (start, len(part.categories) + 1)
            for start, part in zip(starts, self.features, strict=False)
            if isinstance(part, CategoryFeatures) and part.coded
        ]

    def __call__(self, frame: Any, what: str = "the table") -> Tensor:
        """Return the inputs (N, F) of rows, in torch's default type."""
        columns = read_columns(frame, what)
        columns_named(columns, [part.name for part in self.features], what)
        targets = {self.target, *self.target.split(", ")}
        extra = [n for n in columns if n not in self.columns and n not in targets]
        if extra:
            warn(
                f"{what} has {len(extra)} column(s) that training did not have, which are ignored:"
                f" {', '.join(extra[:5])}"
            )
        return self.encode(columns, what)

    def encode(self, columns: Mapping[str, Column], what: str = "the table") -> Tensor:
        """Return the inputs (N, F) of columns that were read."""
        parts = []
        for features in self.features:
            column = self._as_trained(columns[features.name], what)
            _check_infinite(column)
            if not getattr(features, "indicator", True) and column.missing.any():
                count = int(column.missing.sum())
                warn(
                    f"column '{column.name}' lacks {count} of {len(column)} values, and none in"
                    " training; the median of training stands for them"
                )
            parts.append(features(column))
        return torch.as_tensor(np.concatenate(parts, 1), dtype=torch.get_default_dtype())

    def decode(self, x: Tensor) -> Tensor:
        """Return the values of the columns that inputs (N, F) stand for, float64 (N, K).

        Numbers, truth values and days are as in the table up to rounding, NaN where missing;
        categories are places in the labels of `column_facts`.
        """
        values = x.detach().double().cpu().numpy()
        ends = np.cumsum([len(part.feature_names) for part in self.features])
        pieces = np.split(values, ends[:-1], axis=1)
        decoded = [part.decode(f) for part, f in zip(self.features, pieces, strict=True)]
        return torch.as_tensor(np.stack(decoded, 1))

    @property
    def column_facts(self) -> list[tuple[str, str, list[str]]]:
        """Name, kind and labels (of categories) of each column that `decode` returns."""
        return [
            (
                part.name,
                self.columns[part.name],
                part.labels if isinstance(part, CategoryFeatures) else [],
            )
            for part in self.features
        ]

    def _as_trained(self, column: Column, what: str) -> Column:
        """Return a column as the kind that it had in training, or say that it is another."""
        kind = self.columns[column.name]
        if column.kind == kind or (column.missing.all() and kind != "category"):
            return Column(column.name, kind, column.values)
        if kind == "category":
            texts = [_text_of(v) for v in column.values]
            return Column(column.name, kind, np.array([*texts, None], dtype=object)[:-1])
        if {column.kind, kind} == {"number", "boolean"}:
            return Column(column.name, kind, column.values)
        raise ValueError(
            f"column '{column.name}' of {what} holds {_plural(column.kind)}, and {_plural(kind)} in"
            " training; convert it"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return everything, JSON-safe."""
        kinds = {kind: name for name, kind in _KINDS.items()}
        features = [{"kind": kinds[type(part)], **asdict(part)} for part in self.features]
        classes = None if self.classes is None else list(self.classes)
        return {
            "columns": self.columns,
            "features": features,
            "target": self.target,
            "classes": classes,
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> TableEncoder:
        """Restore an encoder from `to_dict`."""
        check_call(TableEncoder.from_dict, locals())
        if set(stored) != {"columns", "features", "target", "classes"}:
            raise ValueError(f"not a stored encoder: it has {sorted(map(str, stored))}")
        parts = []
        for entry in stored["features"]:
            kind = _KINDS.get(entry.get("kind", ""))
            names = None if kind is None else {field.name for field in fields(kind)}
            if kind is None or {*entry} != {"kind", *(names or ())}:
                raise ValueError(f"not the features of a column: {sorted(map(str, entry))}")
            parts.append(kind(**{name: value for name, value in entry.items() if name != "kind"}))
        if any(part.name not in stored["columns"] for part in parts) or not parts:
            raise ValueError("features must be of columns that the encoder has")
        classes = stored["classes"]
        return cls(
            dict(stored["columns"]),
            tuple(parts),
            str(stored["target"]),
            None if classes is None else tuple(map(str, classes)),
        )

    def __repr__(self) -> str:
        return f"TableEncoder({len(self.columns)} columns, {len(self.feature_names)} inputs)"


def _normal_scores(values: np.ndarray) -> tuple[list[float], list[float]]:
    """Return at most 256 rising training values and the normal scores of their mean ranks.

    Ten standard deviations beyond each end are added, so that values outside those of training are
    told from them.
    """
    from scipy.special import ndtri

    unique, counts = np.unique(values, return_counts=True)
    shares = (np.cumsum(counts) - 0.5 * counts) / len(values)
    if len(unique) > _KNOTS:
        places = np.unique(np.linspace(0, len(unique) - 1, _KNOTS).round().astype(int))
        unique, shares = unique[places], shares[places]
    reach, scores = 10.0 * (float(values.std()) or 1.0), ndtri(shares)
    knots = [unique[0] - reach, *unique, unique[-1] + reach]
    return [float(k) for k in knots], [
        float(scores[0]) - 10.0,
        *scores.tolist(),
        float(scores[-1]) + 10.0,
    ]


def _with_indicator(features: np.ndarray, missing: np.ndarray, indicator: bool) -> np.ndarray:
    return np.column_stack([features, missing.astype(float)]) if indicator else features


def _indicator_name(name: str, indicator: bool) -> list[str]:
    return [f"{name} is missing"] if indicator else []


def _text_of(value: Any) -> str | None:
    if value is None or value != value:
        return None
    whole = isinstance(value, float) and value.is_integer()
    return str(int(value) if whole else value)


def _plural(kind: str) -> str:
    return {"category": "categories", "boolean": "truth values"}.get(kind, f"{kind}s")


def _is_constant(column: Column) -> bool:
    missing = column.missing
    present = column.values[~missing]
    if column.kind == "category":
        return len({*column.values.tolist()}) < 2
    return not len(present) or (not missing.any() and bool((present == present[0]).all()))


def _check_infinite(column: Column) -> None:
    if column.kind == "category":
        return
    infinite = np.isinf(column.values)
    if infinite.any():
        raise ValueError(
            f"column '{column.name}' has {int(infinite.sum())} of {len(column)} values infinite,"
            f" the first in row {int(infinite.argmax())}; clip them, or set them to missing"
        )


def _check_text(column: Column) -> None:
    """Refuse a column of free text, of which nearly every row is different."""
    if column.kind != "category" or len(column) < _FEW_ROWS:
        return
    different = {value for value in column.values if value is not None}
    if len(different) > 0.5 * len(column):
        raise ValueError(
            f"column '{column.name}' looks like text or an identifier: {len(different):,}"
            f" different values in {len(column):,} rows; drop it (drop=['{column.name}']), or group"
            " its values"
        )
