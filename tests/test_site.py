"""The pages of the documentation site: a place in its menu, links that lead to pages."""

from __future__ import annotations

import re
from pathlib import Path

from docs import site


def test_pages_are_in_the_menu_and_their_links_lead_somewhere(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(site, "STAGE", tmp_path)
    pages = site.stage()
    menu = site.toml(site.navigation(pages))
    assert all(f'"{page.relative_to(tmp_path)}"' in menu for page in pages)
    assert "::: polymode.methods.fit" in (tmp_path / "api" / "polymode.md").read_text()
    broken = []
    for page in pages:
        text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
        for target in re.findall(r"\]\(([^)\s#]+)", text):
            if not re.match(r"[a-z]+:", target) and not (page.parent / target).exists():
                broken.append(f"{page.relative_to(tmp_path)}: {target}")
    assert not broken


def test_links_to_source_files_become_text_and_notebooks_pages(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(site, "STAGE", tmp_path)
    page, notebook = site.DOCS / "a.md", site.DOCS / "tutorials" / "b.ipynb"
    places = {notebook: tmp_path / "tutorials" / "b.ipynb"}
    text = "[`c`](../src/c.py) and [b](tutorials/b.ipynb#x), [notebook](tutorials/b.ipynb)"
    linked = site.with_links(text, page, places)
    assert linked == "`c` and [b](tutorials/b.md#x), [notebook](tutorials/b.ipynb)"
    code = "```python\ny = [f](x)\n```"
    assert site.with_links(code, page, places) == code


def test_a_notebook_becomes_a_page_with_its_outputs() -> None:
    def cell(kind: str, source: str, *outputs: dict) -> dict:
        return {"cell_type": kind, "source": [source], "outputs": list(outputs)}

    cells = [
        cell("markdown", "# Title"),
        cell("code", "1 + 1", {"data": {"text/plain": ["2"]}}),
        cell("code", "plot()", {"data": {"image/png": "QUJD\n", "text/plain": "<Display>"}}),
    ]
    page = site.notebook_page({"cells": cells}, "b.ipynb")
    assert page.startswith("# Title\n\n*This page is a [notebook](b.ipynb).*\n\n```python\n1 + 1")
    assert "```text\n2\n```" in page and 'src="data:image/png;base64,QUJD"' in page


def test_the_pages_of_the_api_name_what_exists() -> None:
    for room, names in site.api().items():
        assert names, room
        for name in names:
            module = Path("src", *name.split(".")[:-1])
            root = site.ROOT
            assert (root / module).with_suffix(".py").exists() or (root / module).is_dir(), name
