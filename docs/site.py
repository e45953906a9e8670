"""Build the documentation site: `python -m docs.site` (or `make docs`), into `build/site`.

The source is plain Markdown. This copies it to `build/docs`, beside the README, the changelog and
the figures of `results/`, turns notebooks into pages, adds a page of the API for every room that a
user may enter, and lets Zensical make HTML of it, in an environment that has Zensical. `--stage`
stops before that.
"""

from __future__ import annotations

import argparse
import ast
import base64
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DOCS, STAGE = ROOT / "docs", ROOT / "build" / "docs"
SECTIONS = {
    "Start": ["quickstart", "which_method", "overview", "questions", "compare", "command-line",
              "your-module", "error-bars", "frozen-bodies", "tabular", "segmentation"],
    "Networks and data": ["nets", "tasks", "tasks_real", "data", "shifts", "positions"],
    "Look at it": ["metrics", "plots", "report", "examinations", "reference", "symmetry",
                   "equivariance", "adversary", "zoo"],
    "Correct and decide": ["recalibration", "conformal"],
    "More": ["kernels", "tomography", "speed", "scale", "naming", "add-a-method", "contributing",
             "changelog"],
}  # fmt: skip
FOLDERS = {"Tutorials": "tutorials", "Methods": "methods", "Studies": "studies", "API": "api",
           "Decisions": "decisions"}  # fmt: skip
COPIED = {".md", ".svg", ".png", ".ipynb"}
TOP = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def stage() -> list[Path]:
    """Copy and make all pages; return them."""
    shutil.rmtree(STAGE, ignore_errors=True)
    sources = [path for path in DOCS.rglob("*") if path.suffix in COPIED]
    sources += (ROOT / "results").rglob("*.svg")
    places = {path: STAGE / place_of(path) for path in [*sources, *(ROOT / name for name in TOP)]}
    for path, place in places.items():
        place.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            place.write_text(with_links(path.read_text(), path, places))
        else:
            shutil.copyfile(path, place)
        if path.suffix == ".ipynb":
            page = notebook_page(json.loads(path.read_text()), path.name)
            place.with_suffix(".md").write_text(with_links(page, path, places))
    for room, names in api().items():
        place = STAGE / "api" / f"{room.removeprefix('polymode.')}.md"
        place.parent.mkdir(exist_ok=True)
        place.write_text(f"# `{room}`\n\n" + "\n".join(f"::: {name}\n" for name in names))
    return sorted(STAGE.rglob("*.md"))


def place_of(path: Path) -> str:
    """Return where a file of the repository stands in the site."""
    if path.parent == ROOT:
        return TOP.get(path.name, path.name)
    return str(path.relative_to(DOCS if path.is_relative_to(DOCS) else ROOT))


def with_links(text: str, page: Path, places: dict[Path, Path]) -> str:
    """Return a page whose links lead to where things stand in the site; those to source files,
    which are no part of it, become their text."""

    def replace(match: re.Match[str]) -> str:
        picture, label, target, anchor = match.groups()
        if re.match(r"[a-z]+:", target):
            return match[0]
        source = (page.parent / target).resolve()
        place = places.get(source)
        if source.suffix == ".ipynb" and place is not None and label != "notebook":
            place = place.with_suffix(".md")
        if place is None:
            return with_links(label, page, places)
        here = (STAGE / place_of(page)).parent
        way = os.path.relpath(place, here)
        return f"{picture}[{with_links(label, page, places)}]({way}{anchor or ''})"

    parts = re.split(r"(^```.*?^```$)", text, flags=re.M | re.S)
    return "".join(part if k % 2 else LINK.sub(replace, part) for k, part in enumerate(parts))


def notebook_page(notebook: dict[str, Any], name: str) -> str:
    """Return a notebook with its outputs as Markdown."""
    parts = [f"*This page is a [notebook]({name}).*"]
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        parts += [shown(output) for output in cell["outputs"]]
    title, *rest = parts[1:] or [""]
    return "\n\n".join([title, parts[0], *rest]) + "\n"


def shown(output: dict[str, Any]) -> str:
    """Return one output of a cell as Markdown: a picture, a table or text."""
    data = output.get("data", {"text/plain": output.get("text", "")})
    if "image/svg+xml" in data:
        code = base64.b64encode("".join(data["image/svg+xml"]).encode()).decode()
        return f'<img alt="figure" src="data:image/svg+xml;base64,{code}">'
    if "image/png" in data:
        return (
            f'<img alt="figure" src="data:image/png;base64,{"".join(data["image/png"]).strip()}">'
        )
    if "text/html" in data:
        return "".join(data["text/html"])
    return "```text\n" + "".join(data["text/plain"]).rstrip() + "\n```"


def api() -> dict[str, list[str]]:
    """Return the public names of the library and of its rooms, each where it is defined."""
    package = ROOT / "src" / "polymode"
    tree = ast.parse((package / "__init__.py").read_text())
    rooms = next(ast.literal_eval(node.value) for node in tree.body if _assigns(node, "_ROOMS"))
    files = {"polymode": package / "__init__.py"}
    files |= {f"polymode.{room}": package / room / "__init__.py" for room in rooms}
    return {room: exported(file) for room, file in files.items()}


def exported(file: Path) -> list[str]:
    """Return where the names are defined that a room imports and lists in `__all__`."""
    tree = ast.parse(file.read_text())
    public = next(ast.literal_eval(node.value) for node in tree.body if _assigns(node, "__all__"))
    package = ".".join(file.parent.relative_to(ROOT / "src").parts)
    defined = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("polymode."):
            if node.module != package:  # else these are its files
                defined += [f"{node.module}.{a.name}" for a in node.names if a.name in public]
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name in public:
            defined.append(f"{package}.{node.name}")
    return sorted(
        set(defined) - {"polymode._version.__version__"},
        key=lambda name: name.rsplit(".", 1)[1].lower(),
    )


def navigation(pages: list[Path]) -> list[dict[str, Any]]:
    """Return the menu: the sections, with pages that none names under "More", and a section for
    each folder of pages."""
    placed = {name for names in SECTIONS.values() for name in names}
    others = {page.stem for page in pages if page.parent == STAGE} - placed - {"index"}
    sections = SECTIONS | {"More": [*sorted(others), *SECTIONS["More"]]}
    menu: list[dict[str, Any]] = [{"Home": "index.md"}]
    menu += [{title: [f"{name}.md" for name in names]} for title, names in sections.items()]
    for title, folder in FOLDERS.items():
        inside = [f"{folder}/{page.name}" for page in pages if page.parent == STAGE / folder]
        menu += [{title: inside}] if inside else []
    return menu


def _assigns(node: ast.AST, name: str) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else []
    return any(isinstance(target, ast.Name) and target.id == name for target in targets)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stage", action="store_true", help="stop before HTML is made")
    options = parser.parse_args()
    pages = stage()
    settings = (ROOT / "docs" / "site.toml").read_text()
    settings = settings.replace("nav = []", f"nav = {toml(navigation(pages))}")
    (ROOT / "build" / "zensical.toml").write_text(settings)
    print(f"{len(pages)} pages in {STAGE.relative_to(ROOT)}")
    if not options.stage:
        program = Path(sys.executable).with_name("zensical")
        command = [program, "build", "--clean", "--strict", "-f", "build/zensical.toml"]
        sys.exit(subprocess.run(command, cwd=ROOT).returncode)


def toml(value: Any) -> str:
    """Return lists, tables and texts as TOML on one line."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(k)} = {toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    return json.dumps(value)


if __name__ == "__main__":
    main()
