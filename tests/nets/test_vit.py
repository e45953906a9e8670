from __future__ import annotations

import doctest
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from polymode.nets import vit
from polymode.nets.vit import Attention, Block


def count(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


def test_docstring_examples():
    assert doctest.testmod(sys.modules["polymode.nets.vit"]).failed == 0


@pytest.mark.parametrize(
    ("dim", "heads", "expected"), [(192, 3, 5_717_416), (384, 6, 22_050_664), (768, 12, 86_567_656)]
)
def test_parameter_count_of_the_published_sizes(dim, heads, expected):
    """ViT-Ti/16, ViT-S/16 and ViT-B/16 for ImageNet."""
    with torch.device("meta"):
        net = vit((3, 224, 224), 1000, patch=16, dim=dim, depth=12, heads=heads, hidden=4 * dim)
    assert count(net) == expected


def test_mean_pooling_saves_the_token_and_its_position():
    token, mean = (vit((3, 32, 32), 10, pool=pool) for pool in ("token", "mean"))
    assert count(token) == 142_026
    assert count(token) - count(mean) == 2 * 64


def test_attention_is_torchs():
    """Against the fused function, in float64."""
    attention = Attention(dim=12, heads=3).double()
    z = torch.randn(2, 5, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    q, k, v = (
        part.unflatten(-1, (3, 4)).transpose(1, 2) for part in attention.qkv(z).chunk(3, dim=-1)
    )
    expected = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 5, 12)
    torch.testing.assert_close(attention(z), attention.out(expected), rtol=1e-12, atol=1e-12)


def test_block_is_torchs_encoder_layer():
    """The pre-norm encoder layer of torch, with the same weights."""
    block = Block(dim=12, heads=3, hidden=20, dropout=0.0).double()
    layer = nn.TransformerEncoderLayer(
        12, 3, 20, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    ).double()
    names = {
        "self_attn.in_proj_": "attention.qkv.", "self_attn.out_proj.": "attention.out.",
        "linear1.": "linear1.", "linear2.": "linear2.", "norm1.": "norm1.", "norm2.": "norm2.",
    }  # fmt: skip
    mine = dict(block.named_parameters())
    with torch.no_grad():
        for theirs, name in names.items():
            for kind in ("weight", "bias"):
                layer.get_parameter(theirs + kind).copy_(mine.pop(name + kind))
    assert not mine
    z = torch.randn(2, 5, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(block(z), layer(z), rtol=1e-12, atol=1e-12)


def test_patches_are_those_of_unfold():
    net, x = vit((2, 8, 12), 3, patch=4), torch.randn(3, 2, 8, 12)
    assert torch.equal(net.cut(x), F.unfold(x, 4, stride=4).transpose(1, 2))


def test_without_positions_the_order_of_patches_does_not_matter():
    net = vit((1, 8, 8), 3, patch=4, dim=8, heads=2, depth=2).double()
    x = torch.randn(2, 1, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    turned = x.roll(4, dims=3)  # exchanges the two columns of patches
    assert (net(x) - net(turned)).abs().max() > 1e-6
    with torch.no_grad():
        net.positions.zero_()
    torch.testing.assert_close(net(x), net(turned), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 3}, r"`heads` of vit must divide dim=64, got 3; 1, 2, 4, 8, 16, 32, 64 do"),
        ({"patch": 5}, r"divide the sides of the images, 28x28, got 5; 1, 2, 4, 7, 14, 28 do"),
        ({"patch": 0}, r"`patch` of vit must be an integer >= 1, got 0"),
        ({"depth": 0}, r"`depth` of vit must be an integer from 1 to 10,000, got 0"),
        ({"hidden": 0}, r"`hidden` of vit must be an integer >= 1 or None, got 0"),
        ({"dim": "64"}, r"`dim` of vit must be an integer >= 1, got '64'"),
        ({"pool": "max"}, r"`pool` of vit must be \"token\" or \"mean\", got 'max'"),
        ({"dropout": 1.0}, r"`dropout` of vit must be a number in \[0, 1\), got 1.0"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        vit((1, 28, 28), 10, **options)
