"""Infinite-width kernels: neural-tangents' values, hand values, finite networks, refusals."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polymode.core import memory
from polymode.equivariance.kernels import (
    ABReLU,
    Activation,
    AvgPool,
    Conv,
    Dense,
    Erf,
    Flatten,
    GlobalAvgPool,
    LayerNorm,
    LeakyReLU,
    ReLU,
    Residual,
    Serial,
    empirical_ntk,
    serial,
)
from polymode.stack.stack import Stack

# Printed by neural-tangents 0.6.5 (jax 0.5.3, float64) for the inputs of `inputs`.
PRINTED = json.loads(Path(__file__).with_name("neural_tangents.json").read_text())


def inputs(*shape: int) -> Tensor:
    """Numbers without a generator, so that another library can make the same ones."""
    count = torch.arange(1, math.prod(shape) + 1, dtype=torch.float64)
    return count.pow(1.3).cos().view(shape)


def dense() -> Dense:
    return Dense(1.4, 0.3)


def conv(size: int = 3, stride: int = 1, padding: str = "same") -> Conv:
    return Conv(size, 1.4, 0.3, stride, padding)


NETS = {
    "relu": Serial(dense(), ReLU(), dense(), ReLU(), dense()),
    "leaky": Serial(dense(), LeakyReLU(0.2), dense(), LeakyReLU(0.2), dense()),
    "slopes": Serial(dense(), ABReLU(0.3, -0.7), dense()),
    "erf": Serial(dense(), Erf(), dense(), Erf(), dense()),
    "gelu": Serial(dense(), Activation(F.gelu), dense(), Activation(F.gelu), dense()),
    "sin": Serial(dense(), Activation(torch.sin), dense()),
    "layer_norm": Serial(dense(), LayerNorm(), ReLU(), dense(), LayerNorm(), Erf(), dense()),
    "residual": Serial(dense(), Residual(Serial(ReLU(), dense())), ReLU(), dense()),
    "conv_flatten": Serial(conv(), ReLU(), conv(), ReLU(), Flatten(), dense()),
    "conv_valid_stride": Serial(
        conv(3, 2, "valid"), ReLU(), conv(), Erf(), Flatten(), dense()
    ),
    "conv_circular": Serial(conv(3, 1, "circular"), ReLU(), GlobalAvgPool(), dense()),
    "pooled": Serial(
        conv(), ReLU(), conv(), ReLU(), AvgPool(2), conv(), ReLU(), GlobalAvgPool(), dense()
    ),
    "pooled_flatten": Serial(
        conv(), ReLU(), AvgPool(3, 1), conv(), LeakyReLU(0.1), Flatten(), dense(), ReLU(), dense()
    ),
    "conv_residual": Serial(
        conv(), Residual(Serial(ReLU(), conv())), LayerNorm(), ReLU(), GlobalAvgPool(), dense()
    ),
}  # fmt: skip


def inputs_of(name: str) -> Tensor:
    return inputs(3, 2, 6, 6) if "conv" in name or "pool" in name else inputs(3, 5)


@pytest.mark.parametrize("name", NETS)
def test_kernels_are_those_of_neural_tangents(name) -> None:
    """At equal inputs neural-tangents' own angle is off by 1e-8, half of the digits of float64;
    its LayerNorm adds 1e-12 to variances."""
    x = inputs_of(name)
    found = NETS[name](x[:2], x)
    equal = torch.eye(2, 3, dtype=torch.bool)
    for kind in ("nngp", "ntk"):
        error = (
            getattr(found, kind) - torch.tensor(PRINTED[name][kind], dtype=torch.float64)
        ).abs()
        assert error[~equal].max() < 1e-11, kind
        assert error[equal].max() < 2e-8, kind


def _relu(own: Tensor, other: Tensor, cross: Tensor) -> tuple[Tensor, Tensor]:
    """E relu(u) relu(v) and E relu'(u) relu'(v) for Gaussian u, v."""
    size = (own[:, None] * other[None]).sqrt()
    angle = (cross / size).clamp(-1, 1).acos()
    mean = size * (angle.sin() + (math.pi - angle) * angle.cos()) / (2 * math.pi)
    return mean, (math.pi - angle) / (2 * math.pi)


def _windows(kernel: Tensor, shape: tuple[int, int], size: tuple[int, int], pads: tuple[int, int]):
    """Sums over windows of a kernel (pixels, pixels), entry by entry, and the new shape."""
    (height, width), (rows, columns) = shape, size
    new = height + 2 * pads[0] - rows + 1, width + 2 * pads[1] - columns + 1
    padded = torch.zeros(height + 2 * pads[0], width + 2 * pads[1], dtype=torch.long) - 1
    inner = torch.arange(height * width).view(height, width)
    padded[pads[0] : pads[0] + height, pads[1] : pads[1] + width] = inner
    patches = padded.unfold(0, rows, 1).unfold(1, columns, 1).reshape(new[0] * new[1], -1)
    wide = F.pad(kernel, (0, 1, 0, 1))  # the last row and column are those of padding
    return wide[patches[:, None], patches[None]].sum(-1), new


@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize(
    ("first", "second"), [((3, 1), (1, 3)), ((1, 3), (3, 1)), ((3, 5), (1, 1))]
)
def test_windows_that_are_not_square(first, second, padding) -> None:
    """A dense twin over all pairs of pixels, of images that are not square: two convolutions, ReLU,
    and all pixels in a row."""
    x, weight, bias = inputs(2, 2, 5, 7), 1.4**2, 0.3**2
    kernel = Serial(
        Conv(first, 1.4, 0.3, padding=padding), ReLU(), Conv(second, 1.4, 0.3, padding=padding),
        Flatten(), Dense(1.4, 0.3),
    )  # fmt: skip
    found = kernel(x)
    for a in range(2):
        for b in range(2):
            covariances = {}
            for pair in ((a, b), (a, a), (b, b)):
                one, other = (x[k].flatten(1) for k in pair)
                pads = [
                    (s[0] // 2, s[1] // 2) if padding == "same" else (0, 0) for s in (first, second)
                ]
                sums, shape = _windows(one.T @ other / 2, (5, 7), first, pads[0])
                covariances[pair] = weight / math.prod(first) * sums + bias
            mean, slope = _relu(*(covariances[k, k].diagonal() for k in (a, b)), covariances[a, b])
            sums, _ = _windows(mean, shape, second, pads[1])
            nngp = weight / math.prod(second) * sums + bias
            tangents, _ = _windows(slope * covariances[a, b], shape, second, pads[1])
            ntk = weight / math.prod(second) * tangents + nngp
            last = weight * nngp.diagonal().mean() + bias
            assert float(found.nngp[a, b]) == pytest.approx(float(last), rel=1e-9)
            expected = weight * ntk.diagonal().mean() + last
            assert float(found.ntk[a, b]) == pytest.approx(float(expected), rel=1e-7)


def test_hand_values_of_dense_networks() -> None:
    """Diagonals by hand: with |x|²/d = 1, σ_w² = 2, σ_b² = 0.01 and a last layer of σ_w = 1, three
    hidden ReLU layers give K = 1.025 and Θ = 4.055."""
    x, ones = torch.ones(2, 7), torch.ones(2, 2, dtype=torch.float64)
    layers = [layer for _ in range(3) for layer in (Dense(2**0.5, 0.1), ReLU())]
    found = Serial(*layers, Dense(1.0, 0.1))(x)
    assert found.nngp == pytest.approx(1.025 * ones, abs=1e-12)
    assert found.ntk == pytest.approx(4.055 * ones, abs=1e-12)
    single = Serial(*layers, Dense(1.0, 0.1))(x, dtype=torch.float32)
    assert float(single.ntk[0, 1]) == pytest.approx(4.055, rel=1e-6)
    smooth = [layer for _ in range(3) for layer in (Dense(1.5, 0.1), Erf())]  # neural-tangents'
    assert float(Serial(*smooth, Dense(1.0, 0.1))(x).ntk[0, 0]) == pytest.approx(3.175645, abs=2e-6)


@pytest.mark.parametrize("name", ["relu", "gelu", "conv_flatten", "pooled", "conv_residual"])
def test_blocks_pairs_and_symmetry_change_nothing(name, monkeypatch) -> None:
    """Any size of blocks gives the same kernels; so do single pairs, and half of the matrix."""
    x = inputs_of(name)
    x = torch.cat([x, -2 * x, x[:1]])  # the last equals the first
    kernel = NETS[name]
    whole = kernel(x, x.clone())
    monkeypatch.setattr(serial, "BLOCK", {"vector": 14, "diagonal": 36 * 4, "full": 36**2 * 9})
    for found in (kernel(x), kernel(x, x.clone())):
        assert found.nngp == pytest.approx(whole.nngp, abs=1e-13)
        assert found.ntk == pytest.approx(whole.ntk, abs=1e-13)
    pairs = kernel.pairs(x, x.roll(1, 0))
    assert pairs.ntk == pytest.approx(whole.ntk.roll(-1, 0).diagonal().roll(1), abs=1e-13)
    assert float(whole.ntk[0, -1]) == pytest.approx(float(whole.ntk[0, 0]), abs=1e-13)
    assert torch.equal(kernel(x, ntk=False).nngp, kernel(x).nngp)
    assert kernel(x, ntk=False).ntk.numel() == 0
    assert torch.linalg.eigvalsh(whole.ntk)[0] > -1e-12


def test_the_series_is_exact_for_smooth_activations_and_says_when_it_is_not() -> None:
    x = inputs(4, 5)
    closed = Serial(dense(), Erf(), dense())(x)
    series = Serial(dense(), Activation(torch.erf, degree=80), dense())(x)
    assert series.nngp == pytest.approx(closed.nngp, abs=1e-9)
    assert series.ntk == pytest.approx(closed.ntk, abs=1e-7)
    with pytest.warns(UserWarning, match="lies beyond degree 4 of the series of Activation"):
        rough = Serial(dense(), Activation(torch.relu, degree=4), dense())(x)
    kinked = Serial(dense(), ReLU(), dense())(x).nngp
    error = (rough.nngp - kinked).abs()
    assert 1e-5 < error.max() < 5e-3 and error.diagonal().max() < 1e-12  # variances are exact


def tangent_error(kernel: Serial, x: Tensor, width: int, networks: int) -> float:
    """Root mean square over networks and pairs of the empirical tangent kernel's error."""
    exact = kernel(x).ntk.float()
    errors = []
    for seed in range(networks):
        torch.manual_seed(seed)
        net = kernel.network(tuple(x.shape[1:]), width)
        errors.append(empirical_ntk(net, x.float()) - exact)
    return float(torch.stack(errors).square().mean().sqrt())


