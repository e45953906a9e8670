"""Figures in a page: the same drawing in fewer bytes, names of files, CSV as data."""

from __future__ import annotations

import gzip
import re
from base64 import b64decode
from xml.etree import ElementTree

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from polymode.plots import Display
from polymode.report.embed import LARGE, compact, csv_uri, figure, file_name, text_uri


class Line(Display):
    def plot(self, ax):
        ax.plot(self.data["x"], self.data["y"], "o-", clip_on=True)
        ax.imshow(np.eye(3), extent=(0, 1, 0, 1))
        ax.set_title(self.label)
        return ax


def line(label: str = "a line") -> Line:
    x = np.linspace(0, 1, 20)
    return Line({"x": x, "y": x**2}, label=label, caption="c", alt="a")


def test_compact_keeps_the_drawing() -> None:
    svg = line().to_svg()
    small = compact(svg)
    assert len(small) < 0.8 * len(svg)
    before, after = ElementTree.fromstring(svg), ElementTree.fromstring(small)
    for tag in ("path", "use", "image", "clipPath", "g"):
        name = f"{{http://www.w3.org/2000/svg}}{tag}"
        assert len(list(before.iter(name))) == len(list(after.iter(name)))
    assert compact(small) == small


def test_compact_leaves_no_reference_open() -> None:
    small = compact(line().to_svg())
    names = re.findall(r' id="([^"]*)"', small)
    assert len(names) == len(set(names))
    assert set(re.findall(r'(?:href="|url\()#([^")]+)', small)) == set(names)


def test_labels_are_drawn_and_never_markup() -> None:
    label = "<script>alert(1)</script> --> & $x$"
    made = figure(line(label), [label])
    svg = b64decode(made.src.partition(",")[2]).decode()
    assert "script" not in svg
    ElementTree.fromstring(svg)
    assert made.method == label
    assert made.svg_name == "Line-script-alert-1-script-x.svg"


def test_numbers_stand_below_if_they_are_few() -> None:
    assert figure(line()).numbers[0] == ["x", "y"]
    assert len(figure(line()).numbers) == 21
    many = line()
    many.data["z"] = np.arange(100)
    assert figure(many).numbers == []


@given(st.text())
def test_file_names_are_safe(text) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_.-]{1,80}", file_name(text))
    assert not file_name(text).startswith(".")


def test_large_csv_is_compressed() -> None:
    small, ending = csv_uri("a,b\n1,2\n")
    assert ending == "csv" and b64decode(small.partition("base64,")[2]) == b"a,b\n1,2\n"
    text = "1,2\n" * LARGE
    uri, ending = csv_uri(text)
    assert ending == "csv.gz" and len(uri) < 0.1 * len(text)
    assert gzip.decompress(b64decode(uri.partition("base64,")[2])).decode() == text
    assert csv_uri(text) == (uri, ending)
    assert b64decode(text_uri("ß").partition("base64,")[2]).decode() == "ß"
