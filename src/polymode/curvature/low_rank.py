r"""A block of H = C + Λ whose curvature has few directions, C = Σ_k s_k u_k u_kᵀ.

.. math:: H^{-1} = \Lambda^{-1/2} (I - W (I + W^\top W)^{-1} W^\top) \Lambda^{-1/2}, \qquad
          W = \Lambda^{-1/2} U \,\mathrm{diag}(s)^{1/2}

W ᵀ W comes from products U_nᵀ U_n of each parameter that are made once, so another Λ costs K² per
parameter. All directions that are left out count as known by the prior alone.

Shapes: `R` cotangents, `B` batch, `K` directions, `P` numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from polymode.curvature.kronecker import Block, Precision
from polymode.curvature.records import Record
from polymode.tracing.modules import Tensors


@dataclass(frozen=True)
class LowRank(Block):
    """All parameters, by K directions.

    Args:
        directions: u_k by parameter, (K, P).
        values: s, (K,).
    """

    directions: Tensors
    values: Tensor

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(self.directions)

    @property
    def sizes(self) -> tuple[int, ...]:  # type: ignore[override]
        return tuple(each.shape[1] for each in self.directions.values())

    def _roots(self, name: str, precision: Precision) -> Tensor:
        """Return the rows of Wᵀ that belong to a parameter, (K, P)."""
        return self.directions[name] * self.values.sqrt().unsqueeze(-1) / precision[name].sqrt()

    def _gram(self, precision: Precision) -> Tensor:
        total = torch.zeros_like(self.values.diag())
        for name, part in self.directions.items():
            total = total + part @ part.mT / precision[name]
        root = self.values.sqrt()
        return root.unsqueeze(-1) * total * root

    def _inner(self, precision: Precision) -> Tensor:
        """Return (I + Wᵀ W)⁻¹, (K, K)."""
        gram = self._gram(precision)
        return torch.linalg.inv(gram + torch.eye(len(gram)).to(gram))

    def logdet(self, precision: Precision) -> Tensor:
        gram = self._gram(precision)
        root = torch.linalg.cholesky(gram + torch.eye(len(gram)).to(gram))
        prior = sum(n * precision[k].log() for k, n in zip(self.names, self.sizes, strict=True))
        return 2 * root.diagonal().log().sum() + prior

    def effective(self, precision: Precision) -> Tensors:
        inner, found = self._inner(precision), {}
        for name in self.names:
            rows = self._roots(name, precision)
            found[name] = torch.einsum("kp,kj,jp->", rows, inner, rows)
        return found

    def _change(self, precision: Precision) -> Tensor:
        """Return X (K, K) with (I + W Wᵀ)^{-1/2} = I + W X Wᵀ."""
        gram = self._gram(precision)
        q, basis = torch.linalg.eigh(gram)
        usable = q > q[-1].clamp_min(0) * len(q) * torch.finfo(q.dtype).eps
        inverse = torch.where(usable, q.where(usable, 1.0).reciprocal(), 0.0)
        return basis * (inverse * ((1 + q.clamp_min(0)).rsqrt() - 1)) @ basis.mT

    def deviation(self, noise: Tensors, precision: Precision) -> Tensors:
        rows = {name: self._roots(name, precision) for name in self.names}
        along = sum(rows[name] @ noise[name] for name in self.names)
        coefficients = self._change(precision) @ along
        return {
            name: (noise[name] + coefficients @ rows[name]) / precision[name].sqrt()
            for name in self.names
        }

    def quadratic(self, records: Mapping[str, Record], precision: Precision, full: bool) -> Tensor:
        prior: Tensor | float = 0.0
        along: Tensor | float = 0.0
        for name, directions in self.directions.items():
            record = records[name]
            flat = (1 / precision[name]).expand(directions.shape[1])
            prior = prior + record.weighted(flat, full)
            along = along + record.along(directions) / precision[name]  # (B, R, K)
        assert isinstance(along, Tensor)
        along = along * self.values.sqrt()
        reduced = along @ self._inner(precision)
        return prior - (reduced @ along.mT if full else (reduced * along).sum(-1))

    def whitened(self, records: Mapping[str, Record], precision: Precision) -> Tensor:
        flat = [records[n].jacobian() / precision[n].sqrt() for n in self.names]
        rows = [self._roots(n, precision) for n in self.names]
        along = torch.cat(flat, -1) @ torch.cat(rows, -1).mT
        coefficients = along @ self._change(precision)
        return torch.cat([p + coefficients @ r for p, r in zip(flat, rows, strict=True)], -1)

    def variances(self, precision: Precision) -> Tensors:
        inner, found = self._inner(precision), {}
        for name in self.names:
            rows = self._roots(name, precision)
            found[name] = (1 - torch.einsum("kp,kj,jp->p", rows, inner, rows)) / precision[name]
        return found

    def scaled(self, factor: Tensor | float) -> LowRank:
        return replace(self, values=self.values * factor)

    def matrix(self) -> Tensor:
        whole = torch.cat(list(self.directions.values()), 1)
        return whole.mT * self.values @ whole

    def tensors(self) -> Tensors:
        found = {f"directions/{name}": each for name, each in self.directions.items()}
        return found | {"values": self.values}
