"""The study of FoRDE: the paper's set-up, its numbers, and what is made of results."""

from __future__ import annotations

import pytest

from polymode import nets
from polymode.studies import STUDIES, Runs
from polymode.studies.forde import published, setup, tables
from polymode.studies.forde.claims import claims
from polymode.studies.forde.setup import SAME_BATCHES
from polymode.studies.study import parts_of

STUDY = STUDIES.get("forde").value
CLEAN, SHIFTED = ("test", "accuracy"), ("shift:fog:1", "accuracy")


@pytest.mark.parametrize(
    ("name", "classes", "epochs", "examples"),
    [
        ("cifar10", 10, 300, 45_000),
        ("cifar100", 100, 300, 45_000),
        ("tiny_imagenet", 200, 150, 90_000),
    ],
)
def test_the_preset_paper_is_the_papers_set_up(name, classes, epochs, examples):
    """Sizes, optimiser, schedule, weight decay and corruptions of the paper and its code."""
    part = STUDY.parts("paper")[name]
    assert part.task == name and part.net == "resnet18" and part.seeds == (0, 1, 2, 3, 4)
    assert part.net_options["zero_head"] is True
    assert part.net_options.get("preactivation", False) is (name == "tiny_imagenet")
    net = nets.resnet18((3, 32, 32), classes, **part.net_options)
    assert sum(p.numel() for p in net.parameters()) > 11e6
    assert len(part.task_options["shifts"]) == 19 and part.task_options["num_val"] == examples // 9
    for method, options, _ in part.arms.values():
        training = {key: options[key] for key in ("optimizer", "momentum", "lr", "schedule")}
        assert training == {
            "optimizer": "nesterov", "momentum": 0.9, "lr": 0.1, "schedule": "ramp",
        }  # fmt: skip
        assert options["epochs"] == epochs and options["batch_size"] == 128
        assert options["num_modes"] == 10
        assert options["prior_precision"] / examples == pytest.approx(5e-4)
        if method == "forde":
            assert "weight" not in options and "bandwidth" not in options  # the code's, by default
            assert options.get("num_components") is None
    sweep = {
        options.get("alpha", 0.0) for method, options, _ in part.arms.values() if method == "forde"
    }
    expected = {0, 0.1, 0.2, 0.4, 0.8, 1} if name.startswith("cifar") else {0, 1}
    assert sweep == expected


def test_the_figures_have_sixteen_members():
    for preset in ("cpu", "paper"):
        for name in ("regression", "classification"):
            arms = STUDY.parts(preset)[name].arms
            assert {options["num_modes"] for _, options, _ in arms.values()} == {16}
            assert list(arms) == ["DE", SAME_BATCHES, "weight-RDE", "function-RDE", "FoRDE"]


def test_the_preset_cpu_has_real_data_and_seeds_enough():
    parts = STUDY.parts("cpu")
    assert parts["fashion_mnist"].net == "lenet" and len(parts["fashion_mnist"].seeds) == 5
    assert len(parts["cifar10_subset"].seeds) >= 3
    for name in ("fashion_mnist", "cifar10_subset"):
        kinds = parts[name].task_options["shifts"]
        assert len(kinds) == 15 and "speckle_noise" not in kinds  # kept for choosing alpha
        assert parts[name].validation
    few, long = (parts[f"fashion_mnist_{name}"].arms["DE"].options for name in ("few", "long"))
    assert long == {**few, "epochs": 5 * few["epochs"]}
    twos = {
        "fashion_mnist_few": "lenet",
        "fashion_mnist_long": "lenet",
        "cifar10_resnet8": "resnet8",
    }
    for name, net in twos.items():
        assert parts[name].net == net
        assert list(parts[name].arms) == ["DE", SAME_BATCHES, "FoRDE-PCA"]
    mlps = parts["fashion_mnist_mlp"]
    assert mlps.net == "mlp" and len(mlps.seeds) == 8
    assert {arm.options["num_modes"] for arm in mlps.arms.values()} == {10}
    assert {"DE", "FoRDE-Identity", "FoRDE-PCA", "PCA, weight 1"} < set(mlps.arms)
    assert {"feature-RDE", "LIT"} < set(parts["fashion_mnist"].arms)
    pca = parts["fashion_mnist"].arms["FoRDE-PCA"].options
    for name, more in setup.VARIANTS.items():
        assert parts["fashion_mnist"].arms[name].options == {**pca, **more}


