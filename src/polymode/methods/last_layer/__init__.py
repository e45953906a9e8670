"""Methods about the last linear layer of a network, on the features that the rest makes.

`cut.py` finds the layer and takes it off; `head_weights.py` is a Gaussian over it, in closed form.
"""
