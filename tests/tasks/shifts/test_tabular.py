from __future__ import annotations

import math

import pytest
import torch

from polymode.tasks.shifts import SEVERITIES, TABLE_SHIFTS, gap_split, shift_table
from polymode.tasks.shifts.tabular import FACTORS, SHARES, STDS

TABLE = torch.randn(500, 13, generator=torch.Generator().manual_seed(0))
KINDS = TABLE_SHIFTS.names()


@pytest.mark.parametrize("kind", KINDS)
def test_severity_raises_the_distance(kind):
    before = TABLE.clone()
    shifted = [shift_table(TABLE, kind, severity) for severity in SEVERITIES]
    distances = [float((x - TABLE).norm(dim=1).mean()) for x in shifted]
    assert distances[0] > 0
    assert distances == sorted(distances) and len(set(distances)) == 5
    assert torch.equal(TABLE, before)


@pytest.mark.parametrize("kind", KINDS)
def test_seeds_and_types(kind):
    for table in (TABLE, TABLE.double()):
        first, again, other = (shift_table(table, kind, 3, seed=seed) for seed in (0, 0, 1))
        assert torch.equal(first, again) and not torch.equal(first, other)
        assert first.dtype == table.dtype and first.shape == table.shape


def test_scaling_multiplies_the_same_half_at_all_severities():
    touched = None
    for severity, factor in zip(SEVERITIES, FACTORS, strict=True):
        ratio = (shift_table(TABLE, "column_scaling", severity) / TABLE).mean(0)
        columns = (ratio - 1).abs() > 1e-3
        torch.testing.assert_close(ratio[columns], torch.full((7,), factor))
        assert touched is None or torch.equal(touched, columns)
        touched = columns


def test_missing_columns_are_0_and_nested():
    before = torch.zeros(13, dtype=torch.bool)
    for severity, share in zip(SEVERITIES, SHARES, strict=True):
        shifted = shift_table(TABLE, "missing_columns", severity)
        gone = (shifted == 0).all(0)
        assert int(gone.sum()) == math.ceil(share * 13)
        assert torch.equal(shifted[:, ~gone], TABLE[:, ~gone])
        assert (gone | ~before).all()
        before = gone


def test_noise_has_the_stated_size():
    """6,500 values; 5 standard errors, false-alarm rate below 1e-6."""
    for severity, std in zip(SEVERITIES, STDS, strict=True):
        noise = shift_table(TABLE, "column_noise", severity) - TABLE
        assert float(noise.std()) == pytest.approx(std, abs=5 * std / math.sqrt(2 * 6500))


@pytest.mark.parametrize("rows", [3, 4, 5, 100, 101, 102])
def test_gap_split_takes_the_middle_third(rows):
    table = TABLE[:rows]
    for column in (0, 12):
        train, test = gap_split(table, column)
        assert torch.cat([train, test]).sort().values.equal(torch.arange(rows))
        assert len(test) == round(2 * rows / 3) - round(rows / 3)
        low, high = table[test, column].min(), table[test, column].max()
        outside = table[train, column]
        assert int((outside < low).sum()) == round(rows / 3)
        assert int((outside > high).sum()) == rows - round(2 * rows / 3)


@pytest.mark.parametrize(
    "table, kind, message",
    [
        (
            TABLE,
            "missing_column",
            "Unknown shift of tables 'missing_column'. Did you mean 'missing",
        ),
        (TABLE[:, 0], "column_noise", r"tensor \(N, D\) with at least one value, got \(500,\)"),
        (TABLE.long(), "column_noise", "must be floating-point, got torch.int64"),
        (TABLE / 0, "column_noise", "table values have 6,500 of 6,500 values NaN or infinite"),
    ],
)
def test_bad_tables(table, kind, message):
    with pytest.raises(ValueError, match=message):
        shift_table(table, kind, 1)


def test_bad_severity_and_column():
    with pytest.raises(ValueError, match="`severity` must be 1, 2, 3, 4 or 5, got 0"):
        shift_table(TABLE, "column_noise", 0)
    with pytest.raises(ValueError, match="a column of 0 to 12, got a table of 500 rows and col"):
        gap_split(TABLE, 13)
    with pytest.raises(ValueError, match="at least 3 rows.*a table of 2 rows"):
        gap_split(TABLE[:2], 0)
