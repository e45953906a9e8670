"""Scores of masks: `pm.evaluate`, and a loop that accumulates what it can and sorts the rest."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader

from ..cases import Case, Pictures, map_members
from . import Job

BINS = 15


def polymode(case: Case) -> Job:
    """All metrics of masks of the test set, with errors over images."""
    import polymode as pm

    images = Pictures(case)
    x, y = (torch.stack(parts) for parts in zip(images[0], images[1], strict=True))
    task = pm.Task(train=(x, y), test=DataLoader(images, batch_size=1), likelihood="categorical",
                   target_size=case.num_classes)  # fmt: skip
    post = pm.fit("deep_ensemble", net=map_members(case), task=task, epochs=0, progress="silent")

    def run() -> float:
        torch.set_num_threads(1)
        return pm.evaluate(post, task, keep=False)["test", "nll"].value or 0.0

    return Job(run, 1)


def plain_loop(case: Case) -> Job:
    """NLL, Brier, mIoU, accuracies, ECE, entropies, joint NLL; AUROC of errors for three scores and
    AURC by sorting all pixels. No errors over images, borders or patches."""
    nets, number = map_members(case), case.num_classes

    @torch.inference_mode()
    def run() -> float:
        torch.set_num_threads(1)
        confusion = torch.zeros(number, number, dtype=torch.int64)
        bins = torch.zeros(3, BINS, dtype=torch.float64)
        sums = torch.zeros(6, dtype=torch.float64)
        scores, wrong, pixels = [], [], 0
        for x, y in DataLoader(Pictures(case), batch_size=1):
            log_probs = torch.stack([net(x) for net in nets]).log_softmax(2)
            probs = log_probs.exp()
            mean = probs.mean(0)
            entropy = torch.special.entr(mean).sum(1)
            expected = -(probs * log_probs).sum(2).mean(0)
            of_label = mean.gather(1, y[:, None])[:, 0]
            confidence, guess = mean.max(1)
            hit = guess == y
            joint = log_probs.gather(2, y[None, :, None].expand(len(nets), -1, -1, -1, -1))
            brier = mean.square().sum(1) - 2 * of_label + 1
            information = entropy - expected
            for place, values in enumerate(
                (-of_label.log(), brier, entropy, expected, information)
            ):
                sums[place] += values.double().sum()
            sums[5] += joint.flatten(1).sum(1).logsumexp(0)
            cells = y.flatten() * number + guess.flatten()
            confusion += torch.bincount(cells, minlength=number**2).view(number, number)
            place = (confidence.flatten() * BINS).ceil().long().sub(1).clamp(0, BINS - 1)
            for row, weights in enumerate((None, confidence.flatten(), hit.flatten().float())):
                bins[row] += torch.bincount(place, weights, BINS)
            scores.append(torch.stack([1 - confidence, entropy, information]).flatten(1))
            wrong.append(~hit.flatten())
            pixels += y.numel()
        every, errors = torch.cat(scores, 1), torch.cat(wrong)
        for values in every:
            errors[values.argsort(descending=True)].double().cumsum(0)
        errors[every[0].argsort()].double().cumsum(0)
        return sums[0].item() / pixels

    return Job(run, 1)
