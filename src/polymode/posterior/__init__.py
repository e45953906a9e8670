"""Posteriors: where samples of networks come from, what is predicted with them, and their files."""

from polymode.posterior.files import load
from polymode.posterior.posterior import Posterior
from polymode.posterior.weights import Gaussian, Noisy, Samples, Weights

__all__ = ["Gaussian", "Noisy", "Posterior", "Samples", "Weights", "load"]