def test_numbers_of_the_paper():
    """The lines that the claims rest on, as printed."""
    ours = published.CIFAR10["FoRDE-PCA"]
    assert ours[:6] == (0.125, 96.1, 0.006, 80.5, 0.71, 0.07)
    assert published.CIFAR10["DE"][:6] == (0.117, 96.3, 0.005, 78.1, 0.78, 0.08)
    assert published.CIFAR100["FoRDE-Tuned"][:6] == (0.70, 82.1, 0.044, 55.3, 1.94, 0.05)
    assert published.TINY_IMAGENET["DE"][:6] == (1.15, 71.6, 0.035, 31.8, 3.38, 0.09)
    assert all(len(table) >= 6 for table in published.TABLES.values())


def cell(make, arm, seed, clean, shifted, val=1.0):
    numbers = {CLEAN: clean, SHIFTED: shifted, ("shift:fog:2", "accuracy"): shifted - 0.1}
    for dataset in ("test", "shift:fog:1", "shift:fog:2"):
        numbers |= {(dataset, "nll"): 2 - numbers[dataset, "accuracy"], (dataset, "ece"): 0.1}
    numbers |= {("val:spatter:1", "nll"): val, ("val:spatter:2", "nll"): val + 0.2}
    return make(arm, seed, numbers)


@pytest.fixture
def runs(make):
    """Corrupted accuracy rises with alpha by 3 points; 0.4 is best on the validation set."""
    found = []
    for seed in range(3):
        noise = 1e-3 * seed
        found.append(cell(make, "DE", seed, 0.9 + noise, 0.70 + noise))
        for alpha in setup.ALPHAS:
            better = 0.70 + 0.03 * alpha + (1 + 1e-2 * alpha) * noise
            clean = 0.9 + noise - 1e-4 * (seed - 1)
            val = 1 + abs(alpha - 0.4)
            found.append(cell(make, setup.name_of(alpha), seed, clean, better, val))
    return Runs({"cifar10_subset": found})


def test_alpha_is_chosen_on_the_validation_set(runs):
    """The test set would choose 1: its NLL falls with alpha."""
    assert tables.chosen_alpha(runs, "cifar10_subset") == 0.4
    assert tables.arm_of(runs, "cifar10_subset", "FoRDE-Tuned") == "FoRDE α=0.4"
    assert tables.chosen_alpha(Runs({}), "cifar10_subset") is None


def test_the_benchmark_table(runs):
    table = tables.benchmark(runs, "cifar10_subset")
    assert table is not None
    lines = {line[0]: dict(zip(table.head, line, strict=True)) for line in table.lines}
    assert list(lines) == ["DE", "FoRDE-PCA", "FoRDE-Identity", "FoRDE-Tuned (α = 0.4)"]
    assert lines["DE"]["cA % ↑"] == "65.10 ± 0.06"  # mean of two severities and three seeds
    assert lines["FoRDE-Tuned (α = 0.4)"]["cA % ↑"].startswith("66.30")
    gaps = tables.differences(runs, "cifar10_subset")
    assert gaps is not None
    pca = next(line for line in gaps.lines if line[0] == "FoRDE-PCA")
    assert pca[gaps.head.index("cA % ↑")].startswith("+3.00 [+") and pca[-2].endswith("†")
    assert tables.variants(runs, "cifar10_subset") is None  # only Fashion-MNIST has them
    assert set(STUDY.tables(runs)) == {
        "benchmark_cifar10_subset", "differences_cifar10_subset", "families_cifar10_subset",
        "paper_cifar10_subset",
    }  # fmt: skip


def test_differences_by_kind_of_corruption(runs):
    """The runs have fog alone, which is weather."""
    table = tables.families(runs, "cifar10_subset")
    assert table is not None and table.head == ("method", "noise", "blur", "weather", "digital")
    pca, identity = table.lines
    assert pca[3].startswith("+3.00 [+") and pca[3].endswith("†")
    assert (pca[1], pca[2], pca[4]) == ("n/a",) * 3
    assert identity[0] == "FoRDE-Identity" and identity[3].startswith("+0.00")
    kinds = [kind for family in setup.FAMILIES.values() for kind in family]
    assert sorted(kinds) == sorted(setup.HELD_OUT)


