"""What all displays have in common: numbers, words, drawing without state, the same bytes twice."""

from __future__ import annotations

import csv
import io
import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from matplotlib.figure import Figure

from polymode import plots
from polymode.examinations.plots import LossCurves
from polymode.plots.axes import axis_title, thinned
from polymode.plots.display import OKABE_ITO, Display, legend_columns, legend_text

OTHERS = {"Comparison", "Display", "Style", "palette", "map_limits"}
NAMES = sorted(set(plots.__all__) - OTHERS)
LIMITS = {False: 80_000, True: 120_000}  # bytes of SVG; dense ones are drawn as images


@pytest.fixture(params=NAMES)
def display(request, displays) -> Display:
    return displays[request.param]


def test_svg_is_deterministic_valid_and_small(display):
    first = display.to_svg()
    assert first == display.to_svg()
    ET.fromstring(first)
    assert "dc:date" not in first
    assert len(first) < LIMITS[display.dense]
    assert "prefers-color-scheme:dark" in first
    paths = re.findall(r' d="([^"]*)"', first)
    assert paths
    for path in paths:
        assert not re.search(r"\.\d{3}", path)  # places are rounded
        assert re.fullmatch(r"M[\sMLQCZzHV\d.\-e]*", path)


def test_draws_on_axes_and_subfigures_without_pyplot_and_changes_no_number(display):
    before = {key: values.copy() for key, values in display.data.items()}
    ax = Figure().add_subplot()
    assert display.plot(ax) is ax
    assert ax.has_data()
    part = Figure(layout="constrained").subfigures(1, 2)[0]
    display.draw(part)
    assert part.axes
    assert "matplotlib.pyplot" not in sys.modules
    for key, values in display.data.items():
        np.testing.assert_array_equal(values, before[key])


def test_figure_is_a_plain_figure(displays):
    figure = displays["severity"].figure()
    assert type(figure) is Figure
    assert len(figure.axes) == 3


def test_csv_has_the_numbers(display):
    rows = list(csv.DictReader(io.StringIO(display.to_csv())))
    assert rows
    for name, values in display.data.items():
        written = [row[name] for row in rows[: values.size]]
        if values.dtype.kind != "U":
            np.testing.assert_allclose([float(each) for each in written], values.ravel(), rtol=1e-5)


def test_words_for_those_who_cannot_see_it(display):
    assert len(display.alt) > 60
    assert re.search(r"\d", display.alt)
    assert display.alt.endswith(".") and display.caption.endswith(".")
    assert "nan" not in display.alt + display.caption
    assert display.label in repr(display)


def test_words_have_true_minus_signs(display):
    """A hyphen before a digit is a minus sign, also in an exponent."""
    for text in (display.alt, display.caption):
        assert not re.search(r"(^|[\s(\[±,])-\.?\d|\de-\d", text)


def test_a_negative_number_has_a_true_minus():
    comparison = plots.Comparison("NLL", -0.5, None, -2.0, None, 0.1, "nats", "down")
    assert "−0.5 → −2" in str(plots.forest([comparison]).data["words"][0])
    band = plots.sweep([1.0, 2.0], {"nll": [-1e-5, -0.5]}, name="x", chosen=1.0)
    assert "−0.5 at 2 to −1e−05 at 1" in band.alt


def test_what_a_caption_says_of_one_figure_is_at_its_end(displays):
    for name in ("reliability", "ood_histogram", "confusion", "diversity_heat_map"):
        display = displays[name]
        assert display.own and display.caption == f"{display.shared} {display.own}"


@pytest.mark.parametrize("ending", ["svg", "png", "pdf", "csv"])
def test_save_writes_what_the_ending_says(displays, tmp_path, ending):
    display = displays["severity"]
    path = display.save(tmp_path / "new" / f"figure.{ending.upper()}")
    content = path.read_bytes()
    starts = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF", "csv": b"severity"}
    assert content.startswith(starts[ending])
    assert display.save(str(tmp_path / f"again.{ending}")).read_bytes() == content