@pytest.mark.cpu_seconds(5)
@pytest.mark.parametrize("name", ["relu", "residual", "pooled"])
def test_finite_networks_come_near_as_one_over_the_root_of_the_width(name) -> None:
    """The error of one network falls as width^(−1/2). The root mean square over 80 networks has a
    relative standard error of about 0.1, so the measured power has one of 0.06: rates of 0 and −1
    are eight of them away, and a false alarm is rarer than 1 in 1,000."""
    x = inputs(2, 2, 4, 4) if name == "pooled" else inputs(3, 5)
    first, second = (tangent_error(NETS[name], x, width, 80) for width in (16, 128))
    assert 0.3 < math.log(first / second) / math.log(8) < 0.7


def test_the_empirical_kernel_is_that_of_the_jacobian() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(8, 3)).double()
    net[0].bias.requires_grad_(False)
    x, y = torch.randn(3, 1, 4, 4).double(), torch.randn(2, 1, 4, 4).double()

    def rows(z: Tensor) -> Tensor:
        trained = [p for p in net.parameters() if p.requires_grad]
        found = []
        for value in net(z).flatten():
            grads = torch.autograd.grad(value, trained, retain_graph=True)
            found.append(torch.cat([g.flatten() for g in grads]))
        return torch.stack(found).view(len(z), 3, -1)

    exact = torch.einsum("nap,mbp->nmab", rows(x), rows(y))
    assert empirical_ntk(net, x, y, whole=True) == pytest.approx(exact.detach(), abs=1e-12)
    mean = exact.diagonal(dim1=2, dim2=3).mean(-1).detach()
    assert empirical_ntk(net, x, y) == pytest.approx(mean, abs=1e-12)
    with pytest.raises(ValueError, match="no parameter that requires gradients"):
        empirical_ntk(nn.ReLU(), x)


