"""Risk control for masks: by hand, by simulation, as a stream, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from polymode.conformal import MaskRule, control_missed_share, missed_share
from polymode.prediction import CategoricalPrediction, MixturePrediction

RISK, IMAGES = 0.2, 30


def images(n: int, random: torch.Generator) -> tuple[CategoricalPrediction, torch.Tensor]:
    """Structures of 1 to 12 of 16 pixels; small ones are harder, and an image is easy or hard as a
    whole, so that its pixels are far from independent."""
    sizes = torch.randint(1, 13, (n, 1), generator=random)
    masks = (torch.arange(16) < sizes).long().view(n, 4, 4)
    of_image = torch.randn(n, 1, 1, generator=random, dtype=torch.float64)
    noise = torch.randn(n, 4, 4, generator=random, dtype=torch.float64)
    logits = 0.3 * sizes.view(n, 1, 1) - 2 + 1.5 * of_image + noise
    logits = logits.where(masks == 1, logits - 3)
    both = torch.stack([torch.zeros_like(logits), logits], -1)
    return CategoricalPrediction.from_logits(both[None]), masks


def test_the_expected_share_missed_is_controlled() -> None:
    """Mean over 400 draws of a calibration set and 8 new images: at most 0.2, and, as probabilities
    have no ties, at least 0.2 − 2/31. A threshold that 80 % of all structure *pixels* reach misses
    more: images with few pixels are the hard ones. False alarms: 4 standard errors, 6e-5 each.
    """
    random, shares, pooled = torch.Generator().manual_seed(0), [], []
    for _ in range(400):
        prediction, masks = images(IMAGES + 8, random)
        rule = control_missed_share(prediction[:IMAGES], masks[:IMAGES], 1, RISK)
        shares.append(float(missed_share(rule(prediction[IMAGES:]), masks[IMAGES:]).mean()))
        probs = prediction.mean[..., 1]
        cut = probs[:IMAGES][masks[:IMAGES] == 1].quantile(RISK)
        pooled.append(float(missed_share(probs[IMAGES:] >= cut, masks[IMAGES:]).mean()))
    error = 4 * np.std(shares) / math.sqrt(len(shares))
    assert RISK - 2 / (IMAGES + 1) - error <= np.mean(shares) <= RISK + error
    assert np.mean(pooled) - 4 * np.std(pooled) / math.sqrt(len(pooled)) > RISK


def test_by_hand() -> None:
    """Four images with 2, 1, 0 and 1 pixels of the structure: n = 3, and at risk 0.5 the losses may
    add up to 1."""
    probs = torch.tensor([[0.9, 0.4, 0.1], [0.3, 0.8, 0.2], [0.1, 0.9, 0.9], [0.6, 0.1, 0.1]])
    masks = torch.tensor([[1, 1, 0], [1, 0, -100], [0, 0, 0], [1, 0, 0]])
    prediction = CategoricalPrediction.from_probs(torch.stack([1 - probs, probs], -1)[None])
    rule = control_missed_share(prediction, masks, 1, 0.5)
    # 0.3 costs 1; then 0.4 another half, which is too much
    assert (rule.n, rule.vacuous) == (3, False) and rule.threshold == pytest.approx(0.4)
    named = rule(prediction)
    assert named.tolist()[0] == [True, True, False] and not named[1, 0]
    assert missed_share(named, masks).nan_to_num(nan=-1).tolist() == [0.0, 1.0, -1.0, 0.0]
    assert MaskRule.from_dict(rule.to_dict()) == rule
    both = control_missed_share(prediction, masks, (0, 1), 0.5)  # every pixel is of it
    assert both.n == 4 and both.structure == (0, 1) and both(prediction).all()


def test_a_stream_is_the_whole() -> None:
    prediction, masks = images(40, torch.Generator().manual_seed(1))
    parts = (prediction[start : start + 7] for start in range(0, 40, 7))
    assert control_missed_share(parts, masks) == control_missed_share(prediction, masks)


def test_too_few_images_name_everything() -> None:
    prediction, masks = images(8, torch.Generator().manual_seed(2))
    with pytest.warns(UserWarning, match="8 images.*too few for a risk of 0.1.*at least 9"):
        rule = control_missed_share(prediction, masks, 1, 0.1)
    assert rule.vacuous and rule(prediction).all()
    prediction, masks = images(9, torch.Generator().manual_seed(2))
    assert not control_missed_share(prediction, masks, 1, 0.1).vacuous


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"structure": 2}, "label in 0..1, or several, got 2"),
        ({"structure": ()}, "label in 0..1, or several"),
        ({"risk": 1.5}, "risk"),
        ({"masks": torch.zeros(8, 4, 4).long()}, "no mask has a pixel of the structure 1"),
        ({"masks": torch.zeros(8, 4, 4)}, "must be integer labels"),
        ({"masks": torch.zeros(8, 4, 3).long()}, r"of shape \(8, 4, 4\)"),
        ({"masks": torch.full((8, 4, 4), 255)}, "labels in 0..1, or -100.*got 255"),
        ({"prediction": MixturePrediction(torch.zeros(1, 8, 4, 4, 1), 1.0)}, "a prediction of cl"),
    ],
)  # fmt: skip
def test_wrong_calls_are_refused_in_one_line(change, says) -> None:
    prediction, masks = images(8, torch.Generator().manual_seed(3))
    call = {"prediction": prediction, "masks": masks, "risk": 0.3, **change}
    with pytest.raises(ValueError, match=says) as caught:
        control_missed_share(**call)
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="8 masks need as many predicted images, got 4"):
        control_missed_share(iter([prediction[:4]]), masks, 1, 0.3)
