"""Scores of maps: tasks with a target at each pixel.

Nothing of a pixel is held: `segmentation` reduces each image to a few hundred numbers and to sums
over images by group (`sums`), of which `segmentation_scores` computes the metrics. `histogram` has
ranks of millions of pixels, `borders` what depends on neighbours, `image_scores` the uncertainty of
an image as a whole; `evaluation` runs through the data.
"""
