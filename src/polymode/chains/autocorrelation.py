r"""Autocovariance of every chain at all lags, by the fast Fourier transform.

.. math:: \hat\gamma_t = \frac1L \sum_{l=1}^{L-t} (x_l - \bar x)(x_{l+t} - \bar x)

Divided by L, not L − t: noisy far lags then tend to 0. `L` draws of `M` chains.
"""

from __future__ import annotations

import torch
from torch import Tensor

from polymode.core.checks import OnlyTensor, check_call


def autocovariance(draws: OnlyTensor) -> Tensor:
    """Return the autocovariance at lags 0 to L − 1, (L, M, ...) in float64, from draws (L, M, ...).

    >>> autocovariance(torch.tensor([[1.0], [2.0], [4.0], [5.0]]))[:2, 0].round(decimals=6).tolist()
    [2.5, 0.75]
    """
    check_call(autocovariance, locals())
    centred = draws.double() - draws.double().mean(0)
    length = len(draws)
    size = 1 << (2 * length - 1).bit_length()  # no lag wraps around
    spectrum = torch.fft.rfft(centred, size, dim=0)
    power = spectrum.real.square() + spectrum.imag.square()
    return torch.fft.irfft(power, size, dim=0)[:length] / length


def autocorrelation(draws: OnlyTensor) -> Tensor:
    """Return the autocovariance divided by that of lag 0; NaN for a chain that never moves."""
    check_call(autocorrelation, locals())
    covariances = autocovariance(draws)
    return covariances / covariances[:1]
