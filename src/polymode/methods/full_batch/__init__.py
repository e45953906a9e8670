"""Samplers that see the whole training data at every step: their target, integrators and tuning.

Integrators and tuning are functions of rows (M, P), one chain per row, and of a function from rows
to log-densities (M,) and gradients (M, P); they know nothing of networks. `target` makes such a
function of a stack.
"""
