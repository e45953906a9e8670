"""Particle inference: parts from which repulsive ensembles are made.

- `kernel`: squared distances, the median bandwidth, the RBF kernel.
- `lengthscales`: the metric in which directions of input gradients are compared.
- `repulsion`: the repulsion between input gradients and its derivative, in closed form.
- `coincident`: a warning where members start at one place.
- `estimators`: the score of the particles' own density, from the particles; `annealing`: schedules.
- `input_gradients`: gradients of members that repel each other so. `derivatives` and what it names
  make them quick for any network, `chains` for linear layers and ReLUs alone.
"""
