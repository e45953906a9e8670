"""TabM and bde on the tables of the study `tables`, each in an environment of its own.

    python -m benchmarks.peers.tables prepare FOLDER               # polymode's environment
    TABM/bin/python benchmarks/peers/tables.py tabm FOLDER         # torch, tabm
    BDE/bin/python benchmarks/peers/tables.py bde FOLDER           # sklearn-contrib-bde
    python -m benchmarks.peers.tables score FOLDER                 # writes peers.json of the study

A peer reads arrays and writes predictions, which `score` scores as the study scores its own. Inputs
are standard scores and a column for each category, learned on the rows of the fit; targets are
standardised. A cell that is there is not made again.

TabM: the package's own class with k = 32, for want of time with blocks of 128 units where its
default is 512; AdamW with rate 2e-3 and weight decay 3e-4, batches of 256, a tenth of the rows to
stop by (patience 10, at most 100 epochs; its example has 16). Of regressions it gives 32 values;
each becomes the centre of a normal density whose width has the best NLL on those rows. bde: 8
members, two layers of 16 units, up to 1,000 epochs, 200 steps of warm-up, 100 samples of each; its
own defaults (2 members, 20 epochs, 10 samples) are those of an example.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

MEMBERS = 32


def prepare(folder: Path) -> None:
    """Write the arrays of every table and division of preset cpu."""
    from polymode.studies.tables.data import divide
    from polymode.studies.tables.setup import parts
    from polymode.tasks.frames.columns import read_columns
    from polymode.tasks.frames.encoder import Encoding, TableEncoder

    folder.mkdir(parents=True, exist_ok=True)
    for name, part in parts("cpu").items():
        rows = next(iter(part.arms.values()))["most_rows"]
        for seed in part.seeds:
            division = divide(name, seed, rows)
            encoder = TableEncoder.fit(read_columns(division.fit.x), Encoding(numeric="standard"))
            sets = ("fit", "calibration", "test")
            arrays = {f"x_{s}": encoder.encode(read_columns(getattr(division, s).x)).numpy()
                      for s in sets}  # fmt: skip
            np.savez(
                folder / f"{name}-{seed}.npz", y=division.fit.y, classes=len(division.classes),
                rows=rows, **arrays,
            )  # fmt: skip


def play(package: str, folder: Path) -> None:
    """Write the predictions of a package for every prepared file, first divisions first."""
    files = sorted(folder.glob("*-[0-9].npz"), key=lambda path: (path.stem[-1], path.stem))
    for path in files:
        out = path.with_name(f"{path.stem}.{package}")
        if out.exists():
            continue
        arrays = dict(np.load(path))
        started = time.process_time()
        predictions = FITS[package](arrays, seed=int(path.stem[-1]))
        seconds = time.process_time() - started
        with out.open("wb") as file:
            np.savez(file, seconds=seconds, **predictions)
        print(f"{path.stem:16s} {package} {seconds:.1f} s", flush=True)


def fit_tabm(given: dict[str, Any], seed: int) -> dict[str, np.ndarray]:
    """Return predictions of TabM."""
    import torch
    from tabm import TabM

    torch.manual_seed(seed)
    torch.set_num_threads(1)
    classes = int(given["classes"])
    x = torch.tensor(given["x_fit"], dtype=torch.float32)
    centre, width = (0.0, 1.0) if classes else (given["y"].mean(), given["y"].std())
    y = torch.tensor((given["y"] - centre) / width)
    y = y.long() if classes else y.float()
    held = max(20, len(x) // 10)
    order = torch.randperm(len(x))
    val, train = order[:held], order[held:]
    net = TabM.make(n_num_features=x.shape[1], d_out=classes or 1, k=MEMBERS, d_block=128)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=3e-4)

    def loss_of(outputs: Any, targets: Any) -> Any:
        if classes:
            flat = outputs.flatten(0, 1)
            return torch.nn.functional.cross_entropy(flat, targets.repeat_interleave(MEMBERS))
        return (outputs.squeeze(-1) - targets[:, None]).square().mean()

    def predict(inputs: Any) -> Any:
        net.eval()
        with torch.no_grad():
            return torch.cat([net(part) for part in inputs.split(2048)])

    def held_loss() -> float:
        outputs = predict(x[val])
        if classes:
            probs = outputs.softmax(-1).mean(1)
            return float(torch.nn.functional.nll_loss(probs.clamp(min=1e-12).log(), y[val]))
        return float((outputs.squeeze(-1).mean(1) - y[val]).square().mean())

    best, state, waited = float("inf"), None, 0
    for _ in range(100):
        net.train()
        for rows in train[torch.randperm(len(train))].split(256):
            optimizer.zero_grad()
            loss_of(net(x[rows]), y[rows]).backward()
            optimizer.step()
        now = held_loss()
        waited += 1
        if now < best:
            best, waited = now, 0
            state = {name: value.clone() for name, value in net.state_dict().items()}
        if waited > 10:
            break
    net.load_state_dict(state)
    sets = ("calibration", "test")
    outputs = {
        s: predict(torch.tensor(given[f"x_{s}"], dtype=torch.float32)).double() for s in sets
    }
    if classes:
        return {f"probs_{s}": v.softmax(-1).mean(1).numpy() for s, v in outputs.items()}
    centres, targets = predict(x[val]).double().squeeze(-1), y[val].double()[:, None]
    widths = np.geomspace(0.01, 2.0, 100)
    scores = [
        float(torch.distributions.Normal(centres, w).log_prob(targets).logsumexp(1).mean())
        for w in widths
    ]
    noise = widths[int(np.argmax(scores))] * width
    return {f"loc_{s}": (v.squeeze(-1).T.numpy() * width + centre) for s, v in outputs.items()} | {
        f"scale_{s}": np.full((1, 1), noise) for s in sets
    }


def fit_bde(given: dict[str, Any], seed: int) -> dict[str, np.ndarray]:
    """Return predictions of bde."""
    from bde import BdeClassifier, BdeRegressor

    classes = int(given["classes"])
    centre, width = (0.0, 1.0) if classes else (given["y"].mean(), given["y"].std())
    options: dict[str, Any] = {
        "n_members": 8, "hidden_layers": [16, 16], "epochs": 1000, "patience": 20, "lr": 1e-2,
        "warmup_steps": 200, "n_samples": 100, "n_thinning": 2, "seed": seed,
    }  # fmt: skip
    x = given["x_fit"].astype(np.float32)
    sets = ("calibration", "test")
    if classes:
        model = BdeClassifier(**options)
        model.fit(x=x, y=given["y"].astype(np.int32))
        return {
            f"probs_{s}": np.asarray(model.predict_proba(given[f"x_{s}"].astype(np.float32)))
            for s in sets
        }
    model = BdeRegressor(**options)
    model.fit(x=x, y=((given["y"] - centre) / width).astype(np.float32))
    predictions = {}
    for s in sets:
        raw = np.asarray(model.predict(given[f"x_{s}"].astype(np.float32), raw=True), float)
        raw = raw.reshape(-1, *raw.shape[2:])  # (members · samples, rows, 2)
        predictions[f"loc_{s}"] = raw[..., 0] * width + centre
        predictions[f"scale_{s}"] = (np.logaddexp(0.0, raw[..., 1]) + 1e-6) * width
    return predictions


FITS = {"tabm": fit_tabm, "bde": fit_bde}
NAMES = {"tabm": "TabM, cut short", "bde": "bde"}


def score(folder: Path) -> None:
    """Score all predictions as the study does, and write its file."""
    import torch

    from polymode.prediction import CategoricalPrediction, MixturePrediction
    from polymode.studies.tables.data import divide
    from polymode.studies.tables.experiments import score as score_prediction
    from polymode.studies.tables.published import FILE

    def prediction_of(arrays: dict[str, Any], part: str) -> Any:
        if f"probs_{part}" in arrays:
            probs = np.clip(arrays[f"probs_{part}"].astype(float), 1e-6, None)
            return CategoricalPrediction.from_probs(
                torch.tensor(probs / probs.sum(1, keepdims=True))
            )
        loc = torch.tensor(arrays[f"loc_{part}"])[..., None]
        scale = torch.tensor(arrays[f"scale_{part}"])[..., None]
        return MixturePrediction(loc, scale.expand_as(loc))

    cells = []
    for package, name in NAMES.items():
        for path in sorted(folder.glob(f"*.{package}")):
            data, _, seed = path.stem.rpartition("-")
            rows = int(np.load(folder / f"{path.stem}.npz")["rows"])
            with np.load(path) as stored:
                arrays = dict(stored)
            findings = score_prediction(
                divide(data, int(seed), rows),
                *(prediction_of(arrays, part) for part in ("calibration", "test")),
            )
            scores = {row.metric: row.value for row in findings.rows}
            scores["fit_seconds"] = float(arrays["seconds"])
            cells.append(
                {
                    "data": data, "contender": name, "seed": int(seed), "most_rows": rows,
                    "scores": scores,
                    "arrays": {k: v.tolist() for k, v in findings.arrays.items()},
                }
            )  # fmt: skip
    FILE.write_text(json.dumps({"cells": cells}, indent=1) + "\n")


if __name__ == "__main__":
    what, where = sys.argv[1], Path(sys.argv[2])
    if what in FITS:
        play(what, where)
    else:
        {"prepare": prepare, "score": score}[what](where)
