"""Figures as parts of a page: the drawing and its numbers as data URIs, in few bytes.

An SVG is shown as an image, so that the ids of two figures cannot collide and nothing in it can
run. Figures of one kind stand together and share a caption; see `rows`.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
from base64 import b64encode
from collections.abc import Collection, Sequence
from copy import copy
from itertools import groupby
from typing import NamedTuple

from polymode.plots import Display
from polymode.plots.display import true_minus

LARGE = 20_000  # bytes of CSV from which on it is compressed
MOST_ROWS, MOST_COLUMNS = 30, 9  # of numbers that stand below their figure
PROLOGUE = r"<\?xml.*?\?>|<!DOCTYPE.*?>|<!--.*?-->|<metadata>.*?</metadata>"
LETTERS = str.maketrans("0123456789", "ghijklmnop")  # a name must not start with a digit
ACROSS = 4  # cells in a row of the page
MEDIUM, WIDE = 4.4, 6.6  # inches above which a figure has half a row, or all of it
QUARTER = 2.9  # inches that a figure of one cell is drawn for


class Figure(NamedTuple):
    """What the page says of a display.

    `method` is empty where several are in one figure. `own` is the part of the caption that is
    about this figure alone. `cells` is its width in quarters of a row. `src` is the drawing, `svgz`
    the same compressed, for download.
    """

    src: str
    alt: str
    own: str
    method: str
    cells: int
    width: int
    height: int
    svgz: str
    svg_name: str
    csv: str
    csv_name: str
    numbers: list[list[str]]


class Group(NamedTuple):
    """Figures of one kind with one caption; the figures take `used` of `span` cells of a row.

    The caption is below the figures, or next to them where cells are left.
    """

    figures: list[Figure]
    caption: str
    span: int
    used: int


def rows(displays: Sequence[Display], labels: Collection[str] = ()) -> list[list[Group]]:
    """Return displays in rows of the page; neighbours of one kind with one caption are a group.

    The last group of a row takes what is left of it.
    """
    packed: list[list[Group]] = []
    for (_, caption), same in groupby(displays, lambda display: (type(display), display.shared)):
        drawn = [figure(display, labels) for display in same]
        used = min(ACROSS, sum(fig.cells for fig in drawn))
        left = ACROSS - sum(group.span for group in packed[-1]) if packed else 0
        if used > left:
            packed.append([])
        packed[-1].append(Group(drawn, caption, used, used))
    for row in packed:
        left = ACROSS - sum(group.span for group in row)
        row[-1] = row[-1]._replace(span=row[-1].span + left)
    return packed


def figure(display: Display, labels: Collection[str] = ()) -> Figure:
    """Return a display as the page needs it; a small one is drawn for a quarter of a row.

    Args:
        labels: of the methods, to know whether the figure is of one of them.
    """
    display = copy(display)
    cells = 1 if display.size[0] <= MEDIUM else 2 if display.size[0] <= WIDE else ACROSS
    if cells == 1:
        display.shrink(min(1.0, QUARTER / display.size[0]))
    drawing, numbers = compact(display.to_svg()), display.to_csv()
    name = file_name(f"{type(display).__name__}-{display.label}")
    uri, ending = csv_uri(numbers)
    width, height = (round(96 * side) for side in display.size)
    return Figure(
        src="data:image/svg+xml;base64," + b64encode(drawing.encode()).decode(),
        alt=display.alt,
        own=display.own,
        method=display.label if display.label in labels else "",
        cells=cells,
        width=width,
        height=height,
        svgz="data:image/svg+xml;base64," + _packed(drawing),
        svg_name=f"{name}.svg",
        csv="" if display.dense else uri,
        csv_name=f"{name}.{ending}",
        numbers=[] if display.dense else _few(numbers),
    )


def csv_uri(text: str) -> tuple[str, str]:
    """Return a CSV file as a data URI and the ending of its name; large ones are compressed."""
    raw = text.encode()
    if len(raw) <= LARGE:
        return "data:text/csv;charset=utf-8;base64," + b64encode(raw).decode(), "csv"
    return "data:application/gzip;base64," + _packed(text), "csv.gz"


def _packed(text: str) -> str:
    return b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def text_uri(text: str) -> str:
    """Return a text file as a data URI."""
    return "data:text/plain;charset=utf-8;base64," + b64encode(text.encode()).decode()


def file_name(text: str) -> str:
    """Return a name that every file system takes.

    >>> file_name("Reliability-deep_ensemble (num_modes=5)")
    'Reliability-deep_ensemble-num_modes-5'
    """
    return re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-.")[:80] or "figure"


def compact(svg: str) -> str:
    """Return the same drawing in fewer bytes: no prologue, little white space, short names."""
    svg = re.sub(PROLOGUE, "", svg, flags=re.S)
    svg = re.sub(r"base64,[^\"]*", lambda match: re.sub(r"\s+", "", match[0]), svg)
    svg = re.sub(r">\s+<", "><", svg)
    svg = re.sub(r'(<use [^>]*?)transform="translate\((\S+) 0\)"', r'\1x="\2"', svg)
    svg = re.sub(r'(?<= d=")[^"]*', lambda match: re.sub(r"\s*([A-Za-z])\s*", r"\1", match[0]), svg)
    return _rename(svg).strip()


def _rename(svg: str) -> str:
    """Give short names to what is referred to, and none to the rest."""
    used = dict.fromkeys(re.findall(r'(?:href="|url\()#([^")]+)', svg))
    names = {name: f"{place:x}".translate(LETTERS) for place, name in enumerate(used)}
    svg = re.sub(r' id="([^"]*)"', lambda f: f' id="{names[f[1]]}"' if f[1] in names else "", svg)
    return re.sub(r'((?:href="|url\()#)([^")]+)', lambda match: match[1] + names[match[2]], svg)


def _few(text: str) -> list[list[str]]:
    """Return the rows of a CSV as they are read on a page, none if they are too many."""
    head, *lines = csv.reader(io.StringIO(text))
    rows = [head, *([true_minus(value) for value in line] for line in lines)]
    return rows if len(rows) <= MOST_ROWS + 1 and len(rows[0]) <= MOST_COLUMNS else []
