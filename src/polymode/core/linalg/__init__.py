"""Curvature algebra: derivatives of outputs with respect to weights without a Jacobian, and
Gaussian blocks that are made of them."""
