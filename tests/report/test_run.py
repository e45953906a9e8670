"""The report of a run's folder: all that it shows comes from the files that are there."""

from __future__ import annotations

import pytest

from polymode.metrics import compare
from polymode.report.run import write_report
from polymode.runs.folder import RunFolder
from polymode.runs.kept import pack


@pytest.mark.cpu_seconds(5)
@pytest.mark.parametrize("older", [False, True])
def test_examples_come_from_the_folder_alone(digits_results, tmp_path, older) -> None:
    """A folder of before examples were kept gives a page without them."""
    folder = RunFolder(tmp_path)
    (tmp_path / "predictions").mkdir()
    for number, each in enumerate(digits_results[:2]):
        names = ("test",) if older else ("test", "examples")
        kept = {name: each.kept[name] for name in names}  # others would only take time
        folder.add(f"cell{number}", each.replace(kept={}), pack(kept))
    read = RunFolder(tmp_path)
    assert read.damage() == []
    results = read.results(predictions=True)
    assert [r.class_names for r in results] == 2 * [tuple("0123456789")]
    write_report(read, compare(results))
    html = read.report.read_text()
    assert html.count('alt="Test images of') == (0 if older else 2)
    assert html.count('alt="Confusion matrix of') == 2
