"""The study of dropout with α-divergences: set-ups, the paper's numbers, tables and verdicts."""

from __future__ import annotations

import math

import pytest
import torch

from polymode import nets
from polymode.prediction import MixturePrediction
from polymode.studies import STUDIES, Runs
from polymode.studies.alpha_dropout import hmc_column, mnist, published, uci
from polymode.studies.alpha_dropout.published import name_of

STUDY = STUDIES.get("alpha_dropout").value
ALPHAS = {"α = 0": 0.0, "α = 0.5": 0.5, "α = 1": 1.0}


def test_the_preset_paper_is_the_papers_set_up() -> None:
    parts = STUDY.parts("paper")
    for name in published.NLL:
        part = parts[f"uci_{name}"]
        assert part.seeds == tuple(range(20))
        assert {arm: options["alpha"] for arm, options in part.arms.items()} == ALPHAS
    for name, net, size in (("mnist_mlp", "mlp", 89_610), ("mnist_cnn", "cnn", 471_478)):
        part = parts[name]
        built = getattr(nets, part.net)((1, 28, 28), 10, **part.net_options)
        assert part.net == net and sum(p.numel() for p in built.parameters()) == size
        assert part.task_options["num_train"] == 60_000
        for arm, alpha in ALPHAS.items():
            method, options, net_options = part.arms[arm]
            assert (method, options["alpha"], options["num_passes"]) == ("dropout", alpha, 10)
            assert options["samples_per_mode"] == 100 and options["epochs"] == 500
            assert (options["optimizer"], options["lr"]) == ("sgd", 0.01)
            assert options["batch_size"] == 128 and net_options["dropout"] == 0.5
            assert options["prior_precision"] / (2 * 60_000) == pytest.approx(1e-6)
    assert parts["mnist_mlp"].arms["α = 0"].net_options["input_dropout"] == 0.5
    assert parts["mnist_passes"].net_options["hidden"] == [1024] * 4
    assert list(parts["mnist_passes"].arms) == ["K = 1", "K = 10", "K = 100"]


def test_smoke_needs_no_files_and_cpu_has_all_splits() -> None:
    smoke, cpu = STUDY.parts("smoke"), STUDY.parts("cpu")
    assert all(getattr(part, "task", "digits") == "digits" for part in smoke.values())
    assert smoke["uci_wiggle"].data == () and cpu["uci_yacht"].data == ("uci",)
    assert all(len(cpu[f"uci_{name}"].seeds) == 20 for name in published.NLL)
    assert set(cpu["uci_boston"].arms) == set(ALPHAS)


def test_numbers_of_the_paper() -> None:
    assert [value.mean for value in published.NLL["yacht"]] == [1.38, 1.08, 1.15]
    assert [published.NLL[name][1].mean for name in published.TARGETS] == [
        2.38, 2.88, 2.78, -1.03, 0.92, 1.08,
    ]  # fmt: skip
    constant = 0.5 * math.log(2 * math.pi * 0.01472**2) + 0.5
    assert constant == pytest.approx(published.TRIVIAL_NAVAL, abs=0.005)


def test_the_factor_of_the_noise() -> None:
    """Noise that is half as large as the errors is doubled; the score is that of the result."""
    stream = torch.Generator().manual_seed(0)
    values = torch.randn(4000, 1, generator=stream, dtype=torch.float64)
    narrow = MixturePrediction(torch.zeros(1, 4000, 1, dtype=torch.float64), 0.5)
    nll, factor = uci.best_factor(narrow, values)
    assert factor == 2.0
    assert nll == pytest.approx(0.5 * math.log(2 * math.pi) + values.square().mean().item() / 2)


def test_a_split_chooses_inside_its_training_part(monkeypatch) -> None:
    """The rate with the lower NLL on held-out data is refitted, at its length, on the whole part;
    the test set is scored once. Scores against their definitions."""
    fitted = []
    plain = uci.fit

    def watched(method, **how):
        fitted.append((how["net"].keywords["dropout"], how["epochs"], how["task"]))
        return plain(method, **how)

    monkeypatch.setattr(uci, "fit", watched)
    scored = []
    monkeypatch.setattr(
        uci, "_scores", lambda *what: scored.append(what) or uci.Findings((), {}, "")
    )
    uci.split(3, dataset="wiggle", alpha=0.5, rates=[0.005, 0.9, 0.95, 0.97], epochs=[60, 20])
    tried = [(rate, epochs) for rate, epochs, _ in fitted]
    assert tried[:4] == [(0.005, 20), (0.9, 20), (0.95, 20), (0.97, 20)]
    assert tried[4] == (0.005, 60) and len(tried) == 7  # the better half goes on
    assert tried[6] == (0.005, 60) == scored[0][2:4]
    prediction, values = scored[0][:2]
    assert torch.equal(values, fitted[6][2].test.y.double())
    assert prediction.scale.unique().numel() == 1


