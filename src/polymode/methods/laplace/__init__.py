"""Laplace approximations: curvature, Gaussians, evidence."""