def test_save_names_the_endings_that_it_knows(displays, tmp_path):
    with pytest.raises(ValueError, match=r"must end in \.svg, \.png, \.pdf, \.csv, got '.*\.gif'"):
        displays["severity"].save(tmp_path / "figure.gif")
    assert not list(tmp_path.iterdir())


def test_notebooks_show_the_drawing_and_its_caption(displays):
    display = plots.size_curve({"<b>": ([1, 2], [1.0, 0.5], [0.0, 0.0])})
    html = display._repr_html_()
    assert 'src="data:image/svg+xml;base64,' in html and "<b>" not in html
    root = ET.fromstring(html.replace('auto">', 'auto"/>'))
    assert root.find("figcaption").text == display.caption
    assert root.find("img").attrib["alt"] == display.alt


def test_a_smaller_figure_keeps_its_letters(displays):
    display = plots.size_curve({"m": ([1, 2], [1.0, 0.5], [0.0, 0.0])})
    width, height = display.size
    display.shrink(0.5)
    assert display.size == pytest.approx((width / 2, height / 2))
    assert display.figure().axes[0].xaxis.label.get_size() == 8.5


def test_logarithmic_losses_have_plain_numbers():
    """Mathematics in labels is not parsed, so the ticks of matplotlib would be shown as source."""
    data = {"train loss": np.geomspace(1, 1e-3, 9)[:, None], "train steps": np.arange(9.0)}
    figure = LossCurves(data, label="m", caption="c.", alt="a.").figure()
    figure.draw_without_rendering()
    ticks = [each.get_text() for each in figure.axes[0].yaxis.get_ticklabels()]
    assert "0.01" in ticks and not any("$" in tick for tick in ticks)


def test_short_paths_have_the_places_of_long_ones():
    """Pairs after a repeated L belong to it, but after a Q the letter must stay."""
    from polymode.plots.display import PLACES, _shortened

    path = ' d="M 1.23456 2 \nL 3.5 -4.56789 \nL 5 6 \nQ 1 2 3 4 \nL 7 8 \nz\n"'
    short = PLACES.sub(_shortened, path)
    assert short == ' d="M 1.23 2 \nL 3.5 -4.56  5 6 \nQ 1 2 3 4 \nL 7 8 \nz\n"'


@pytest.mark.cpu_seconds(8)
def test_importing_plots_imports_no_matplotlib():
    code = (
        "import sys, polymode.plots;"
        "assert not {'matplotlib', 'scipy', 'sklearn'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_palette_is_one_style_a_label():
    styles = plots.palette([f"m{i}" for i in range(14)])
    assert len(set(styles.values())) == 14
    assert [style.color for style in styles.values()][:7] == list(OKABE_ITO)
    assert plots.palette(["a", "b"]) == plots.palette(["a", "b", "a"])


def test_thinned_takes_all_of_a_few_and_some_of_many():
    np.testing.assert_array_equal(thinned(5, 5), range(5))
    some = thinned(1000, 10)
    assert len(set(some)) == 10 and (np.diff(some) > 0).all()
    np.testing.assert_array_equal(some, thinned(1000, 10))


def test_axis_titles_say_unit_and_direction():
    assert axis_title("accuracy").startswith("accuracy ↑ [")
    assert axis_title("anything") == "anything"


def test_figures_grow_with_their_legend():
    """Ten methods with long names leave the axes of two as high as they are."""
    heights = {}
    for count in (2, 10):
        names = [f"method {i} (some_option=with_a_value, another={i})" for i in range(count)]
        display = plots.size_curve({name: ([1, 2], [1.0, 0.5], [0.0, 0.0]) for name in names})
        figure = display.figure()
        figure.draw_without_rendering()
        heights[count] = figure.axes[0].get_position().height * display.size[1]
    assert heights[10] > 0.9 * heights[2]


def test_long_names_are_wrapped():
    name = "a method with many options (" + ", ".join(f"option_{i}={i}" for i in range(12)) + ")"
    assert "\n" in legend_text(name, 4.0)
    assert legend_columns(["a", "b"], 4.0) == 2
    assert legend_columns([name], 4.0) == 1
    display = plots.diversity_heat_map(np.ones((2, 2)), label=name)
    assert "\n" in display.title and display.title.replace("\n", " ") == name
