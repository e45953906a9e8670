"""Numbers and tables as plain text; the report uses the same digits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

_HUGE = 1e9  # from here on in scientific notation: only the magnitude matters


def decimals_for(values: Iterable[float | None], errors: Iterable[float | None] = ()) -> int:
    """Return the decimals for a column: three, more for small errors, fewer for large values.

    >>> decimals_for([0.974], [0.0042]), decimals_for([0.1], [0.0002]), decimals_for([41386.0])
    (3, 4, 0)
    """
    positive = [error for error in errors if error]
    wanted = max(3, math.ceil(-math.log10(min(positive)))) if positive else 3
    largest = max((abs(value) for value in values if value is not None), default=0.0)
    digits = 1 + math.floor(math.log10(largest)) if largest >= 1 else 1
    return max(0, min(wanted, 5, 5 - digits))


def number(value: float | None, error: float | None, decimals: int, missing: str = "n/a") -> str:
    """Return "value ± standard error" with the given decimals, and a true minus.

    >>> number(0.97421, 0.00113, 3), number(None, None, 3), number(-41386.0, None, 0)
    ('0.974 ± 0.001', 'n/a', '−41,386')
    >>> number(9.518e35, 2.93e34, 0)
    '9.52e+35 ± 2.9e+34'
    """
    if value is None:
        return missing
    if abs(value) >= _HUGE:
        text = f"{value:.3g}".replace("-", "−")
        return text if error is None else f"{text} ± {error:.2g}"
    text = f"{value:,.{decimals}f}".replace("-", "−")
    return text if error is None else f"{text} ± {error:.{decimals}f}"


def align(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table with the first column aligned left and the others right.

    >>> print(align(["method", "NLL"], [["map", "0.126"], ["deep_ensemble", "0.092"]]))
    method           NLL
    map            0.126
    deep_ensemble  0.092
    """
    lines = [list(header), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    texts = []
    for line in lines:
        cells = [line[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        texts.append("  ".join(cells).rstrip())
    return "\n".join(texts)
