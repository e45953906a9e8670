"""Particle inference: parts from which repulsive ensembles are made.

- `kernel`: squared distances, the median bandwidth, the RBF kernel.
- `lengthscales`: the metric in which directions of input gradients are compared.
- `repulsion`: the repulsion between input gradients and its derivative, in closed form.
- `guards`: what repulsive methods refuse, and what they warn of.
- `estimators`: the score of the particles' own density, from the particles; `annealing`: schedules.
- `terms`: what members minimise that repel each other through their input gradients;
  `input_gradients`: the gradients of that; `second_order`: the derivatives these are made of.
"""
