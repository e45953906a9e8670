"""Laplace approximations: Gaussians around trained networks."""

from polymode.methods.laplace.laplace import Laplace, finish, init, step
from polymode.methods.laplace.weights import LaplaceWeights

__all__ = ["Laplace", "LaplaceWeights", "finish", "init", "step"]
