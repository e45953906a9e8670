"""One version everywhere, a date in the changelog; llms.txt names what exists."""

from __future__ import annotations

import re
from pathlib import Path

import polymode as pm

ROOT = Path(__file__).parents[1]


def test_version_and_date_agree_in_changelog_and_citation() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    dates = dict(re.findall(r"^## \[([\d.]+)\] - (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M))
    assert f"version: {pm.__version__}\n" in citation
    assert f'date-released: "{dates[pm.__version__]}"' in citation


def test_llms_txt_names_what_exists() -> None:
    text = (ROOT / "llms.txt").read_text()
    assert text.startswith("# polymode\n\n> ")
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert links and all((ROOT / link).is_file() for link in links)
    names = set(re.findall(r"pm\.([A-Za-z]+)", text))
    assert all(hasattr(pm, name) for name in names)
