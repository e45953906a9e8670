"""Tables: numbers come back exactly; what is missing, ragged or text is named by row and column."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from polymode.core.safe_files import FileProblem
from polymode.tasks.readers import read_table

FINITE = st.floats(allow_nan=False, allow_infinity=False)


@given(
    hnp.arrays(np.float64, hnp.array_shapes(min_dims=2, max_dims=2, max_side=6), elements=FINITE),
    st.sampled_from([",", ";", "\t", " ", "   "]),
    st.booleans(),
    st.booleans(),
)
def test_round_trip(tmp_path_factory, values, delimiter, header, compressed):
    path = tmp_path_factory.mktemp("table") / "data"
    lines = [delimiter.join(map(repr, row)) for row in values.tolist()]
    names = [f"col{k}" for k in range(values.shape[1])]
    text = "\n".join([delimiter.join(names), *lines] if header else lines) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if compressed else text.encode())
    found = read_table(path)
    np.testing.assert_array_equal(found.values, values)
    assert found.names == (tuple(names) if header else tuple(map(str, range(values.shape[1]))))


@pytest.mark.parametrize(
    ("text", "names", "values"),
    [
        ("# made by hand\n\n1 2\n\n3 4\n", ("0", "1"), [[1, 2], [3, 4]]),
        ("\ufeffa,b\r\n1,2\r\n", ("a", "b"), [[1, 2]]),
        ('"fixed acidity";"pH"\n7.4;3.5\n', ("fixed acidity", "pH"), [[7.4, 3.5]]),
        ('a,"b, c"\n1,2\n', ("a", "b, c"), [[1, 2]]),
        ("  1.0   2e3\n -3 4\n", ("0", "1"), [[1, 2000], [-3, 4]]),
        ("5\n6\n", ("0",), [[5], [6]]),
        ("# c\nx y\n1 2", ("x", "y"), [[1, 2]]),
    ],
)
def test_forms_that_are_met(tmp_path, text, names, values):
    path = tmp_path / "t.csv"
    path.write_bytes(text.encode())
    found = read_table(path)
    assert found.names == names
    assert found.values.tolist() == values
    packed = tmp_path / "t.csv.gz"
    packed.write_bytes(gzip.compress(text.encode()))
    assert read_table(packed).values.tolist() == values


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n3,\n", r"1 missing value\(s\): row 3, column 'b'; drop the rows"),
        ("1,2\n?,4\n5,NaN\n", r"2 missing value\(s\): row 2, column '0'; row 3, column '1'"),
        ("1 2\nnan 4\n", r"1 missing value\(s\): row 2, column '0'"),
        ("a,b\n1,2\n3\n", "row 3: 1 values, 2 expected"),
        ("1 2\n3 4 5\n", "row 2: 3 values, 2 expected"),
        ("a,b\n1,2\n3,x\n", r"row 3, column 'b': 'x' is not a number; .*columns=\['a'\]"),
        ("a,sex\n1,M\n3,F\n", "row 2, column 'sex': 'M' is not a number"),
        ("1,2\n3,inf\n", "row 2, column '1': 'inf' is not a number"),
        ("", "is empty"),
        ("\n# nothing\n", "is empty"),
        ("a,b\n", "has a header and no rows"),
        ("1,5;2\n3;4\n", "row 1, column '0': '1,5' is not a number"),
    ],
)
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_faults_are_named(tmp_path, text, message, pack):
    path = tmp_path / "t.csv"
    path.write_bytes(pack(text.encode()))
    with pytest.raises(FileProblem, match=message):
        read_table(path)


def test_columns_can_be_chosen_so_that_text_does_not_matter(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,sex,b\n1,M,2\n3,F,4\n")
    found = read_table(path, columns=["b", 0])
    assert found.names == ("b", "a")
    assert found.values.tolist() == [[2, 1], [4, 3]]
    path.write_text("a,sex,b\n1,M,2\n3,F,4,5\n")
    with pytest.raises(FileProblem, match="row 3: 4 values, 3 expected"):
        read_table(path, columns=["a"])
    with pytest.raises(ValueError, match="no column 'bb'. Did you mean 'b'"):
        read_table(path, columns=["bb"])
    with pytest.raises(ValueError, match="columns 0 to 2, not 3"):
        read_table(path, columns=[3])
    with pytest.raises(ValueError, match="at least one"):
        read_table(path, columns=[])


def test_many_missing_values_are_counted_and_some_shown(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b\n" + "1,NA\n" * 100)
    with pytest.raises(FileProblem, match=r"100 missing value\(s\): .*row 6, column 'b' \.\.\.;"):
        read_table(path)


def test_bombs_binaries_and_missing_files_are_named(tmp_path):
    path = tmp_path / "t.gz"
    path.write_bytes(gzip.compress(b"1 2\n" * 100_000))
    with pytest.raises(FileProblem, match="unpacks to more than 100,000 bytes"):
        read_table(path, most_bytes=100_000)
    path.write_bytes(b"1,2\n\xff\xfe\x00")
    with pytest.raises(FileProblem, match="is not UTF-8 text"):
        read_table(path)
    with pytest.raises(FileProblem, match="does not exist"):
        read_table(tmp_path / "nothing")
