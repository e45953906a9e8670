"""docs/compare.md: what polymode and its peers have, with the names looked up in their source.

    python -m benchmarks.peers.compare          # writes docs/compare.md and results/compare.json
    python -m benchmarks.peers.compare --page   # only the page, from results/compare.json

Run it by the Python of an environment with the peers (`pip install --no-deps` is enough: nothing of
them is imported, their files are read). A name that is claimed and not defined there is an error,
and so is a "no" where a class or function of that name exists. What no installed package decides
comes from reading the peers' sources and documentation, and is marked as such.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from importlib import metadata, util
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE, STORED = ROOT / "docs" / "compare.md", ROOT / "results" / "compare.json"
PEERS = {  # import name -> distribution, heading
    "torch_uncertainty": ("torch-uncertainty", "TorchUncertainty"),
    "laplace": ("laplace-torch", "laplace-torch"),
    "posteriors": ("posteriors", "posteriors"),
    "lightning_uq_box": ("lightning-uq-box", "lightning-uq-box"),
    "probly": ("probly", "probly"),
    "bde": ("sklearn-contrib-bde", "bde"),
    "mapie": ("mapie", "MAPIE"),
}
READ_ONLY = {"probly"}  # whose newest release needs a newer Python than this project's oldest
READ = "read"  # a yes from reading, of what is no single name
NO = ""

LAPLACE = r"laplaceapprox$|kronlaplace|laplacebase$|laplacestate$"
SPLIT = r"conformalcls|splitconformal|conformalqr"

# feature: (name in polymode, pattern of names that a peer with it would define, yes by peer)
ROWS: dict[str, tuple[str, str, dict[str, str]]] = {
    "deep ensembles": ("deep_ensemble", r"deep_?ensemble", {
        "torch_uncertainty": "deep_ensembles", "lightning_uq_box": "DeepEnsembleRegression",
        "probly": READ, "bde": READ}),
    "repulsive ensembles (FoRDE)": ("forde", r"forde|repulsive", {}),
    "Packed, BatchEnsemble, Masksembles": ("packed", r"packed|masksembles", {
        "torch_uncertainty": "PackedLinear", "lightning_uq_box": "MasksemblesLayer",
        "probly": READ}),
    "MC dropout": ("dropout", r"mc_?dropout", {
        "torch_uncertainty": "mc_dropout", "lightning_uq_box": "MCDropoutRegression",
        "probly": READ}),
    "SWAG": ("swag", r"^swag", {
        "torch_uncertainty": "SWAG", "lightning_uq_box": "SWAGRegression", "probly": READ}),
    "variational inference": ("vi", r"elbo|vidiag|bayeslinear", {
        "torch_uncertainty": "BayesLinear", "lightning_uq_box": "BNN_VI_Regression",
        "posteriors": "VIDiagState", "probly": READ}),
    "last-layer VI (VBLL)": ("vbll", r"vbll", {
        "lightning_uq_box": "VBLLRegression", "probly": READ}),
    "Laplace: full, Kronecker, diagonal": ("laplace", LAPLACE, {
        "laplace": "KronLaplace", "torch_uncertainty": "LaplaceApprox",
        "lightning_uq_box": "LaplaceBase", "posteriors": "DenseLaplaceState", "probly": READ}),
    "functional and subnetwork Laplace": ("laplace", r"functionallaplace|subnetlaplace", {
        "laplace": "FunctionalLaplace"}),
    "SGLD": ("sgld", r"^sgld", {
        "torch_uncertainty": "SGLD", "posteriors": "SGLDState", "lightning_uq_box": "SGLD"}),
    "SGHMC": ("sghmc", r"^sghmc", {
        "torch_uncertainty": "SGHMC", "posteriors": "SGHMCState"}),
    "extended Kalman filter": (NO, r"ekf", {"posteriors": "EKFDiagState"}),
    "HMC of whole networks, MILE": ("mile", r"mclmc|mile", {"bde": "MileWrapper"}),
    "SNGP": ("sngp", r"sngp", {"lightning_uq_box": "SNGPBase", "probly": READ}),
    "credal sets": (NO, r"credal", {"probly": READ}),
    "diffusion and VAE models of images": (NO, r"ddpm|imgtoimg|vae", {
        "lightning_uq_box": READ}),
    "split conformal sets and intervals": ("conformal_sets", SPLIT, {
        "torch_uncertainty": "ConformalClsAPS", "lightning_uq_box": "ConformalQR",
        "mapie": "SplitConformalRegressor", "probly": READ}),
    "cross conformal (CV+, jackknife+)": ("cross_conformal", r"crossconformal", {
        "mapie": "CrossConformalRegressor"}),
    "Venn–Abers": (NO, r"vennabers", {"mapie": "VennAbersCalibrator"}),
    "time series intervals (EnbPI)": (NO, r"timeseriesregressor$", {
        "mapie": "TimeSeriesRegressor"}),
    "control of any risk (Learn Then Test)": (NO, r"riskcontroller|ltt_procedure", {
        "mapie": "BinaryClassificationController"}),
    "temperature scaling and friends": ("recalibrate", r"temperaturescaler|vectorscaler", {
        "torch_uncertainty": "TemperatureScaler", "lightning_uq_box": READ, "probly": READ}),
    "R-hat, effective sample size": ("rhat", r"^r_?hat|split_rhat", {"bde": READ}),
    "distance to a reference posterior": ("reference", r"reference_posterior", {}),
    "permutation symmetries of networks": ("symmetry", r"permutation_sym|rebasin", {}),
    "equivariance of a posterior": ("equivariance", r"equivarian", {}),
    "attacks on the predictive": ("adversary", r"^pgd|^fgsm|adversarial_attack", {}),
    "tomography with error bars": ("tomography", r"radon|tomograph|fan_beam", {}),
    "audit of a trained network": ("audit", r"^audit", {}),
    "scikit-learn estimators": ("PolymodeRegressor", r"$^", {
        "bde": READ, "mapie": READ, "probly": READ}),
    "segmentation: metrics and maps": ("map_pictures", r"pavpu|meaniou|meanintersection", {
        "torch_uncertainty": "MeanIntersectionOverUnion", "lightning_uq_box": READ}),
    "benchmark data sets and pretrained weights on a hub": (NO, r"load_hf", {
        "torch_uncertainty": "load_hf"}),
    "PyTorch Lightning modules": (NO, r"classificationroutine", {
        "torch_uncertainty": "ClassificationRoutine", "lightning_uq_box": READ}),
    "command line and report": ("report", r"$^", {}),
}  # fmt: skip


def defined(package: str) -> set[str]:
    """Return the names of all classes and functions of an installed package, without importing."""
    spec = util.find_spec(package)
    assert spec is not None and spec.submodule_search_locations is not None
    names: set[str] = set()
    for folder in spec.submodule_search_locations:
        for path in Path(folder).rglob("*.py"):
            if "tests" in path.parts:
                continue
            tree = ast.parse(path.read_text("utf-8"))
            kinds = (ast.ClassDef, ast.FunctionDef)
            names |= {node.name for node in ast.walk(tree) if isinstance(node, kinds)}
    return names


def look_up() -> dict[str, dict[str, str]]:
    """Return versions, and for each peer what was found in it; raise where a claim is wrong."""
    versions, wrong = {}, []
    for package, (distribution, _) in PEERS.items():
        if package in READ_ONLY or util.find_spec(package) is None:
            continue
        versions[package], names = metadata.version(distribution), defined(package)
        for feature, (_, pattern, yes) in ROWS.items():
            name = yes.get(package, NO)
            hits = sorted(n for n in names if re.search(pattern, n, re.I))
            if name not in (NO, READ) and name not in names:
                wrong.append(f"{package} {versions[package]} has no `{name}` ({feature}): {hits}")
            if name == NO and hits:
                wrong.append(f"{package} has {hits[:4]} and is said to lack: {feature}")
    if wrong:
        raise SystemExit("\n".join(wrong))
    return versions


def page(versions: dict[str, str]) -> str:
    """Return the page."""
    heads = [heading for _, heading in PEERS.values()]
    lines = [
        "# How it compares",
        "",
        "What this library and its neighbours have. Made by `python -m benchmarks.peers.compare`,"
        " which reads the classes and\nfunctions that the installed packages define: "
        + ", ".join(f"{PEERS[p][1]} {v}" for p, v in versions.items())
        + ".\n`name`: that is defined there. ✓: from reading sources and documentation, as no"
        " single name says it (for probly of\nversion 0.9.1, which is newer than what could be"
        " installed). –: nothing of the kind was found. A row says that something is there,\nnot"
        " that it is right, fast or maintained: [speed](speed.md) measures some of it.",
        "",
        f"| | polymode | {' | '.join(heads)} |",
        f"|---|---|{'---|' * len(heads)}",
    ]
    for feature, (ours, _, yes) in ROWS.items():
        cells = [shown(ours), *(shown(yes.get(package, NO)) for package in PEERS)]
        lines.append(f"| {feature} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", WHERE_OTHERS_ARE_AHEAD])


def shown(name: str) -> str:
    return "–" if name == NO else "✓" if name == READ else f"`{name}`"


WHERE_OTHERS_ARE_AHEAD = """\
## Where others are ahead