def test_networks_train_as_stacks() -> None:
    """The batched layer of all members gives what each member gives alone."""
    kernel = NETS["relu"]
    batched, loop = (
        Stack(lambda: kernel.network(5, 16, outputs=2), 3, seed=1, execution=how)
        for how in ("batched", "loop")
    )
    x = inputs(4, 5).float()
    with torch.no_grad():
        alone = torch.stack([member(x) for member in loop.members()])
        assert batched(x) == pytest.approx(alone, abs=1e-5)
        assert loop(x) == pytest.approx(alone, abs=1e-5)


def test_what_has_no_closed_form_is_refused() -> None:
    x, image = inputs(2, 5), inputs(2, 2, 6, 6)
    with pytest.raises(ValueError, match=r"layer 0, ReLU\(\), must follow a layer of weights"):
        Serial(ReLU(), dense())(x)
    with pytest.raises(ValueError, match="must follow a layer of weights"):
        Serial(dense(), ReLU(), LayerNorm(), dense())(x)
    with pytest.raises(ValueError, match=r"layer 1, Dense\(.*put Flatten\(\)"):
        Serial(conv(), dense())(image)
    with pytest.raises(ValueError, match="needs images"):
        Serial(conv(), Flatten(), dense())(x)
    with pytest.raises(ValueError, match="ends with pixels"):
        Serial(conv())(image)
    with pytest.raises(ValueError, match="does not end in new weights"):
        Serial(dense(), Residual(ReLU()), dense())(x)
    with pytest.raises(ValueError, match="larger than the 6x6 pixels"):
        Serial(conv(7, 1, "valid"), Flatten(), dense())(image)
    with pytest.raises(ValueError, match="outputs of shapes"):
        Serial(Residual(Serial(dense(), ReLU(), dense()))).build((5,), 8)
    with pytest.raises(ValueError, match="Serial takes layers"):
        Serial(dense(), nn.ReLU())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"a network ends in Dense\(\)"):
        Serial(dense(), ReLU()).network(5, 8)