def test_claims_are_judged_against_the_better_order_of_the_ensemble(make):
    """FoRDE-PCA is above the one with shared batches, and below the other."""
    cells = []
    for seed in range(4):
        n = seed / 1000
        cells += [
            cell(make, "DE", seed, 0.9 + n, 0.74 + n),
            cell(make, SAME_BATCHES, seed, 0.9 + n, 0.70 + n),
            cell(make, "FoRDE-PCA", seed, 0.9 + n, 0.72 + 1.1 * n),
        ]
    (claim,) = (c for c in claims(Runs({"digits": cells})) if "higher corrupted" in c.text)
    assert "PCA − DE," in claim.ours and claim.verdict == "does not hold"
    cells = [c if c.label != "DE" else c.replace(label="elsewhere") for c in cells]
    (claim,) = (c for c in claims(Runs({"digits": cells})) if "higher corrupted" in c.text)
    assert f"PCA − {SAME_BATCHES}," in claim.ours and claim.verdict == "holds"


def test_arms_train_on_all_data_to_the_last_step():
    for part in parts_of(STUDY, "cpu").values():
        assert all(arm.options["holdout"] == 0 for arm in part.arms.values())


def test_parts_with_two_arms_have_three_claims(make):
    cells = [cell(make, arm, seed, 0.9, 0.7) for arm in ("DE", "FoRDE-PCA") for seed in range(2)]
    found = claims(Runs({"fashion_mnist_few": cells}))
    assert len(found) == 3 and {claim.verdict for claim in found} <= {"undecided", "holds"}


def test_claims_follow_the_numbers(runs):
    found = {claim.text.split(": ")[1]: claim for claim in claims(runs)}
    assert {claim.verdict for claim in found.values()} == {"holds"}
    assert len(found) == 5
    rising = found["corrupted accuracy rises with α"]
    assert rising.ours.startswith("slope, points from α = 0 to 1: +3.0")


def test_claims_that_do_not_hold(make):
    """PCA is below DE, everywhere and clearly; Identity above both."""
    found = []
    for seed in range(3):
        n = 1e-3 * seed
        found += [
            cell(make, "DE", seed, 0.9 + n, 0.7 + n),
            cell(make, "FoRDE-PCA", seed, 0.85 + 1.1 * n, 0.6 + 1.1 * n),
            cell(make, "FoRDE-Identity", seed, 0.9 + n, 0.8 + 1.1 * n),
        ]
    verdicts = [claim.verdict for claim in claims(Runs({"digits": found}))]
    assert verdicts == ["does not hold"] * 4 + ["not run"]


def test_a_gain_that_identity_has_as_well_is_not_of_the_lengthscales(make):
    """Both lie two points above DE; which of them is higher differs between seeds."""
    found = []
    for seed in range(3):
        n = 1e-3 * seed
        found += [
            cell(make, "DE", seed, 0.9, 0.7 + n),
            cell(make, "FoRDE-PCA", seed, 0.9, 0.72 + 1.1 * n),
            cell(make, "FoRDE-Identity", seed, 0.9, 0.721 + 0.1 * n),
        ]
    verdicts = {claim.text: claim.verdict for claim in claims(Runs({"digits": found}))}
    assert verdicts["digits: FoRDE-PCA has a higher corrupted accuracy than DE"] == "holds"
    (lengthscales,) = (text for text in verdicts if "not from Identity" in text)
    assert verdicts[lengthscales] == "does not hold"


def test_only_the_papers_own_set_up_is_held_against_its_numbers(make):
    numbers = {("test", "nll"): 0.118, CLEAN: 0.963, ("test", "ece"): 0.03}
    runs = Runs({"cifar10": [make("DE", seed, numbers) for seed in (0, 1)]})
    assert STUDY.comparisons("cpu", runs) == []
    found = {each.label: each for each in STUDY.comparisons("paper", runs)}
    assert found["DE, cifar10, nll"].verdict == "reproduced"
    assert found["DE, cifar10, accuracy"].ours == pytest.approx(96.3)
    assert found["DE, cifar10, ece"].verdict == "outside"
    assert found["DE, cifar10, corrupted nll"].verdict == "n/a"
    assert found["LIT, cifar100, accuracy"].ours is None
