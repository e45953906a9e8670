"""Vision transformer: an image as a sequence of patches.

    z_0 = [token; patches E] + positions
    z'_l = z_{l-1} + attention(norm(z_{l-1})),    z_l = z'_l + W_2 gelu(W_1 norm(z'_l))
    attention: softmax(Q K^T / sqrt(d)) V for each head, heads of d = dim / heads features

Source: A. Dosovitskiy et al., "An image is worth 16x16 words: transformers for image recognition at
scale", ICLR 2021. Linear layers start as torch's do, token and positions at N(0, 0.02^2).

Attention is written out: torch's fused kernel has no second derivative, no forward derivative and
no `vmap` on a processor. `B` batch, `T` patches and token, `K` outputs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from polymode.core.checks import Count, Few, Probability, Shape, check_call
from polymode.nets.sizes import check_image, check_sizes
from polymode.tracing.modules import not_too_large


@not_too_large()
def vit(
    input_shape: Shape,
    num_outputs: int,
    *,
    patch: Count = 4,
    dim: Count = 64,
    depth: Few = 4,
    heads: Count = 4,
    hidden: Count | None = None,
    pool: str = "token",
    dropout: Probability = 0.0,
) -> nn.Module:
    """Return a small vision transformer.

    142,026 parameters for (3, 32, 32) and 10 outputs, 139,018 for (1, 28, 28). With the sizes of
    ViT-B/16 (patch=16, dim=768, depth=12, heads=12, hidden=3072, 224x224 pixels, 1,000 outputs) it
    has that network's 86,567,656.

    Args:
        input_shape: (C, H, W), H and W multiples of `patch`.
        num_outputs: K >= 1, `task.num_outputs`.
        patch: side of a patch in pixels.
        dim: features of a patch.
        depth: blocks of attention and MLP.
        heads: of attention; must divide `dim`.
        hidden: units of the MLPs; by default 2 dim.
        pool: "token" (the paper's: the outputs are read from an extra token) or "mean" (from the
            mean of the patches; without that token).
        dropout: probability in [0, 1) that a feature is dropped after the positions are added and
            at the end of attention and MLP, and a unit within the MLP.

    Returns:
        module from (B, C, H, W) to (B, K).

    >>> sum(p.numel() for p in vit((3, 32, 32), 10).parameters())
    142026
    """
    check_call(vit, locals())
    check_sizes("vit", input_shape, num_outputs, dropout)
    hidden = 2 * dim if hidden is None else hidden
    channels, height, width = check_image("vit", input_shape, smallest=1)
    if height % patch or width % patch:
        raise ValueError(
            f"`patch` of vit must divide the sides of the images, {height}x{width}, got {patch};"
            f" {_divisors(height, width)} do"
        )
    if dim % heads:
        raise ValueError(
            f"`heads` of vit must divide dim={dim}, got {heads}; {_divisors(dim, dim)} do"
        )
    if pool not in ("token", "mean"):
        raise ValueError(f'`pool` of vit must be "token" or "mean", got {pool!r}')
    patches = (height // patch, width // patch)
    sizes = _Sizes(patch, dim, depth, heads, hidden)
    return ViT(channels, patches, num_outputs, sizes, pool, dropout)


def _divisors(a: int, b: int) -> str:
    return ", ".join(str(n) for n in range(1, min(a, b) + 1) if a % n == b % n == 0)


class Attention(nn.Module):
    """Every patch looks at all patches, in several heads."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, (dim // heads) ** -0.5
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, z: Tensor) -> Tensor:
        projected = self.qkv(z).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        queries, keys, values = projected.unbind(0)  # (B, heads, T, d)
        weights = torch.softmax(self.scale * queries @ keys.transpose(-2, -1), dim=-1)
        return self.out((weights @ values).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """z + attention(norm(z)), then the same with an MLP."""

    def __init__(self, dim: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(dim), Attention(dim, heads)
        self.norm2, self.linear1 = nn.LayerNorm(dim), nn.Linear(dim, hidden)
        self.activation, self.linear2 = nn.GELU(), nn.Linear(hidden, dim)
        self.dropout = nn.Dropout(dropout) if dropout > 0 else nn.Identity()

    def forward(self, z: Tensor) -> Tensor:
        z = z + self.dropout(self.attention(self.norm1(z)))
        h = self.dropout(self.activation(self.linear1(self.norm2(z))))
        return z + self.dropout(self.linear2(h))


class _Sizes(NamedTuple):
    """Side of a patch, features, blocks, heads, and units of the MLPs."""

    patch: int
    dim: int
    depth: int
    heads: int
    hidden: int


class ViT(nn.Module):
    """Patches, positions, blocks, norm, linear layer."""

    def __init__(
        self,
        channels: int,
        patches: tuple[int, int],
        num_outputs: int,
        sizes: _Sizes,
        pool: str,
        dropout: float,
    ) -> None:
        super().__init__()
        patch, dim, depth, heads, hidden = sizes
        self.patches, self.patch, self.pool = patches, patch, pool
        self.embed = nn.Linear(channels * patch**2, dim)
        length = patches[0] * patches[1]
        if pool == "token":
            self.token = nn.Parameter(0.02 * torch.randn(1, 1, dim))
            length += 1
        self.positions = nn.Parameter(0.02 * torch.randn(1, length, dim))
        self.dropout = nn.Dropout(dropout) if dropout > 0 else nn.Identity()
        self.blocks = nn.Sequential(*[Block(dim, heads, hidden, dropout) for _ in range(depth)])
        self.norm, self.linear = nn.LayerNorm(dim), nn.Linear(dim, num_outputs)

    def cut(self, x: Tensor) -> Tensor:
        """Return the patches, row by row, (B, T, C patch patch)."""
        (rows, columns), side = self.patches, self.patch
        x = x.unflatten(3, (columns, side)).unflatten(2, (rows, side))  # (B, C, rows, side, ...)
        return x.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        z = self.embed(self.cut(x))
        if self.pool == "token":
            z = torch.cat([self.token.expand(z.shape[0], -1, -1), z], dim=1)
        z = self.norm(self.blocks(self.dropout(z + self.positions)))
        return self.linear(z[:, 0] if self.pool == "token" else z.mean(1))
