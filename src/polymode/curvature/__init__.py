"""Derivatives of outputs with respect to weights without a Jacobian, and Gaussian blocks of them.

`tangent` first: one network, ready to be differentiated. `watch` follows a forward pass and notes
its calls, `derivatives` knows what each call multiplies, and `records` hold the two factors of a
derivative. `kronecker`, `full` and `low_rank` are blocks of a Gaussian's precision. `solve` has
conjugate gradients, their preconditioners and Lanczos.
"""