def test_scores_against_their_definitions() -> None:
    loc = torch.tensor([[[0.0], [1.0]], [[2.0], [1.0]]], dtype=torch.float64)
    values = torch.tensor([[1.0], [3.0]], dtype=torch.float64)
    found = uci._scores(MixturePrediction(loc, 1.0), values, 0.1, 20, 1.5)
    density = lambda y, m, v: math.exp(-((y - m) ** 2) / (2 * v)) / math.sqrt(2 * math.pi * v)  # noqa: E731
    mixture = -(math.log(0.5 * density(1, 0, 1) + 0.5 * density(1, 2, 1)))
    assert found["nll"].value == pytest.approx((mixture - math.log(density(3, 1, 1))) / 2)
    moments = -(math.log(density(1, 1, 2)) + math.log(density(3, 1, 1))) / 2
    assert found["nll_moments"].value == pytest.approx(moments)
    assert found["rmse"].value == pytest.approx(math.sqrt(2))
    assert found["coverage_90"].value == 0.5 and found["noise"].value == 1.0
    chosen = [found[name].value for name in ("chosen_rate", "chosen_epochs", "noise_factor")]
    assert chosen == [0.1, 20, 1.5]


@pytest.fixture
def runs(make) -> Runs:
    """Yacht as in the paper, ±; naval that learns; α = 0.5 is better on the MLP, K = 10 too."""
    found: dict[str, list] = {}
    for seed in range(4):
        wobble = 0.01 * (seed - 1.5)
        for dataset, shift in (("yacht", 0.0), ("naval", -3.0)):
            part = f"uci_{dataset}"
            for place, alpha in enumerate(published.ALPHAS):
                nll = published.NLL[dataset][place].mean + shift + (1 + place) * wobble
                names = ("nll", "nll_moments", "rmse", "chosen_rate", "chosen_epochs")
                numbers = {(f"examined:{part}", name): 1.0 for name in names}
                numbers |= {(f"examined:{part}", "nll"): nll}
                found.setdefault(part, []).append(make(name_of(alpha), seed, numbers))
        for part, arms in (
            ("mnist_mlp", (mnist.PLAIN, *ALPHAS)),
            ("mnist_passes", ("K = 1", "K = 10")),
        ):
            for place, arm in enumerate(arms):
                numbers = {
                    ("test", "nll"): 0.3 - 0.05 * place + wobble * (1 + 0.1 * place),
                    ("test", "accuracy"): 0.9 + 0.01 * place + 0.1 * wobble * place,
                    ("test", "ece"): 0.01,
                }  # fmt: skip
                found.setdefault(part, []).append(make(arm, seed, numbers))
    return Runs(found)


def test_tables_have_the_papers_columns(runs) -> None:
    tables = STUDY.tables(runs)
    nll = tables["uci_nll"]
    lines = {line[0]: dict(zip(nll.head, line, strict=True)) for line in nll.lines}
    assert lines["yacht"]["α = 0.5"] == "1.08 ± 0.01"
    assert lines["yacht"]["paper, α = 0.5"] == "1.08 ± 0.04"
    assert lines["naval"]["HMC, quoted there"] == "−7.31"
    assert {"uci_nll_moments", "uci_rmse", "uci_chosen", "mnist_mlp", "mnist_passes"} < set(tables)
    assert tables["mnist_passes"].lines[1][2] == "1.0"  # seconds to those of K = 1
    assert set(STUDY.figures(runs)) == {"mnist_passes"}
    assert STUDY.tables(Runs({})) == {} and STUDY.claims(Runs({})) == []


