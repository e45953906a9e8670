"""Numbers in the README are those of `results/`; code in the docs runs."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from polymode.cli.app import main
from polymode.training.options import Passes

ROOT = Path(__file__).parents[1]


@pytest.mark.cpu_seconds(8)
def test_readme_tables_are_made_from_results() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "docs.tables", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr


def test_links_in_the_docs_lead_somewhere() -> None:
    broken = []
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if not target.startswith("http") and not (page.parent / target).exists():
                broken.append(f"{page.name}: {target}")
    assert not broken


@pytest.mark.cpu_seconds(6)
def test_the_code_of_the_metrics_page_runs() -> None:
    """Its blocks in order, as one program, with one epoch."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/metrics.md").read_text(), re.S)
    assert len(blocks) == 2
    exec(re.sub(r"epochs=\d+", "epochs=1", "".join(blocks)), {})


def test_the_code_of_the_page_on_likelihoods_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/likelihoods.md").read_text(), re.S)
    assert len(blocks) == 2
    exec(re.sub(r"epochs=\d+", 'epochs=2, progress="silent"', "".join(blocks)), {})


@pytest.mark.cpu_seconds(6)
def test_the_code_of_the_page_on_frozen_bodies_runs(tmp_path, monkeypatch) -> None:
    """Its blocks in order, as one program; what it says of sizes and storage is so."""
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/frozen-bodies.md").read_text(), re.S)
    names: dict[str, Any] = {}
    exec(re.sub(r"epochs=\d+", 'epochs=1, progress="silent"', "".join(blocks)), names)
    assert "1,290 of 50,826 parameters, the rest held once" in repr(names["post"])
    assert names["post"].weights.kind == "on_trunk/samples"
    assert names["adapters"].stack.shares


@pytest.mark.cpu_seconds(8)
def test_the_page_on_error_bars_ends_in_a_picture(tmp_path, monkeypatch) -> None:
    """Its block as it is: the network is not changed, and inputs from elsewhere are less certain.

    Everything is seeded; the differences are large."""
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/error-bars.md").read_text(), re.S)
    names: dict[str, Any] = {}
    exec(block, names)
    assert (tmp_path / "error-bars.svg").read_bytes().startswith(b"<?xml")
    weights = [names[post].members[0][-1].weight for post in ("before", "after")]
    assert weights[0].equal(weights[1]) and weights[0].equal(names["model"][-1].weight)
    outside = names["after"].predict(names["task"].ood["scrambled"])
    inside = names["pred"].mutual_information.median()
    assert outside.mutual_information.median() > 3 * inside


@pytest.mark.cpu_seconds(12)
def test_the_code_of_the_segmentation_page_runs(tmp_path, monkeypatch) -> None:
    """Its blocks in order, as one program, with one epoch and few images."""
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/segmentation.md").read_text(), re.S)
    few = "pm.task(\\1, num_train=20, num_test=20, shifts=())"
    code = re.sub(r'pm.task\(("shapes\w*")\)', few, "".join(blocks))
    exec(re.sub(r"epochs=\d+", 'epochs=1, progress="silent"', code), {})


def test_the_code_of_the_reference_page_runs() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/reference.md").read_text(), re.S)
    names: dict[str, Any] = {}
    block = re.sub(r"epochs=\d+", "epochs=12", block)
    exec(block.replace("leapfrog_steps=20", "leapfrog_steps=2, samples_per_mode=4"), names)
    assert names["theirs"].num_modes == 4


def test_the_code_of_the_examinations_page_runs(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/examinations.md").read_text(), re.S)
    exec(re.sub(r"epochs=\d+", "epochs=2", block), {})
    assert (tmp_path / "report.html").is_file()


def test_the_code_of_the_page_on_modules_runs(tmp_path, monkeypatch) -> None:
    """Its blocks in order, as one program; tests/hf runs those that need transformers as well."""
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs/your-module.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.S)
    plain = "".join(block for block in blocks if "transformers" not in block)
    names: dict[str, Any] = {}
    exec(re.sub(r"epochs=\d+", 'epochs=1, progress="silent"', plain), names)
    assert isinstance(names["post"].members[0], names["Encoder"])


@pytest.mark.cpu_seconds(6)
def test_the_code_of_the_positions_page_runs() -> None:
    """Its blocks in order, as one program, with few epochs."""
    page = (ROOT / "docs/positions.md").read_text()
    names: dict[str, Any] = {}
    blocks = "".join(re.findall(r"```python\n(.*?)```", page, re.S))
    exec(re.sub(r"epochs=5\b", "epochs=1", blocks), names)
    assert names["pred"].mean.shape == (8, 16, 16, 2)
    assert len(names["rows"].prediction) == 8 * 15 * 16


