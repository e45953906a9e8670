"""Arguments at the border: what annotations allow, and the one line for what they do not."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from polymode.core.checks import (
    Count,
    Meaning,
    OnlyTensor,
    Probability,
    Range,
    Seed,
    as_numbers,
    check_call,
    shown,
)


def function(
    number: float = 1.0,
    whole: int = 1,
    seed: Seed = 0,
    many: Sequence[Count] = (1,),
    pair: tuple[int, float] = (1, 2.0),
    values: Tensor | float = 1.0,
    only: OnlyTensor | None = None,
    flag: bool = True,
    kind: Literal["a", "b"] = "a",
    table: Mapping[str, int] | None = None,
    call: Callable[[], Any] | None = None,
    rate: Probability = 0.0,
    size: Annotated[int, Range(">= 2", lambda n: n >= 2), Meaning("two or more")] = 2,
    anything: Any = None,
    *rest: int,
    **options: int,
) -> None:
    check_call(function, locals())


@pytest.mark.parametrize(
    "given",
    [
        {"number": 3}, {"number": np.float32(2)}, {"number": torch.tensor(0.5)},
        {"whole": np.int64(4)}, {"many": [1, 2]}, {"many": torch.tensor([1, 2])},
        {"many": np.array([3])}, {"pair": [1, 2]}, {"values": [1.0, 2.0]}, {"values": np.ones(2)},
        {"values": 2}, {"only": torch.ones(2)}, {"only": None}, {"flag": np.True_}, {"kind": "b"},
        {"table": {"a": 1}}, {"call": int}, {"rate": 0.5}, {"size": 2}, {"anything": object()},
        {"number": math.nan}, {"number": math.inf}, {"other": "x"},
    ],
)  # fmt: skip
def test_what_annotations_allow_is_taken(given) -> None:
    function(**given)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"number": True}, "`number` of function must be a number, got True"),
        ({"number": "1"}, "`number` of function must be a number, got '1'"),
        ({"number": 10**30}, "`number` of function must be a number, got 1000"),
        ({"whole": 2.0}, "`whole` of function must be an integer, got 2.0"),
        ({"whole": 2**63}, "`whole` of function must be an integer, got 9223372036854775808"),
        ({"seed": -1}, "`seed` of function must be an integer >= 0, got -1"),
        ({"many": (1, 0)}, r"a sequence \(each an integer >= 1\), got \(1, 0\)"),
        ({"many": "ab"}, "a sequence"),
        ({"pair": (1, 2, 3)}, "`pair` of function must be a pair"),
        ({"values": torch.ones(2, device="meta")}, r"shape \(2,\) .* without values \(meta\)"),
        ({"values": torch.ones(2, dtype=torch.complex64)}, "a tensor of real numbers or a number"),
        ({"values": ["a"]}, "a tensor of real numbers or a number"),
        ({"only": [1.0]}, "a tensor of real numbers of torch or None"),
        ({"flag": 1}, "True or False, got 1"),
        ({"kind": "c"}, "'a' or 'b', got 'c'"),
        ({"table": {1: 1}}, "a dictionary or None"),
        ({"call": nn}, "a function or None"),
        ({"rate": 1.0}, r"a number in \[0, 1\), got 1.0"),
        ({"size": 1}, "`size` of function must be two or more, got 1"),
        ({"many": nn.Sequential(nn.Linear(1, 1), nn.ReLU())}, "got a Sequential$"),
    ],
)  # fmt: skip
def test_what_annotations_do_not_allow_is_refused_in_one_line(given, line) -> None:
    with pytest.raises(ValueError, match=line) as refused:
        function(**given)
    assert "\n" not in str(refused.value)


def test_values_are_shown_in_one_short_line() -> None:
    assert shown(torch.ones(3, 3)) == "a tensor of shape (3, 3) and type torch.float32"
    assert shown(np.ones((3, 3))) == "an array of shape (3, 3) and type float64"
    assert shown(object()) == "a object" and shown("a\nb") == "'a\\nb'"
    assert len(shown(["x" * 50] * 10)) < 70


@pytest.mark.parametrize("wrong", [None, "x", {1}, [None], torch.ones(2, device="meta"), nn.ReLU()])
def test_what_is_no_array_is_refused(wrong) -> None:
    with pytest.raises(ValueError, match="Inputs must be numbers"):
        as_numbers("Inputs", wrong)
