"""Tables of text keep to the width they are given."""

from __future__ import annotations

import pytest

from polymode.core.columns import left_table, terminal_width

HEAD = ["name", "kind", "meaning"]
ROWS = [
    ["deep_ensemble", "many modes", "networks from independent initialisations, averaged"],
    ["map", "one mode", ""],
]


def test_without_a_width_a_row_is_a_line() -> None:
    assert len(left_table(HEAD, ROWS).splitlines()) == 3


@pytest.mark.parametrize("width", [20, 30, 40, 56, 60, 80, 100])
def test_no_line_is_wider_and_no_word_is_lost(width) -> None:
    text = left_table(HEAD, ROWS, width)
    assert max(map(len, text.splitlines())) <= width
    letters = sorted("".join(text.split()))
    assert letters == sorted("".join("".join(cells) for cells in (HEAD, *ROWS)).replace(" ", ""))


def test_words_stay_whole_where_there_is_room() -> None:
    words = set(left_table(HEAD, ROWS, 40).split())
    assert {"deep_ensemble", "initialisations,", "averaged"} <= words


def test_the_width_is_that_of_the_terminal_or_none(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "57")
    assert terminal_width() == 57
    monkeypatch.delenv("COLUMNS")
    monkeypatch.setattr("os.get_terminal_size", lambda fd: (_ for _ in ()).throw(OSError()))
    assert terminal_width() is None  # a pipe: one line per entry, for grep
