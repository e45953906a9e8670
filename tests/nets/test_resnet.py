from __future__ import annotations

import doctest
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from polymode.nets import resnet, resnet8, resnet18, resnet20
from polymode.nets.filter_response import FilterResponseNorm2d
from polymode.nets.resnet import FixupBlock

CIFAR = (3, 32, 32)


def count(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


def images(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("name", ["resnet", "filter_response"])
def test_docstring_examples(name):
    flags = doctest.ELLIPSIS
    assert doctest.testmod(sys.modules[f"polymode.nets.{name}"], optionflags=flags).failed == 0


@pytest.mark.parametrize(
    ("make", "options", "expected"),
    [
        (resnet8, {}, 78_042),
        (resnet20, {}, 272_474),
        (resnet20, {"shortcut": "padding"}, 269_722),
        (resnet20, {"norm": "filter_response", "activation": "silu"}, 273_258),
        (resnet20, {"norm": "filter_response", "activation": "silu", "bias": True}, 274_042),
        (resnet20, {"norm": None, "shortcut": "padding"}, 268_393),
        (resnet18, {}, 11_173_962),
        (resnet18, {"preactivation": True}, 11_171_146 + 2 * 512),
    ],
)
def test_parameter_count(make, options, expected):
    """As published, except that pre-activation has the norm at the end (2 x 512) that the public
    code without it (11,171,146) leaves out.
    """
    with torch.device("meta"):
        assert count(make(CIFAR, 10, **options)) == expected


def test_names_are_those_of_public_checkpoints():
    with torch.device("meta"):
        names = list(resnet18(CIFAR, 10).state_dict())
    block = [f"{k}{n}" for n in (1, 2) for k in ("conv", "bn")]
    parts = ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
    expected = ["conv1.weight", *(f"bn1.{part}" for part in parts)]
    for stage in (1, 2, 3, 4):
        for k in (0, 1):
            modules = block + (["shortcut.0", "shortcut.1"] if stage > 1 and k == 0 else [])
            for module in modules:
                kinds = ["weight"] if module in ("conv1", "conv2", "shortcut.0") else parts
                expected += [f"layer{stage}.{k}.{module}.{kind}" for kind in kinds]
    assert names == [*expected, "linear.weight", "linear.bias"]


def test_sides_are_halved_and_channels_doubled():
    net, x = resnet18((3, 16, 24), 10, width=4), torch.randn(2, 3, 16, 24)
    shapes = []
    for k in (1, 2, 3, 4):
        stage = net.get_submodule(f"layer{k}")
        stage.register_forward_hook(lambda module, args, out: shapes.append(tuple(out.shape)))
    assert net(x).shape == (2, 10)
    assert shapes == [(2, 4, 16, 24), (2, 8, 8, 12), (2, 16, 4, 6), (2, 32, 2, 3)]


def test_block_equals_the_formula():
    """phi(norm(conv(phi(norm(conv(x))))) + norm(conv1x1(x))), written with functions."""
    block = resnet8((3, 8, 8), 2, width=4, activation="silu").double().layer2[0]
    x = images(5, 4, 8, 8)

    def batch(h: torch.Tensor) -> torch.Tensor:
        var, mean = torch.var_mean(h, (0, 2, 3), correction=0, keepdim=True)
        return (h - mean) / torch.sqrt(var + 1e-5)

    h = F.silu(batch(F.conv2d(x, block.conv1.weight, stride=2, padding=1)))
    h = batch(F.conv2d(h, block.conv2.weight, padding=1))
    expected = F.silu(h + batch(F.conv2d(x, block.shortcut[0].weight, stride=2)))
    torch.testing.assert_close(block(x), expected, rtol=1e-12, atol=1e-12)


def test_preactivation_block_equals_the_formula():
    """conv(phi(norm(conv(phi(norm(x)))))) + x, in evaluation with statistics 0 and 1."""
    net = resnet8((3, 8, 8), 2, width=4, preactivation=True).double().eval()
    block, x = net.layer1[0], images(5, 4, 8, 8)
    scale = (1 + 1e-5) ** -0.5
    h = F.conv2d(F.relu(scale * x), block.conv1.weight, padding=1)
    expected = F.conv2d(F.relu(scale * h), block.conv2.weight, padding=1) + x
    torch.testing.assert_close(block(x), expected, rtol=1e-12, atol=1e-12)
    assert isinstance(net.bn1, nn.Identity) and isinstance(net.finish[0], nn.BatchNorm2d)


def test_padding_takes_every_second_pixel():
    shortcut = resnet8((3, 8, 8), 2, width=4, shortcut="padding").layer2[0].shortcut
    x = images(2, 4, 8, 6)
    out = shortcut(x)
    assert out.shape == (2, 8, 4, 3)
    assert torch.equal(out[:, :4], x[:, :, ::2, ::2]) and not out[:, 4:].any()


def test_filter_response_norm_equals_the_formula():
    norm, x = FilterResponseNorm2d(3).double(), images(2, 3, 4, 5)
    with torch.no_grad():
        norm.gamma += 0.5 * images(1, 3, 1, 1)
        norm.beta += images(1, 3, 1, 1)
        norm.tau -= 0.2
    for b in range(2):
        for c in range(3):
            size = (x[b, c].square().sum() / 20 + 1e-6).sqrt()
            y = norm.gamma[0, c, 0, 0] * x[b, c] / size + norm.beta[0, c, 0, 0]
            expected = torch.where(y > -0.2, y, -0.2)
            torch.testing.assert_close(norm(x)[b, c], expected, rtol=1e-12, atol=1e-12)
    assert (norm(x) == -0.2).any()


@pytest.mark.parametrize("norm", ["batch", "filter_response"])
def test_norms_make_blocks_blind_to_the_scale_of_weights(norm):
    net, x = resnet8((3, 8, 8), 2, width=4, norm=norm).double(), 10 * images(4, 3, 8, 8)
    before = net(x)
    with torch.no_grad():
        net.layer1[0].conv1.weight *= 7.0
    torch.testing.assert_close(net(x), before, rtol=1e-3, atol=1e-4)


def test_fixup_starts_as_its_paper_says():
    """Branches and outputs 0; first convolutions He's times L^(-1/2), L blocks; scalars 0 and 1.

    The standard deviation of the 36,864 weights of a convolution of 64 to 64 channels is within
    1.9 % (five standard errors) of its expectation: false alarms, one in 1.7 million for each.
    """
    net, x = resnet18((3, 8, 8), 10, norm=None), torch.randn(2, 3, 8, 8)
    blocks = [m for m in net.modules() if isinstance(m, FixupBlock)]
    assert len(blocks) == 8
    assert not net(x).any()
    h = F.relu(net.conv1(x))
    assert torch.equal(net.layer1(h), h)
    for block in blocks:
        assert not block.conv2.weight.any()
        expected = (2 / (block.conv1.out_channels * 9)) ** 0.5 * 8**-0.5
        assert abs(block.conv1.weight.std().item() / expected - 1) < 0.019
        shifts = (block.shift1, block.shift2, block.shift3, block.shift4)
        assert block.scale.weight.item() == 1 and not any(s.bias.item() for s in shifts)


def test_fixup_block_equals_the_formula():
    block, x = resnet8((3, 8, 8), 2, width=4, norm=None).double().layer2[0], images(2, 4, 8, 8)
    with torch.no_grad():
        for parameter in block.parameters():
            parameter += 0.1 * images(*parameter.shape)
    b = [s.bias for s in (block.shift1, block.shift2, block.shift3, block.shift4)]
    h = F.relu(F.conv2d(x + b[0], block.conv1.weight, stride=2, padding=1) + b[1])
    h = F.conv2d(h + b[2], block.conv2.weight, padding=1) * block.scale.weight + b[3]
    expected = F.relu(h + F.conv2d(x + b[0], block.shortcut[0].weight, stride=2))
    torch.testing.assert_close(block(x), expected, rtol=1e-12, atol=1e-12)


def test_head_can_start_at_zero():
    x = torch.randn(2, 3, 8, 8)
    assert not resnet8((3, 8, 8), 4, zero_head=True)(x).any()
    assert resnet8((3, 8, 8), 4)(x).any()


def test_dropout_only_where_asked():
    kinds = [type(m) for m in resnet8((3, 8, 8), 4).modules()]
    assert nn.Dropout not in kinds and nn.Dropout2d not in kinds
    kinds = [type(m) for m in resnet8((3, 8, 8), 4, dropout=0.1).modules()]
    assert kinds.count(nn.Dropout2d) == 3 and kinds.count(nn.Dropout) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"norm": "group"}, r"\"batch\", \"filter_response\" or None \(FixUp\), got 'group'"),
        ({"activation": "swich"}, r"Unknown activation 'swich' of resnet"),
        ({"shortcut": "pad"}, r"\"projection\" or \"padding\", got 'pad'"),
        ({"width": 0}, r"`width` of resnet must be an integer >= 1, got 0"),
        ({"width": 4.0}, r"`width` of resnet must be an integer >= 1, got 4.0"),
        ({"blocks": 3}, r"sequence \(each an integer from 1 to 10,000\), got 3"),
        ({"blocks": ()}, r"`blocks` of resnet has no stage"),
        ({"blocks": (2, -1)}, r"each an integer from 1 to 10,000\), got \(2, -1\)"),
        ({"norm": None, "preactivation": True}, r"`preactivation` of resnet must be False"),
        ({"norm": None, "bias": True}, r"`bias` of resnet must be False with norm=None, got True"),
        ({"dropout": 1}, r"`dropout` of resnet must be a number in \[0, 1\), got 1"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        resnet((3, 8, 8), 4, **options)
