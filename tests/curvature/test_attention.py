"""Fused attention in stacks: no noise where nothing is dropped, and every way of evaluation."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import jvp

import polymode as pm
from polymode.stack.stack import Stack
from polymode.tracing.attention import plain_attention

EXECUTIONS = ("batched", "loop", "threads", "chunked", "auto")


class Own(nn.Module):
    """A user's transformer: F.scaled_dot_product_attention, with or without dropout elsewhere."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed, self.packed = nn.Linear(1, 8), nn.Linear(8, 24)
        self.norm, self.dropout, self.last = nn.LayerNorm(8), nn.Dropout(dropout), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x.unsqueeze(-1))
        q, k, v = (
            part.unflatten(-1, (2, 4)).transpose(1, 2)
            for part in self.packed(self.norm(h)).chunk(3, -1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=0.0, is_causal=True)
        return self.last((h + self.dropout(mixed.transpose(1, 2).flatten(2))).mean(1))


class Encoder(nn.Module):
    """torch's own encoder layer, which has a further fused kernel in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.last = nn.Linear(1, 8), nn.Linear(8, 2)
        self.layer = nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layer(self.embed(x.unsqueeze(-1))).mean(1))


@pytest.mark.parametrize("net", [Own, Encoder, lambda: Own(0.3)])
def test_every_execution_trains_and_predicts_alike(net: Callable[[], nn.Module]) -> None:
    """Without a warning of torch about missing rules; with dropout beside attention as well."""
    x = torch.randn(7, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = {}
    for execution in EXECUTIONS:
        stack = Stack(net, 3, seed=1, execution=execution, chunk_size=2, dtype=torch.float64)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            stack.train().gradients(lambda out, y, _: (out**2).mean((-1, -2)), x, x)
            gradient = torch.cat([leaf.grad.flatten() for leaf in stack.leaves()])  # type: ignore[union-attr]
            with torch.no_grad():
                found[execution] = gradient, stack.eval()(x)
    for pair in found.values():
        for mine, expected in zip(pair, found["loop"], strict=True):
            torch.testing.assert_close(mine, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_a_module_of_ones_own_fits_and_predicts(execution: str) -> None:
    task = pm.task("two_moons")
    post = pm.fit(
        "deep_ensemble", net=Own, task=task, num_modes=2, epochs=1, execution=execution,
        progress="silent",
    )  # fmt: skip
    assert post.predict(task.test.x[:5]).mean.shape == (5, 2)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own
@pytest.mark.parametrize("net", [Own, Encoder])
def test_stacks_have_derivatives_in_forward_mode(net: Callable[[], nn.Module]) -> None:
    """Against the difference quotient along the same direction, to its error of 1e-7."""
    stack = Stack(net, 2, seed=0, dtype=torch.float64).eval()
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    params = {name: tensor.detach() for name, tensor in stack.params.items()}
    along = stack.normal("direction")
    function = stack.function()
    found = jvp(lambda p: function(p, x), (params,), (along,))[1]
    step = 1e-5
    ends = [function({n: t + s * along[n] for n, t in params.items()}, x) for s in (step, -step)]
    torch.testing.assert_close(found, (ends[0] - ends[1]) / (2 * step), rtol=1e-6, atol=1e-7)


def test_torchs_switches_are_put_back_by_the_last_to_close() -> None:
    """Two contexts that overlap in two threads, the first opened being closed first."""
    before = torch.backends.cuda.flash_sdp_enabled(), torch.backends.mha.get_fastpath_enabled()
    first, second = plain_attention(), plain_attention()
    first.__enter__()
    other = threading.Thread(target=second.__enter__)
    other.start()
    other.join()
    first.__exit__()
    assert not torch.backends.cuda.flash_sdp_enabled()
    second.__exit__()
    after = torch.backends.cuda.flash_sdp_enabled(), torch.backends.mha.get_fastpath_enabled()
    assert after == before == (True, True)
