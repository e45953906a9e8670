"""docs/plots.md: a picture of each display, few bytes, and code that runs."""

from __future__ import annotations

import re
from pathlib import Path

from polymode import plots

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "plots.md").read_text()
OTHERS = {"Comparison", "Display", "Style", "palette", "map_limits"}


def test_every_display_has_a_picture_on_the_page():
    pictures = {
        Path(path).stem: DOCS / path for path in re.findall(r"\]\((plots/\w+\.\w+g)\)", PAGE)
    }
    assert set(pictures) == set(plots.__all__) - OTHERS
    sizes = [path.stat().st_size for path in pictures.values()]
    assert min(sizes) > 5_000 and sum(sizes) < 28_500 * len(sizes)
    for name in pictures:
        assert f"[`{name}`](" in PAGE


def test_the_code_of_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    exec(re.sub(r"epochs=\d+", "epochs=1, progress='silent'", block), {})
    assert (tmp_path / "reliability.svg").read_text().startswith("<?xml")
