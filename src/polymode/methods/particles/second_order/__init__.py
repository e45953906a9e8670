"""Second derivatives of networks, with respect to inputs and then to weights.

`plain` is torch.autograd, twice: what is used unless another way is faster, and what the others
are tested against. `dense_chain` writes the passes of linear layers and ReLUs out; `batch_norm` has
the second derivative of large BatchNorm layers in closed form.
"""
