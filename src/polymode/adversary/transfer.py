"""Transfer: inputs that fool one posterior, given to another.

Similar weights share their adversarial inputs. An attacker without access to a posterior trains
another one and attacks that (N. Papernot, P. McDaniel, I. Goodfellow, Transferability in machine
learning, arXiv:1605.07277).

`P` posteriors, `N` examples.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from polymode.adversary.attack import attack
from polymode.adversary.attack_checks import check_posterior
from polymode.adversary.attacked import Attacked
from polymode.adversary.movable import movable_of
from polymode.core.checks import check_call
from polymode.core.html import html_block, html_table
from polymode.metrics.text_table import align
from polymode.posterior import Posterior
from polymode.prediction import CategoricalPrediction


class Transfer(NamedTuple):
    """Who is fooled by whose inputs.

    Attributes:
        names: of the posteriors. clean: (P,) accuracy on clean inputs.
        accuracy: (P, P); row a, column b: of posterior b on inputs made against posterior a.
        success: (P, P) likewise, the success rate of the attack.
        attacks: by name of the attacked posterior.
    """

    names: tuple[str, ...]
    clean: np.ndarray
    accuracy: np.ndarray
    success: np.ndarray
    attacks: Mapping[str, Attacked]

    def __str__(self) -> str:
        head, *lines = self._lines()
        return align(head, lines)

    def _repr_html_(self) -> str:
        head, *lines = self._lines()
        return html_block("Transfer: accuracy", html_table(head, lines))

    def _lines(self) -> list[tuple[str, ...]]:
        lines: list[tuple[str, ...]] = [("inputs made against", *self.names)]
        lines.append(("none (clean)", *(f"{value:.3f}" for value in self.clean)))
        for name, row in zip(self.names, self.accuracy, strict=True):
            lines.append((name, *(f"{value:.3f}" for value in row)))
        return lines


def transfer(posts: Mapping[str, Posterior], x: Any, y: Any, **options: Any) -> Transfer:
    """Return the accuracy of every posterior on the inputs that fool every other one.

    Args:
        posts: by name, at least two, of one task. x, y: raw inputs and labels.
        options: of `attack`; `eps` is needed. Each posterior is attacked with them.
    """
    check_call(transfer, locals())
    if len(posts) < 2:
        raise ValueError(f"transfer needs at least 2 posteriors, got {len(posts)}")
    for name, post in posts.items():
        check_posterior(post)
        if (space := movable_of(post, x).space) != "inputs":
            raise ValueError(
                f"transfer gives inputs of one posterior to another; an attack on '{name}' moves"
                f" the {space}, and a shift in one network's embedding means nothing in another's"
            )
    attacks = {name: attack(post, x, y, **options) for name, post in posts.items()}
    size = len(posts)
    accuracy, success = np.zeros((size, size)), np.zeros((size, size))
    for row, attacked in enumerate(attacks.values()):
        for column, (name, post) in enumerate(posts.items()):
            prediction = attacked.attacked
            if name != list(attacks)[row]:
                prediction = _predict(post, attacked, options)
            classes = prediction.classes
            wanted = classes != attacked.labels
            if attacked.targets is not None:
                wanted = classes == attacked.targets
            accuracy[row, column] = (classes == attacked.labels).double().mean()
            success[row, column] = wanted.double().mean()
    clean = np.array([attacked.clean_accuracy for attacked in attacks.values()])
    return Transfer(tuple(posts), clean, accuracy, success, attacks)


def _predict(
    post: Posterior, attacked: Attacked, options: Mapping[str, Any]
) -> CategoricalPrediction:
    scaling = options.get("scaling")
    inputs = attacked.adversarial if scaling is None else scaling(attacked.adversarial)
    prediction = post.predict(
        inputs,
        samples_per_mode=options.get("eval_samples_per_mode"),
        seed=options.get("seed", 0),
    )
    assert isinstance(prediction, CategoricalPrediction)
    return prediction
