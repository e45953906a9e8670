"""Markov chains as arrays: have they mixed, and how many independent samples are they worth.

All functions take draws (L, M, ...): L samples of M chains of any number of quantities, and know
nothing of networks. The examination `chains` applies them to a posterior.
"""

from polymode.chains.autocorrelation import autocorrelation, autocovariance
from polymode.chains.ess import ess_bulk, ess_mean, ess_tail
from polymode.chains.rhat import nested_rhat, rank_normalised, rhat, split

__all__ = [
    "autocorrelation",
    "autocovariance",
    "ess_bulk",
    "ess_mean",
    "ess_tail",
    "nested_rhat",
    "rank_normalised",
    "rhat",
    "split",
]
