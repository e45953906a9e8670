"""Derivatives of outputs with respect to weights without a Jacobian, and Gaussian blocks of them.

`tangent` first: one network, ready to be differentiated. `watch` follows a forward pass and notes
its calls, `derivatives` knows what each call multiplies, and `records` hold the two factors of a
derivative. `plain` computes in steps what torch cannot differentiate in every way. `blocks` are the
parts of a Gaussian's precision; `solve` has conjugate gradients and Lanczos.
"""
