r"""Attacks without gradients: random noise, and the square attack.

Noise needs no attacker: the corners of the L∞ ball, x ± ε with random signs, or points on the L2
sphere; of several draws the best is kept. An attack that does not beat it has no useful gradients,
the first sign of gradient masking (Athalye et al. 2018, section 3).

The square attack is a random search by squares of ±ε in L∞.

It starts from vertical stripes of ±ε. At each query, a square of side h at a random place is set to
x ± ε, one random sign per channel; it stays if the loss rises. Its area is a share p of the image
that is halved at 10, 50, 200, 500, 1000, 2000, 4000, 6000 and 8000 of 10,000 queries, and at the
same fractions of any other number. Inputs that are not images, D numbers, are treated as images of
1 × D. It uses predictions only. Where it succeeds and gradients did not, gradients were useless:
the flag `black_box` of AutoAttack.

Limits of the square attack: L∞ only; for a posterior that draws, all queries are judged with the
same samples.

References: A. Athalye, N. Carlini, D. Wagner, Obfuscated gradients give a false sense of security,
ICML 2018; M. Andriushchenko, F. Croce, N. Flammarion, M. Hein, Square attack: a query-efficient
black-box adversarial attack via random search, ECCV 2020, algorithms 1 and 2; the flag: F. Croce,
M. Hein, Reliable evaluation of adversarial robustness with an ensemble of diverse parameter-free
attacks, ICML 2020.

`B` batch, `C` channels, `H`, `W` sides.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from polymode.adversary.attack_kinds import KINDS, check_steps
from polymode.adversary.search import Search

HALVED = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)  # of 10,000 queries


@KINDS.register("noise", summary="random signs of size eps", gradients=False, keep="best")
def noise(search: Search, *, draws: int = 1) -> list[Tensor]:
    """Try random points at distance ε; return the inputs on the way.

    Args:
        draws: random points per example, ≥ 1; the best is kept.
    """
    check_steps("noise", draws=draws)
    ball = search.ball
    if not math.isfinite(ball.eps):
        raise ValueError("`eps` of noise must be finite: it is the size of the noise, got inf")
    path = [ball.centre]
    for number in range(draws):
        moved = torch.stack(
            [_direction(ball.centre[0], ball.norm, s) for s in search.streams("noise", number)]
        )
        path.append(ball.project(ball.centre + ball.eps * moved.to(ball.centre)))
        search.look(path[-1])
    return path


@KINDS.register(
    "square", summary="random search by squares, no gradients", gradients=False, keep="best"
)
def square(search: Search, *, queries: int = 500, area: float = 0.8) -> list[Tensor]:
    """Search at random; return the inputs at the start and at the end.

    Args:
        queries: predictions per example, ≥ 1. area: p, share of the first squares, in (0, 1]; 0.8
            as in AutoAttack.
    """
    check_steps("square", queries=queries)
    _check(search, area)
    centre, eps = search.ball.centre, search.ball.eps
    shape = tuple(centre.shape[1:]) if centre.dim() == 4 else (1, 1, centre[0].numel())
    channels, height, width = shape
    streams = search.streams("square")
    stripes = _signs([torch.rand(channels, 1, width, generator=stream) for stream in streams])
    draws = torch.stack([torch.rand(queries, 2 + channels, generator=s) for s in streams], 1)
    moved = (eps * stripes).expand(-1, *shape).reshape(centre.shape)
    x = start = search.ball.project(centre + moved.to(centre))
    best = search.look(x)
    for number in range(1, queries):
        sides = sides_of(area * share_of(number, queries), height, width)
        mask, signs = _squares(draws[number].to(centre.device), sides, shape)
        tried = torch.where(mask, centre.view(-1, *shape) + eps * signs, x.view(-1, *shape))
        tried = search.ball.project(tried.reshape(centre.shape).to(centre))
        trial = search.look(tried, record=False)
        better = trial.rise > best.rise
        x = torch.where(better.view(-1, *[1] * (x.dim() - 1)), tried, x)
        best = best._replace(rise=torch.where(better, trial.rise, best.rise))
    if queries > 1:
        search.look(x)
    return [start, x]


def check_norm(norm: str) -> None:
    """Refuse any ball but that of L∞."""
    if norm != "linf":
        raise ValueError(f"`norm` of square must be 'linf', got '{norm}'")


def _check(search: Search, area: float) -> None:
    check_norm(search.ball.norm)
    if not math.isfinite(search.ball.eps):
        raise ValueError("`eps` of square must be finite: it is the size of its squares, got inf")
    if not 0 < area <= 1:
        raise ValueError(f"`area` of square must be in (0, 1], got {area!r}")


def share_of(number: int, queries: int) -> float:
    """Return the factor by which the area has shrunk at a query.

    >>> share_of(1, 10_000), share_of(300, 10_000), share_of(9000, 10_000) == 2.0**-9
    (1.0, 0.125, True)
    """
    return 2.0 ** -sum(number * 10_000 / queries > edge for edge in HALVED)


def sides_of(share: float, height: int, width: int) -> tuple[int, int]:
    """Return the sides of a window with this share of the image, at least one pixel.

    >>> sides_of(0.25, 28, 28), sides_of(0.25, 1, 20), sides_of(1e-9, 8, 8)
    ((14, 14), (1, 5), (1, 1))
    """
    if height == 1:
        return 1, max(1, round(share * width))
    side = max(1, round(math.sqrt(share * height * width)))
    return min(side, height), min(side, width)


def _signs(draws: list[Tensor]) -> Tensor:
    return torch.where(torch.stack(draws) < 0.5, -1.0, 1.0)


def _squares(
    draws: Tensor, sides: tuple[int, int], shape: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """Return where the squares are, (B, 1, H, W), and their signs (B, C, 1, 1).

    Args:
        draws: (B, 2 + C) in [0, 1): place along either side, one per channel for the sign.
    """
    inside = []
    for axis, side in enumerate(sides):
        first = (draws[:, axis, None] * (shape[1 + axis] - side + 1)).floor()
        place = torch.arange(shape[1 + axis], device=draws.device)
        inside.append((place >= first) & (place < first + side))
    mask = inside[0][:, None, :, None] & inside[1][:, None, None, :]
    return mask, _signs([draws[:, 2:]])[0][:, :, None, None]


def _direction(like: Tensor, norm: str, stream: torch.Generator) -> Tensor:
    drawn = torch.randn(like.shape, generator=stream, dtype=torch.float64)
    return drawn.sign() if norm == "linf" else drawn / drawn.norm()
