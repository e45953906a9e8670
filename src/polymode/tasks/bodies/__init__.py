"""Trained bodies: weights of others in our networks, and tasks on the features that they make.

Read `body` first (the bodies, and `load_body`), then `features` (features made once and kept in the
cache) and `feature_tasks` (the task `body_features`). `weights` reads files of tensors;
`efficientnet_lite` and `sentence_encoder` are the networks.
"""

from __future__ import annotations

from polymode.tasks.bodies import feature_tasks  # noqa: F401  (enters its task)
from polymode.tasks.bodies.body import BODIES, Body, encoded, load_body
from polymode.tasks.bodies.weights import load_weights, read_weights

__all__ = ["BODIES", "Body", "encoded", "load_body", "load_weights", "read_weights"]
