"""Rows of images."""

from __future__ import annotations

import numpy as np
import pytest

from polymode.plots.image_rows import image_rows


def test_a_row_of_axes_for_each_kind_and_one_picture_for_each_image() -> None:
    stream = np.random.default_rng(0)
    rows = {"a": stream.random((3, 4, 5)), "b": stream.random((2, 4, 5))}
    display = image_rows(rows, label="two", caption="Two rows.", summary="Mean 0.5.")
    figure = display.figure()
    pictures = [ax for ax in figure.axes if ax.get_visible() and ax.images]
    assert len(pictures) == 5
    np.testing.assert_allclose(pictures[1].images[0].get_array(), rows["a"][1])
    assert display.caption == "Two rows. Mean 0.5." and display.alt == "two: Mean 0.5."


def test_what_is_no_stack_of_images_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'a' of image_rows must be images \(N, H, W\), got \(4,"):
        image_rows({"a": np.zeros((4, 5))}, label="", caption="", summary="")
