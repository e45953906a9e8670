"""How arms are called, and how a difference over seeds or splits is said."""

from __future__ import annotations

from polymode.metrics.paired import Difference


def name_of(alpha: float) -> str:
    """Return the arm that has this α.

    >>> name_of(0.0), name_of(0.5)
    ('α = 0', 'α = 0.5')
    """
    return f"α = {alpha:g}"


def said(gap: Difference | None, what: str, over: str = "seeds", digits: int = 3) -> str:
    """Return a difference with its 95 % interval.

    >>> said(Difference(-0.1, 0.02, 5, -0.15, -0.05), "NLL")
    'NLL: −0.100 [−0.150, −0.050], 5 seeds'
    """
    if gap is None:
        return f"{what}: not run"
    text = f"{gap.mean:+.{digits}f}"
    if gap.low is not None and gap.high is not None:
        text += f" [{gap.low:+.{digits}f}, {gap.high:+.{digits}f}]"
    return f"{what}: {text.replace('-', '−')}, {gap.n} {over}"
