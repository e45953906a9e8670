"""Figures as parts of a page: the drawing and its numbers as data URIs, in few bytes.

An SVG is shown as an image, so that the ids of two figures cannot collide and nothing in it can
run.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
from base64 import b64encode
from collections.abc import Collection
from typing import NamedTuple

from polymode.plots import Display

LARGE = 20_000  # bytes of CSV from which on it is compressed
MOST_ROWS, MOST_COLUMNS = 30, 9  # of numbers that stand below their figure
PROLOGUE = r"<\?xml.*?\?>|<!DOCTYPE.*?>|<!--.*?-->|<metadata>.*?</metadata>"
LETTERS = str.maketrans("0123456789", "ghijklmnop")  # a name must not start with a digit
MEDIUM, WIDE = 4.4, 6.6  # inches above which a figure has half a row, or all of it


class Figure(NamedTuple):
    """What the page says of a display.

    `method` is empty where several are in one figure. `place` is its width, small, medium or wide,
    or lead: a row for itself with the caption beside it. `src` is the drawing, `svgz` the same
    compressed, for download.
    """

    src: str
    alt: str
    caption: str
    method: str
    place: str
    width: int
    height: int
    svgz: str
    svg_name: str
    csv: str
    csv_name: str
    numbers: list[list[str]]


def figure(display: Display, labels: Collection[str] = ()) -> Figure:
    """Return a display as the page needs it.

    Args:
        labels: of the methods, to know whether the figure is of one of them.
    """
    drawing, numbers = compact(display.to_svg()), display.to_csv()
    name = file_name(f"{type(display).__name__}-{display.label}")
    uri, ending = csv_uri(numbers)
    inches = display.size[0]
    width, height = (round(96 * side) for side in display.size)
    return Figure(
        src="data:image/svg+xml;base64," + b64encode(drawing.encode()).decode(),
        alt=display.alt,
        caption=display.caption,
        method=display.label if display.label in labels else "",
        place="small" if inches <= MEDIUM else "medium" if inches <= WIDE else "wide",
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
    svg = re.sub(r"base64,[^\"]*", lambda found: re.sub(r"\s+", "", found[0]), svg)
    svg = re.sub(r">\s+<", "><", svg)
    svg = re.sub(r'(<use [^>]*?)transform="translate\((\S+) 0\)"', r'\1x="\2"', svg)
    svg = re.sub(r'(?<= d=")[^"]*', lambda found: re.sub(r"\s*([A-Za-z])\s*", r"\1", found[0]), svg)
    return _rename(svg).strip()


def _rename(svg: str) -> str:
    """Give short names to what is referred to, and none to the rest."""
    used = dict.fromkeys(re.findall(r'(?:href="|url\()#([^")]+)', svg))
    names = {name: f"{place:x}".translate(LETTERS) for place, name in enumerate(used)}
    svg = re.sub(r' id="([^"]*)"', lambda f: f' id="{names[f[1]]}"' if f[1] in names else "", svg)
    return re.sub(r'((?:href="|url\()#)([^")]+)', lambda found: found[1] + names[found[2]], svg)


def _few(text: str) -> list[list[str]]:
    """Return the rows of a CSV if they are few enough to be read, else none."""
    rows = list(csv.reader(io.StringIO(text)))
    return rows if len(rows) <= MOST_ROWS + 1 and len(rows[0]) <= MOST_COLUMNS else []
