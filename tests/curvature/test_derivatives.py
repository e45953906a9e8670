"""Windows of a convolution times its weights are the convolution, whatever moves over the input."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from polymode.curvature.derivatives import Geometry, windows

FUNCTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
CASES = {
    "same, even and not square": ((2, 4), 1, "same", 1, 1),
    "same, dilated unequally": ((3, 2), 1, "same", (1, 2), 2),
    "same in three dimensions": ((2, 3, 4), 1, "same", 1, 1),
    "unequal padding in three dimensions": ((1, 2, 3), (1, 2, 1), (0, 1, 2), (1, 1, 2), 2),
    "unequal padding, stride, dilation": ((3, 2), (2, 1), (2, 0), (1, 3), 2),
    "valid": ((3, 1), (1, 2), "valid", 1, 1),
    "one dimension, same and even": ((4,), 1, "same", 2, 2),
    "one number for all axes": ((3, 2), 2, 1, 1, 1),
}


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")
@pytest.mark.parametrize("name", CASES)
def test_windows_times_weights_are_the_convolution(name) -> None:
    kernel, stride, padding, dilation, groups = CASES[name]
    stream = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 4, *(9, 10, 8)[: len(kernel)], generator=stream, dtype=torch.float64)
    weight = torch.randn(6, 4 // groups, *kernel, generator=stream, dtype=torch.float64)
    geometry = Geometry.of(weight, stride, padding, dilation, groups)
    columns = windows(x, geometry)  # (2, 3, G, T, I)
    made = columns @ weight.reshape(groups, 6 // groups, -1).mT  # (2, 3, G, T, O)
    expected = FUNCTIONS[len(kernel)](
        x.flatten(0, 1), weight, None, stride, padding, dilation, groups
    )
    torch.testing.assert_close(made.mT.flatten(2, 3), expected.unflatten(0, (2, 3)).flatten(3))