def test_claims_and_their_verdicts(runs) -> None:
    claims = {claim.text: claim for claim in STUDY.claims(runs)}
    yacht = claims["yacht: α = 0.5 has a lower NLL than α = 0"]
    assert yacht.verdict == "holds" and yacht.paper == "−0.30 nats"
    assert yacht.ours.startswith("NLL, α = 0.5 − α = 0, nats: −0.300 [−0.3")
    assert claims["naval: α = 0.5 has a lower NLL than α = 0"].verdict == "undecided"
    learns = [claim for text, claim in claims.items() if "learns something" in text]
    assert [claim.verdict for claim in learns] == ["holds"]
    assert claims["mnist_mlp: α = 0.5 has a lower NLL than α = 0"].verdict == "holds"
    ten = "MNIST: ten passes in a training step reach a lower NLL than one"
    assert claims[ten].verdict == "holds"


def test_comparisons_with_the_paper(runs) -> None:
    found = {each.label: each for each in STUDY.comparisons("cpu", runs)}
    assert found["yacht, α = 0.5, NLL"].verdict == "reproduced"
    assert found["yacht, α = 0.5, NLL"].tolerance == pytest.approx(0.08)
    assert found["boston, α = 0.5, NLL"].verdict == "n/a"
    assert not any("naval" in label or "energy" in label for label in found)
    assert STUDY.comparisons("smoke", runs) == []


@pytest.mark.parametrize("method", ["hmc", "mile"])
def test_chains_choose_their_prior_inside_the_training_part(monkeypatch, method) -> None:
    """Every precision is tried on the task with a fifth held out; the best of them there is
    sampled, longer, on the whole part, and its test set is scored once."""
    sampled, scored = [], []
    (part, _), (whole, _) = uci.tasks_of("wiggle", 1), uci.tasks_of("wiggle", 1)
    plain, predicted = hmc_column.fit, hmc_column.predicted

    def watched(name, **how):
        sampled.append((name, how["prior_precision"], how["epochs"], how["task"] is whole))
        return plain(name, **how)

    def seen(post, data):
        found, values = predicted(post, data)
        scored.append((-found.log_prob(values).mean().item(), len(values)))
        return found, values

    monkeypatch.setattr(hmc_column, "fit", watched)
    monkeypatch.setattr(hmc_column, "predicted", seen)
    monkeypatch.setattr(hmc_column, "tasks_of", lambda dataset, seed: (part, whole))
    found = hmc_column.split(
        1, dataset="wiggle", method=method, precisions=[1.0, 30.0], steps=[8, 10], leapfrog_steps=2,
        training_steps=3, hidden=4, num_chains=2, samples=4,
    )  # fmt: skip
    longer = 3 if method == "mile" else 0
    assert sampled[:2] == [(method, each, 8 + longer, False) for each in (1.0, 30.0)]
    best = min(zip(scored[:2], (1.0, 30.0), strict=True))[1]
    assert sampled[2] == (method, best, 10 + longer, True) and len(scored) == len(sampled) == 3
    assert found["chosen_precision"].value == best
    assert found["nll"].value == pytest.approx(scored[2][0]) and found["r_hat"].value > 0


def test_the_hmc_column_stands_beside_dropout_on_the_same_splits(make) -> None:
    """Dropout has a split more than the chains; it is left out. The verdict is that of the paired
    difference; without dropout the claim is not run."""
    part, own = "uci_boston", "uci_hmc_boston"
    numbers = {0: (2.5, 2.3), 1: (2.6, 2.41), 2: (2.4, 2.19)}
    alpha = [
        make("α = 0.5", seed, {(f"examined:{part}", "nll"): value})
        for seed, value in [*((s, a) for s, (a, _) in numbers.items()), (3, 9.0)]
    ]
    hmc = [
        make("HMC", seed, {(f"examined:{own}", "nll"): value})
        for seed, (_, value) in numbers.items()
    ]
    both = Runs({part: alpha, own: hmc})
    table = hmc_column.tables(both)["uci_hmc_nll"]
    line = dict(zip(table.head, table.lines[0], strict=True))
    assert line["HMC"].startswith("2.30") and line["α = 0.5"].startswith("2.50")
    assert line["HMC, quoted in the paper"] == "2.27 ± 0.03" and line["MILE"] == "n/a"
    claim = next(each for each in hmc_column.claims(both) if "HMC" in each.text)
    assert claim.verdict == "holds" and claim.paper == "−0.11 nats"
    assert hmc_column.claims(Runs({own: hmc}))[0].verdict == "not run"
    compared = hmc_column.comparisons("cpu", both)
    assert [each.verdict for each in compared] == ["reproduced", "n/a", "n/a"]
