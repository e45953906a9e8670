"""The CNN of Li & Gal: where its dropout is, and what is refused."""

from __future__ import annotations

import pytest
from torch import nn

from polymode.nets import cnn


def test_dropout_is_before_both_dense_layers_and_nowhere_else() -> None:
    kinds = [type(layer) for layer in cnn((1, 28, 28), 10, dropout=0.5)]
    assert kinds == [
        nn.Conv2d, nn.ReLU, nn.Conv2d, nn.ReLU, nn.MaxPool2d, nn.Flatten,
        nn.Dropout, nn.Linear, nn.ReLU, nn.Dropout, nn.Linear,
    ]  # fmt: skip
    assert nn.Dropout not in [type(layer) for layer in cnn((1, 28, 28), 10)]


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((1, 5, 9), {}, "cnn"),
        ((1, 28, 28), {"dropout": 1.0}, "`dropout` of cnn"),
        ((1, 28, 28), {"channels": ()}, "`(channels|hidden)` of cnn"),
        ((1, 28, 28), {"hidden": 0}, "`(channels|hidden)` of cnn"),
    ],
)
def test_sizes_that_leave_nothing_are_refused(shape, options, message) -> None:
    with pytest.raises(ValueError, match=message):
        cnn(shape, 10, **options)