@pytest.mark.cpu_seconds(6)
def test_a_posterior_ships_with_its_rules_as_the_page_says(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs/recalibration.md").read_text().split("## Ship it")[1]
    (block,) = re.findall(r"```python\n(.*?)```", page, re.S)
    names: dict[str, Any] = {}
    exec(block, names)
    assert names["answer"].region.members.shape == (len(names["task"].test), 10)
    assert 0 < names["answer"].accepted.sum()


def test_the_code_of_the_page_of_zoos_runs(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/zoo.md").read_text(), re.S)
    names: dict[str, Any] = {}
    exec("".join(blocks), names)
    assert names["post"].num_modes == 20 and names["stack"].num_modes == 10
    assert names["zoo"].verify() == []


@pytest.mark.cpu_seconds(10)
def test_the_code_of_the_equivariance_page_runs() -> None:
    """Its blocks in order, as one program, with one epoch; what the last line says is so."""
    page = (ROOT / "docs/equivariance.md").read_text()
    blocks = "\n".join(re.findall(r"```python\n(.*?)```", page, re.S))
    names: dict[str, Any] = {}
    exec(re.sub(r"epochs=\d+", 'epochs=1, batch_size=256, progress="silent"', blocks), names)
    assert names["exact"]["member_same_predictions"].value == 4


@pytest.mark.cpu_seconds(6)
def test_the_code_of_the_symmetry_page_runs() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/symmetry.md").read_text(), re.S)
    names: dict[str, Any] = {}
    exec(re.sub(r"epochs=\d+", "epochs=1", block), names)
    assert round(names["found"].log_permutations, 1) == 786.4
    assert len(names["form"]) == len(names["near"]) == len(names["cost"].minimum) == 4


def test_the_code_of_the_page_on_kernels_runs() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/kernels.md").read_text(), re.S)
    names: dict[str, Any] = {}
    exec(block, names)
    assert names["found"].deviation() < 1e-10 < names["found"].deviation(names["needed"]) <= 0.05
    error = (names["near"] - names["ntk"]).abs().max() / names["ntk"].max()
    assert error < 0.3


@pytest.mark.filterwarnings("ignore:the evidence chose noise:UserWarning")  # of three steps
def test_the_code_of_the_page_on_tomography_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/tomography.md").read_text(), re.S)
    assert len(blocks[0].strip().splitlines()) - 3 == 5  # an own operator in five lines
    names: dict[str, Any] = {}
    with pytest.warns(UserWarning, match="did not come down"):
        exec(re.sub(r"steps=\d+", "steps=3", "".join(blocks)), names)
    assert names["found"].samples.shape == (5, 1, 1, 28, 28)
    assert names["smooth"].shape == names["image"].shape == (1, 1, 28, 28)
    assert names["outcome"].posterior.std.shape == (28, 28)


def test_the_code_of_the_page_on_attacks_runs() -> None:
    page = (ROOT / "docs/adversary.md").read_text()
    block, tokens = re.findall(r"```python\n(.*?)```", page, re.S)
    names: dict[str, Any] = {}
    exec(re.sub(r"epochs=\d+", "epochs=3", block), names)
    assert names["found"].accuracy < names["found"].clean_accuracy
    assert len(names["known"].attacks) == 3
    exec(tokens, names)
    assert names["found"].space == "embedding 'words'"
    assert names["found"].adversarial.shape == (64, 5, 8)


@pytest.mark.cpu_seconds(14)
def test_the_six_questions_are_answered_by_blocks_that_run(capsys) -> None:
    """As they are; everything is seeded, and the differences are large."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/questions.md").read_text(), re.S)
    names: dict[str, Any] = {}
    assert len(blocks) == 7
    exec(blocks[0], names)
    with pytest.warns(UserWarning, match="nothing was learnt"):
        exec(blocks[1], names)
    exec("".join(blocks[2:]), names)

    def score(post: str, metric: str) -> float:
        return names["pm"].evaluate(names[post], names["task"])["test", metric].value

    assert score("heavy", "nll") > 0.6 > 0.1 > score("right", "nll")
    assert score("linear", "accuracy") > score("sampled", "accuracy") + 0.03
    out = capsys.readouterr().out
    assert "[0.56 0.44]" in out and "[0.88 0.12]" in out


METHODS = ["dropout", "sghmc", "sgld", "sgnht", "cyclical_sgmcmc", "snapshot", "swag"]
METHODS += ["packed", "batch_ensemble", "tabm", "masksembles", "lp_bnn", "mimo"]
METHODS += ["ema", "swa", "mc_batchnorm", "vbll", "tfb", "evidential", "sngp", "ddu"]
METHODS += ["checkpoint_ensemble", "vi", "ivon", "laplace", "laplace_map", "hmc", "mile"]


@pytest.mark.cpu_seconds(8)
def test_the_code_of_the_page_on_audits_runs(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/audit.md").read_text(), re.S)
    names: dict[str, Any] = {}
    exec(block, names)
    assert (tmp_path / "audit" / "audit.html").is_file() and (tmp_path / "better").is_dir()
    assert names["audit"].severity == "high"


@pytest.mark.parametrize("method", METHODS)
def test_the_code_of_the_methods_pages_runs(method, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(
        r"```python\n(.*?)```", (ROOT / f"docs/methods/{method}.md").read_text(), re.S
    )
    names: dict[str, Any] = {}
    exec(re.sub(r"epochs=\d+", "epochs=4", block), names)
    assert names["pred"].num_samples == names["post"].num_samples > 1


STAND_INS = """
import torch
from torch import nn
torch.manual_seed(0)
x_train, y_train = torch.randn(40, 4), torch.arange(40) % 10
x_test, y_test, x, y, x_new = x_train, y_train, x_train, x_train[:, :1], x_train
data = torch.utils.data.TensorDataset(x_train, y_train)
my_loader = torch.utils.data.DataLoader(data, 20, shuffle=True)
def MyNet(width=8):
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 10))
my_module, a, b, c = MyNet(), MyNet(), MyNet(), MyNet()
"""


@pytest.fixture
def two_epochs(monkeypatch) -> None:
    """However many epochs the text asks for, there are at most two; the text stays as it is."""
    whole = Passes.num_epochs
    monkeypatch.setattr(Passes, "num_epochs", lambda self, steps: min(whole(self, steps), 2))


def run_page(page: str, folder: Path, monkeypatch) -> dict[str, Any]:
    """Run all blocks of a page as they are written, in order, as one program; return its names."""
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {}
    exec(STAND_INS, names)
    for block in re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.S):
        exec(block, names)
    return names


@pytest.mark.cpu_seconds(16)
def test_the_readmes_first_example_runs_as_pasted(tmp_path, monkeypatch) -> None:
    """Nothing is changed or defined before; .ci/release-check also runs the second one."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    first, _ = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    exec(first, names)
    assert names["post"].method == "laplace" and float(names["pred"].mutual_information.min()) >= 0
    assert (tmp_path / "report.html").is_file()


