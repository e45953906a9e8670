"""Laplace approximations: Gaussians around trained networks. Read `laplace.py` first; it calls

- `curvature`: C in each structure, from the roots of the likelihood's curvature;
- `groups`: which parameters share a prior precision;
- `last_layer`: variances of maps in closed form, where a last layer alone has a posterior;
- `gaussian`: the posterior N(θ̃, H⁻¹) of one mode, and the evidence at the trained weights;
- `linear_model`, `linear_model_solve`: the tangent model, its targets, its reach and its optimum;
- `evidence`: the evidence of that model and its maximum; `evidence_dual`: the same from kernels;
- `subnetwork`: which weights to keep; `weights`: prediction, links, files.
"""

from polymode.methods.laplace.laplace import Laplace, finish, init, step
from polymode.methods.laplace.laplace_weights import LaplaceWeights

__all__ = ["Laplace", "LaplaceWeights", "finish", "init", "step"]
