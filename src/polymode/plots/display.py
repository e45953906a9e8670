"""Displays: figures whose numbers are computed once and drawn many times.

A display holds its numbers in `data`; `plot` draws them on your axes, `figure` on a new
`matplotlib.figure.Figure`, `save` writes a file, `to_svg` and `to_csv` return its text. A display
at the end of a notebook cell shows itself. No pyplot state is touched, and matplotlib is imported
only for drawing. The same numbers give the same bytes of SVG.
"""

from __future__ import annotations

import io
import re
import textwrap
from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from polymode.core.checks import check_call
from polymode.core.safe_files import replace_file
from polymode.core.sheets import csv_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, FigureBase

INK, PALE = "#24292f", "#b4bdc7"  # colours of text and axes; of grids and backgrounds
DARK = {INK: "#d9e0e7", PALE: "#515c68"}  # the same on a dark page

OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
"""The colour-blind safe palette of Okabe and Ito (2008), without its yellow, which is invisible on
white, and with grey in place of black."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LETTER = 0.065  # approximate width of a letter of a legend, in inches
ROW = 0.17  # height of a line of a legend, in inches
DOTS_PER_INCH = 200  # of images within the SVG
PLACES = re.compile(r'(?<= )(?:d|x|y)="[^"]*"')  # attributes of SVG that hold coordinates
MINUS = re.compile(r"(?<![\w)\]-])-(?=\.?\d)|(?<=\de)-(?=\d)")  # a hyphen before a number
FORMATS = ("svg", "png", "pdf", "csv")  # of saved files
LINES = re.compile(r"(?:L [-.\d]+ [-.\d]+ ?\n?){2,}")  # consecutive lines of a path


class Style(NamedTuple):
    """The look of one method in all figures: colour, and the marker as a second cue."""

    color: str = OKABE_ITO[0]
    marker: str = MARKERS[0]


def palette(labels: Iterable[str]) -> dict[str, Style]:
    """Return one style per label, in order; after seven, colours repeat with other markers."""
    check_call(palette, locals())
    count = len(OKABE_ITO)
    return {
        label: Style(OKABE_ITO[i % count], MARKERS[(i + i // count) % count])
        for i, label in enumerate(dict.fromkeys(labels))
    }


class Display(ABC):
    """A figure with its numbers.

    Attributes:
        data: the numbers by name. label: whose numbers they are.
        caption: what is shown, of how many examples: `shared`, which all figures of its kind say,
            followed by `own`, which concerns this figure.
        alt: the caption as a description for readers who cannot see the figure.
        style: of one method. styles: by label, where several are drawn together.
        size: of the figure in inches.
        dense: whether the numbers are thousands, so that a page should not carry them as CSV.
    """

    size: tuple[float, float] = (3.6, 3.0)
    dense: bool = False
    legend_more: ClassVar[tuple[int, int]] = (0, 0)  # letters, entries, beyond the labels

    def __init__(
        self,
        data: dict[str, np.ndarray],
        *,
        label: str,
        caption: str,
        alt: str,
        own: str = "",
        style: Style | None = None,
        styles: Mapping[str, Style] | None = None,
    ) -> None:
        self.data, self.label, self.alt = data, label, true_minus(alt)
        self.shared, self.own = true_minus(caption), true_minus(own)
        self.style, self.styles = style or Style(), dict(styles or {})
        width, height = self.size
        self.size = (width, height + self._legend_height(width))

    @property
    def caption(self) -> str:
        """What is shown, of how many examples."""
        return " ".join(filter(None, [self.shared, self.own]))

    def _legend_height(self, width: float) -> float:
        """Return the height of a legend beyond the two lines that fit."""
        letters, entries = self.legend_more
        labels = [label + letters * "x" for label in self.styles] + entries * [""]
        return ROW * max(0, legend_lines(labels, width) - 2)

    def shrink(self, factor: float) -> None:
        """Make the figure smaller without its letters, for pages with several in a row."""
        width, height = self.size
        bare = height - self._legend_height(width)
        self.size = (factor * width, factor * bare + self._legend_height(factor * width))

    @property
    def title(self) -> str:
        """The label in lines that fit the figure."""
        return textwrap.fill(self.label, int(self.size[0] / LETTER) - 8)

    @abstractmethod
    def plot(self, ax: Axes) -> Axes:
        """Draw on `ax` and return it."""

    def draw(self, figure: FigureBase) -> None:
        """Draw on an empty figure; one set of axes unless a display needs more."""
        self.plot(figure.add_subplot())

    def figure(self) -> Figure:
        """Return a new figure with the drawing."""
        import matplotlib
        from matplotlib.figure import Figure

        with matplotlib.rc_context(_settings()):
            figure = Figure(figsize=self.size, layout="constrained")
            self.draw(figure)
            return figure

    def to_svg(self) -> str:
        """Return the drawing as SVG, the same bytes for the same numbers; light and dark by CSS."""
        import matplotlib

        file = io.StringIO()
        with matplotlib.rc_context(_settings()):
            quiet = {"Date": None, "Creator": None}
            self.figure().savefig(
                file, format="svg", transparent=True, metadata=quiet, dpi=DOTS_PER_INCH
            )
        rules = "".join(
            f'*[style*="{part}: {light}"]{{{part}:{dark}!important}}'
            for light, dark in DARK.items()
            for part in ("fill", "stroke")
        )
        style = f"<style>@media (prefers-color-scheme:dark){{{rules}}}</style>"
        head, defs, body = file.getvalue().partition("<defs>")
        return head + defs + style + PLACES.sub(_shortened, body)

    def to_csv(self) -> str:
        """Return the numbers as CSV, one column per name; shorter columns end in empty fields.

        Matrices are written row after row.
        """
        columns = [[name, *map(_text, np.ravel(values))] for name, values in self.data.items()]
        longest = max(map(len, columns))
        padded = [column + [""] * (longest - len(column)) for column in columns]
        return csv_text(zip(*padded, strict=True))

    def save(self, path: str | Path) -> Path:
        """Write the drawing, or its numbers as CSV, and return the path.

        Args:
            path: ends in .svg, .png (200 dots per inch), .pdf or .csv; its folder is created if
                missing, and the file is written completely or not at all.
        """
        path = Path(path)
        form = path.suffix.removeprefix(".").lower()
        if form not in FORMATS:
            raise ValueError(f"`path` of save must end in .{', .'.join(FORMATS)}, got '{path}'")
        path.parent.mkdir(parents=True, exist_ok=True)
        text = {"svg": self.to_svg, "csv": self.to_csv}.get(form)
        replace_file(path, text().encode() if text else self._drawn(form))
        return path

    def _drawn(self, form: str) -> bytes:
        """Return the bytes of a PNG or PDF file, the same for the same numbers."""
        import matplotlib

        file = io.BytesIO()
        quiet = {"CreationDate": None} if form == "pdf" else {"Software": None}
        with matplotlib.rc_context(_settings()):
            self.figure().savefig(file, format=form, metadata=quiet, dpi=DOTS_PER_INCH)
        return file.getvalue()

    def _repr_html_(self) -> str:
        """Return the drawing with its caption, for notebooks."""
        source = b64encode(self.to_svg().encode()).decode()
        width = round(96 * self.size[0])
        return (
            f'<figure style="margin:.4em 0"><img src="data:image/svg+xml;base64,{source}"'
            f' alt="{escape(self.alt)}" width="{width}" style="max-width:100%;height:auto">'
            f'<figcaption style="max-width:44em;opacity:.72">{escape(self.caption)}</figcaption>'
            "</figure>"
        )

    def __repr__(self) -> str:
        names = ", ".join(self.data)
        return f"{type(self).__name__}({self.label}: {names})"


def true_minus(text: str) -> str:
    """Return text with a minus sign, not a hyphen, before numbers and in their exponents.

    >>> true_minus("from -0.5 to 2e-05; a top-5 of 2020-01"), true_minus("(-.5, +1)")
    ('from −0.5 to 2e−05; a top-5 of 2020-01', '(−.5, +1)')
    """
    return MINUS.sub("−", text)


def legend_columns(labels: Iterable[str], width: float) -> int:
    """Return the number of columns of a legend of `width` inches."""
    lengths = [max(map(len, label.splitlines() or [""])) for label in labels]
    widest = LETTER * (max(lengths, default=0) + 7)
    return min(max(1, len(lengths)), max(1, int(width / widest)))


def legend_lines(labels: Iterable[str], width: float) -> int:
    """Return the number of lines of a legend of `width` inches."""
    wrapped = [legend_text(label, width) for label in labels]
    columns = legend_columns(wrapped, width)
    lines = sum(1 + label.count("\n") for label in wrapped)
    return -(-lines // columns)


def legend_text(label: str, width: float) -> str:
    """Return a label wrapped to a legend of `width` inches."""
    return textwrap.fill(label, int(width / LETTER) - 7)


def _shortened(places: re.Match[str]) -> str:
    """Return coordinates rounded to 0.01 points, and lines without repeated letters."""
    rounded = re.sub(r"(\.\d\d)\d+", r"\1", places.group())
    return LINES.sub(lambda run: "L" + run.group().replace("\nL", "")[1:], rounded)


def _text(value: Any) -> str:
    return str(value) if isinstance(value, str | np.str_) else f"{float(value):.6g}"


def _settings() -> Any:
    """Return the matplotlib settings of every figure."""
    return {
        "svg.hashsalt": "polymode",
        "svg.fonttype": "path",
        "path.simplify_threshold": 0.25,  # of a point
        "font.family": "DejaVu Sans",
        "font.size": 8.5,
        "axes.titlesize": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": INK,
        "axes.labelcolor": INK,
        "axes.grid": False,
        "text.color": INK,
        "text.parse_math": False,  # a label with dollar signs is a label
        "xtick.color": INK,
        "ytick.color": INK,
        "legend.frameon": False,
        "legend.fontsize": 7.5,
        "lines.linewidth": 1.6,
        "lines.markersize": 4.5,
    }