def test_the_readmes_second_example_runs_as_pasted() -> None:
    pytest.importorskip("pandas")
    names: dict[str, Any] = {}
    _, second = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    exec(second, names)
    assert names["model"].predict_interval(names["table"].drop(columns="target")).shape == (442, 2)


def test_the_quickstart_runs_as_written(tmp_path, monkeypatch, two_epochs) -> None:
    names = run_page("docs/quickstart.md", tmp_path, monkeypatch)
    assert names["info"].loss.shape == (10,)
    assert names["three"].num_modes == 3 and names["pred"].num_samples == 150
    assert (tmp_path / "runs" / "mine").is_dir()


@pytest.mark.cpu_seconds(16)
def test_the_quickstarts_commands_run_as_written(tmp_path, monkeypatch, two_epochs) -> None:
    """All but `check`, which tests/cli runs."""
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs/quickstart.md").read_text()
    commands = re.findall(r"^    polymode (.+)$", text, re.M)
    assert len(commands) == 5 and commands.pop() == "check"
    assert [main(shlex.split(command)) for command in commands] == [0, 0, 0, 0]
    assert (tmp_path / "runs/demo/report.html").is_file()


def test_parts_of_a_study_that_were_not_run_stay_as_they_are(monkeypatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    from docs.tables import with_parts

    def study(preset: str, verdicts: dict[str, str], *parts: str) -> dict:
        claims = [{"text": text, "verdict": verdict} for text, verdict in verdicts.items()]
        named = {key: dict.fromkeys(parts, preset) for key in ("tables", "figures", "runs")}
        return {"preset": preset, "claims": claims, **named}

    old = study("cpu", {"a": "holds", "b": "not run"}, "first", "second")
    found = with_parts(old, study("cpu", {"b": "undecided", "c": "holds"}, "second", "third"))
    said = [(claim["text"], claim["verdict"]) for claim in found["claims"]]
    assert said == [("a", "holds"), ("b", "undecided"), ("c", "holds")]
    assert all(list(found[k]) == ["first", "second", "third"] for k in ("tables", "figures"))
    assert with_parts(old, study("paper", {}, "first"))["runs"] == {"first": "paper"}