- **TorchUncertainty** has data modules for many vision benchmarks, published weights, recipes of
  ImageNet size, and its methods as layers that go into any training loop of Lightning.
- **laplace-torch** is the reference for Laplace approximations, with functional and subnetwork
  variants and many back ends, and what papers cite; it has been used on language models.
- **posteriors** is small: an algorithm is one file of pure functions, and it has an extended Kalman
  filter. For research on samplers in `torch.func` it is less to read than this library.
- **lightning-uq-box** has generative models of images and conditional density estimation, and
  Lightning's whole machinery (several GPUs, mixed precision, loggers).
- **probly** has credal sets, measures of second-order distributions and active learning.
- **bde** runs in JAX, which compiles the sampling of small networks as a whole.
- **MAPIE** works with any scikit-learn model, and has time series, Venn–Abers predictors and
  control of general risks.

polymode runs on one machine or a few, in float32 or float64; it has no trainer for mixed precision
and no recipes of ImageNet size.
"""


def main() -> None:
    if "--page" in sys.argv[1:]:
        versions = json.loads(STORED.read_text())["versions"]
    else:
        versions = look_up()
        STORED.write_text(json.dumps({"versions": versions}, indent=1) + "\n")
    PAGE.write_text(page(versions))


if __name__ == "__main__":
    main()