def test_bad_numbers_are_refused(monkeypatch) -> None:
    with pytest.raises(ValueError, match="`weight_std` of Dense must be > 0, got -1"):
        Dense(-1.0)
    with pytest.raises(ValueError, match="symmetric for odd windows only, got size 2"):
        Conv(2)
    with pytest.raises(ValueError, match="'same', 'valid' or 'circular', got 'full'"):
        Conv(3, padding="full")
    with pytest.raises(ValueError, match="1 values that are not finite"):
        NETS["relu"](torch.tensor([[0.0, math.nan]]))
    with pytest.raises(ValueError, match="must have the same shape but for N"):
        NETS["relu"](inputs(2, 5), inputs(2, 4))
    monkeypatch.setattr(memory, "free_bytes", lambda device="cpu": 10_000)
    with pytest.raises(ValueError, match=r"kernels of 3 × 3 inputs, 1,296 numbers per pair of 6x6"):
        NETS["pooled"](inputs_of("pooled"))


def test_inputs_of_zeros_have_kernels() -> None:
    x = torch.stack([torch.zeros(5).double(), inputs(5)])
    found = Serial(Dense(), ReLU(), Dense())(x)
    assert found.ntk[0].tolist() == [0.0, 0.0] and found.ntk.isfinite().all()
