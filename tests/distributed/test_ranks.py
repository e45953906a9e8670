"""Ranks: the same posterior from one, two and four processes, whatever happens to them.

Processes are forked from one that has imported torch and used nothing of it, so that a dozen ranks
do not cost a dozen imports.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from polymode.distributed import ranks
from polymode.runs.run_folder import RunFolder

SERVER = """
import json, os, sys, traceback
import torch, torch._dynamo
import polymode as pm
import polymode.methods, polymode.metrics.evaluation
from polymode.distributed import meeting, ranks
from polymode.stack.fast import measure

torch.set_num_threads(1)
measure._BUDGET, meeting.SECONDS = 0.0, 0.0
ranks.SAME_SECONDS = 1.0
for line in sys.stdin:
    asked = json.loads(line)
    children = []
    for rank in range(asked["size"]):
        children.append(os.fork())
        if children[-1] == 0:
            os.environ.update(asked["environment"], RANK=str(rank), LOCAL_RANK=str(rank))
            code, told = 0, open(f"{asked['told']}-{rank}", "w")
            os.dup2(told.fileno(), 1); os.dup2(told.fileno(), 2)
            try:
                exec(asked["script"], {"rank": rank, "pm": pm, "torch": torch, **asked["names"]})
            except SystemExit as ending:
                code = ending.code or 0
            except BaseException:
                traceback.print_exc()
                code = 1
            sys.stdout.flush(); sys.stderr.flush()
            ranks.leave()
            os._exit(code)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    print(json.dumps(codes), flush=True)
"""

TASK = """
net = lambda: torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
task = pm.task("two_moons", num_train=64, num_test=20)
def fit(method, **options):
    options = {"num_modes": 5, "epochs": 2, "batch_size": 20, "seed": 3, **options}
    return pm.fit(method, net=net, task=task, progress="silent", **options)
def everything(post):
    return {**post.weights.tensors(), "mean": post.predict(task.test.x).mean}
"""


class Server:
    """Runs scripts on several ranks; `told` has what each printed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder, 0
        self.start()

    def start(self) -> None:
        with (self.folder / "errors").open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-c", SERVER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(60)

    def answer(self, request: dict) -> list[int]:
        """Return the exit codes of the ranks. If the server has died, say of what, and start
        another for the tests that follow."""
        assert self.process.stdin is not None and self.process.stdout is not None
        line = ""
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        if line:
            return json.loads(line)
        self.close()
        code, errors = self.process.returncode, (self.folder / "errors").read_text()
        self.start()
        ending = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        pytest.fail(f"the process that forks ranks {ending}:\n{errors}", pytrace=False)

    def __call__(self, size: int, script: str, environment: dict | None = None, **names) -> list:
        self.count += 1
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        where = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        told = str(self.folder / f"told-{self.count}")
        request = {"size": size, "script": TASK + script, "told": told, "names": names}
        request["environment"] = {**where, **(environment or {})}
        codes = self.answer(request)
        self.told = [Path(f"{told}-{rank}").read_text() for rank in range(size)]
        return codes

    def made(self, size: int, script: str, **names) -> dict:
        """Return what rank 0 left in `made`."""
        out = str(self.folder / f"made-{self.count}")
        script += "\nif rank == 0: torch.save(made, out)"
        assert self(size, script, out=out, **names) == [0] * size, self.told
        return torch.load(out)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory):
    server = Server(tmp_path_factory.mktemp("ranks"))
    yield server
    server.close()


SOON = 50.0  # seconds on a busy machine; who waits in vain does so for 60 at least
METHODS = [
    "deep_ensemble", "swag", "sghmc", "laplace", "forde", "lit", "weight_rde", "feature_rde",
    "function_rde",
]  # fmt: skip
FITS = """
from polymode.distributed import ranks
more = {"weight_rde": {"estimator": "svgd"}, "function_rde": {"prior": "function"},
        "feature_rde": {"head": "shared"}, "forde": {"lengthscales": "pca"}}
made, came = {}, {}
for name in methods:
    before = ranks.traffic().num_bytes
    post = fit(name, **more.get(name, {}))
    came[name] = ranks.traffic().num_bytes - before
    made[name] = {**everything(post), "losses": torch.tensor(post.history.train_loss)}
made["came"] = came
"""


@pytest.fixture(scope="module")
def made(server: Server) -> dict[int, dict]:
    return {size: server.made(size, FITS, methods=METHODS) for size in (1, 2, 4)}


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("method", METHODS)
def test_the_same_posterior_from_one_two_and_four_ranks(made, size: int, method: str) -> None:
    """Five modes, so that shares differ. Sums over members are taken in one order everywhere; what
    is left are elementwise operations, rounded by their place in a vector register."""
    for name, tensor in made[1][method].items():
        torch.testing.assert_close(made[size][method][name], tensor, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("method", ["deep_ensemble", "sghmc", "laplace"])
def test_two_ranks_give_the_same_bits(made, method: str) -> None:
    """Of methods whose members do not meet: the repulsion of forde is rounded by its place."""
    for name, tensor in made[1][method].items():
        assert torch.equal(made[2][method][name], tensor), name


@pytest.mark.parametrize("size", [2, 4])
def test_bytes_are_those_of_the_formula(made, size: int) -> None:
    """Per step, each rank receives the input gradients (R × D numbers), loss, repulsion and loss
    again of each of the M − m members that it does not hold; independent members cost nothing. The
    look after the fit takes two probabilities and their entropy at 64 examples from each network,
    five of a member that draws."""
    rows, steps, dimensions = 2 * 64, 2 * 4, 2
    others = 5 - ranks._ends(5, size)[1]
    came, look = made[size]["came"], 64 * 3
    assert came["forde"] == others * 4 * (rows * dimensions + 3 * steps + look)
    assert came["deep_ensemble"] == others * 4 * look
    assert came["laplace"] == others * 4 * 5 * look


REDUCED = """
from polymode.distributed import ranks
from polymode.metrics import evaluation
torch.set_default_dtype(torch.float64)
stream = torch.Generator().manual_seed(0)
def inputs(rows, size=1.0):
    return size * torch.randn(rows, 4, generator=stream)
def labels(rows):
    return torch.randint(classes, (rows,), generator=stream)
task = pm.Task(train=(inputs(64), labels(64)), test=(inputs(401, 3.0), labels(401)),
               ood={"far": inputs(203, 9.0)}, likelihood="categorical")
evaluation.PIECE = 1  # pieces of one batch
post = pm.fit(method, net=lambda: torch.nn.Linear(4, classes), task=task, num_modes=5, epochs=1,
              dtype=torch.float64, progress="silent", **more)
before = ranks.traffic().num_bytes
kept = pm.evaluate(post, task, samples_per_mode=samples)
gathered, before = ranks.traffic().num_bytes - before, ranks.traffic().num_bytes
rows = pm.evaluate(post, task, samples_per_mode=samples, keep=False).rows
reduced = ranks.traffic().num_bytes - before
def values(rows):
    plain = lambda value: -1.0 if value is None else value
    return {f"{r.dataset} {r.metric}": (plain(r.value), plain(r.standard_error), r.n) for r in rows}
averages = post.averages(inputs(99, 200.0), samples_per_mode=samples)
names = ["mean", "log_mean", "predictive_entropy", "expected_entropy", "energy", "disagreement",
         "total_epistemic_variance"]
made = {"bytes": (gathered, reduced), "kept": values(kept.rows), "rows": values(rows),
        "averages": {name: getattr(averages, name) for name in names}}
made["averages"]["few"] = post.averages(inputs(2), samples_per_mode=samples).log_mean
"""


@pytest.mark.cpu_seconds(15)
@pytest.mark.parametrize("method, samples, classes", [("deep_ensemble", 1, 9), ("laplace", 4, 3)])
def test_evaluation_reduces_on_ranks_what_one_process_averages(
    server: Server, method: str, samples: int, classes: int
) -> None:
    """In float64; five modes, so that shares differ, and rows that ranks do not divide, or that are
    fewer than ranks.

    Votes are counts where classes are fewer than a rank's samples, else labels. Averages are
    compared far from the data, where probabilities are 1e-17 and less and others are 1: a
    probability has the error of its logarithm, up to 300 times 2⁻⁵².
    """
    more = {"evidence": None} if method == "laplace" else {}  # a search that takes seconds
    names = {"method": method, "classes": classes, "samples": samples, "more": more}
    alone = server.made(1, REDUCED, **names)
    assert alone["averages"]["log_mean"].min() < -40
    for size in (2, 4):
        shared = server.made(size, REDUCED, **names)
        for name, tensor in alone["averages"].items():
            torch.testing.assert_close(shared["averages"][name], tensor, rtol=1e-12, atol=1e-13)
        for name, numbers in alone["rows"].items():
            assert numbers == alone["kept"][name] or "dyadic" in name  # needs the samples
            assert shared["rows"][name] == pytest.approx(numbers, rel=1e-9, abs=1e-12), name
        assert shared["bytes"] == _evaluation_bytes(size, samples, classes)


def _evaluation_bytes(size: int, samples: int, classes: int) -> tuple[int, int]:
    """Return what rank 0 receives where samples are gathered and where averages are reduced.

    Log-probabilities and a normaliser of every sample of the M − m modes of others; or, for the
    b of B rows that it reduces, C + V + 3 numbers of each other rank, with V columns of votes, and
    C + 5 averages of the rows of others. The first batch of the test set is predicted twice.
    """
    first, batches = ranks._ends(5, size)[1], [256, 256, 145, 203]
    gathered = sum(batches) * (5 - first) * samples * (classes + 1)
    votes, reduced = min(first * samples, classes), 0
    for rows in batches:
        part = ranks._ends(rows, size)[1]
        reduced += part * (size - 1) * (classes + votes + 3) + (rows - part) * (classes + 5)
    return 8 * gathered, 8 * reduced


KILLED = """
import os, signal
from polymode.distributed import meeting
at = meeting.Meeting.at
def killed(self, step, due, interrupted):
    if rank == 1 and step == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return at(self, step, due, interrupted)
meeting.Meeting.at = killed
"""
RESUMED = ["forde", "sghmc", "swag"]
WHOLE = """
more = {"forde": {"lengthscales": "pca"}}
made = {}
for method in methods:
    place = {"checkpoint": f"{folder}/{method}", "checkpoint_seconds": 0.0} if folder else {}
    made[method] = everything(fit(method, **place, **more.get(method, {})))
"""


@pytest.mark.cpu_seconds(15)
def test_a_killed_rank_ends_the_others_and_any_number_of_ranks_resumes(
    server: Server, tmp_path: Path
) -> None:
    for method in RESUMED:
        folder, started = tmp_path / "b" / method, time.monotonic()
        codes = server(3, KILLED + WHOLE, methods=[method], folder=str(tmp_path / "b"))
        assert codes == [1, -signal.SIGKILL, 1]
        assert time.monotonic() - started < SOON
        assert "RankProblem: rank 0 of 3 waits for another that has ended" in server.told[0]
        assert len(list(folder.glob("training-4-*.safetensors"))) == 3
    shutil.copytree(tmp_path / "b", tmp_path / "c")
    whole = server.made(1, WHOLE, methods=RESUMED, folder="")
    for size, name in ((2, "b"), (1, "c")):
        again = server.made(size, WHOLE, methods=RESUMED, folder=str(tmp_path / name))
        for method in RESUMED:
            for key, tensor in whole[method].items():
                torch.testing.assert_close(again[method][key], tensor, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("method", ["deep_ensemble", "forde"])
def test_a_member_that_diverges_stops_all_ranks(server: Server, method: str) -> None:
    codes = server(
        2,
        """
from polymode.training import optimiser as training
update = training.Optimization.update
def broken(self, number):
    update(self, number)
    if rank == 1 and number == 3:
        with torch.no_grad():
            self.leaves[0].fill_(float("nan"))
training.Optimization.update = broken
fit(method)
""",
        method=method,
    )
    assert codes == [1, 1]
    assert "training diverged at step 4: the loss of member 3 is nan" in server.told[1]
    assert "training diverged at step 4: the loss of member 3 is nan" in server.told[0]


def test_saved_by_ranks_and_attacked_by_them(server: Server, tmp_path: Path) -> None:
    """Each rank writes its modes; gradients with respect to inputs are those of all modes."""
    script = """
post = fit("deep_ensemble")
x = task.test.x.clone().requires_grad_()
post.predict_batch(x).log_prob(task.test.y).sum().backward()
post.save(folder)
loaded = pm.load(folder, net=net)
made = {"gradient": x.grad, "mean": post.predict(task.test.x).mean,
        "loaded": loaded.predict(task.test.x).mean, "part": post[1:3].predict(task.test.x).mean}
"""
    alone = server.made(1, script, folder=str(tmp_path / "one"))
    shared = server.made(2, script, folder=str(tmp_path / "two"))
    for name, tensor in alone.items():
        torch.testing.assert_close(shared[name], tensor, rtol=1e-6, atol=1e-6)
    names = sorted(path.name for path in (tmp_path / "two").iterdir())
    assert names == ["members-1-0.safetensors", "members-1-1.safetensors", "posterior.json"]


def test_tokens_are_attacked_by_all_ranks_alike(server: Server) -> None:
    """The shift of an embedding is that of one process: every rank sees all modes."""
    script = """
def tokens():
    return torch.nn.Sequential(
        torch.nn.Embedding(6, 4), torch.nn.Flatten(), torch.nn.Linear(20, 3)
    )
ids, labels = torch.arange(80).view(16, 5) * 7 % 6, torch.arange(16) % 3
words = pm.Task(train=(ids, labels), likelihood="categorical")
post = pm.fit("deep_ensemble", net=tokens, task=words, num_modes=4, epochs=2, holdout=0,
              dtype=torch.float64, progress="silent")
found = pm.adversary.attack(post, ids, labels, eps=0.3, box=None, steps=3)
made = {"shift": found.adversarial, "mean": found.attacked.mean}
"""
    alone, shared = server.made(1, script), server.made(2, script)
    for name, tensor in alone.items():
        torch.testing.assert_close(shared[name], tensor, rtol=0, atol=1e-12)


def test_laplace_counts_modes_over_all_ranks(server: Server) -> None:
    """In what it says of a mode, and in the random subnetwork of each."""
    script = """
import warnings
from polymode.methods.laplace import laplace
choose = laplace.choose_prior
chosen = []
def pruning(*given):
    chosen.append(chosen[0] if chosen else choose(*given))  # one search: it takes longest
    precisions, factor, report = chosen[0]
    return precisions, factor, {**report, "pruned": ["0.weight"]}
laplace.choose_prior = pruning
warnings.simplefilter("always")
fit("laplace")
laplace.choose_prior = choose
options = {"structure": "subnetwork", "subnetwork": "random", "subnetwork_size": 6}
made = everything(fit("laplace", evidence=None, **options))
"""
    alone, shared = server.made(1, script), server.made(2, script)
    for name, tensor in alone.items():
        assert torch.equal(shared[name], tensor), name
    for rank, modes in enumerate(["012", "34"]):
        named = re.findall(r"off in mode (\d+):", server.told[rank])
        assert "".join(named) == modes


@pytest.mark.parametrize(
    "script, message",
    [
        ("fit('map', num_modes=1)", "2 ranks cannot share 1 mode: each holds at least one"),
        ("fit('map', num_modes=2, lr=0.1 + rank)", "ranks were given different methods, options"),
        (
            "from polymode.distributed import ranks; ranks.__version__ = f'9.{rank}'; fit('map')",
            "has polymode 9.",
        ),
    ],
)
def test_what_ranks_cannot_do_together_is_said(server: Server, script: str, message: str) -> None:
    started = time.monotonic()
    assert server(2, script) == [1, 1]
    assert time.monotonic() - started < SOON
    assert message in server.told[0]
    assert message in server.told[1]


def test_an_address_without_anybody_is_given_up(server: Server) -> None:
    where = {"WORLD_SIZE": "2", "POLYMODE_START_SECONDS": "2"}
    started = time.monotonic()
    assert server(1, "fit('map')", where) == [1]
    assert time.monotonic() - started < SOON
    assert "did not find the others at 127.0.0.1:" in server.told[0]


ALONE = """
import os, time
from polymode.training import optimiser as training
from polymode.methods.laplace import laplace
from polymode.metrics import evaluation
from polymode.posterior import files, posterior

def breaks(where, name):
    before = getattr(where, name)
    def broken(*given, **named):
        if rank == failing:
            raise OSError("no room on this rank")
        return before(*given, **named)
    setattr(where, name, broken)

breaks({"step": training.Optimization, "finish": laplace, "predict": posterior.Posterior,
        "score": evaluation, "write": files}[part], name)
try:
    post = fit(method)
    pm.evaluate(post, task)
    post.save(folder + "/post")
except Exception as error:
    print(f"{type(error).__name__}: {error}")
    if rank != failing:
        open(folder + "/heard", "w").close()
until = time.monotonic() + 40
while not os.path.exists(folder + "/heard") and time.monotonic() < until:
    time.sleep(0.05)  # so that nobody hears of it by the end of this process
print("the others heard of it" if os.path.exists(folder + "/heard") else "nobody heard of it")
"""


@pytest.mark.parametrize(
    "part, name, method, failing",
    [
        ("step", "update", "forde", 1),
        ("finish", "curvature", "laplace", 1),
        ("predict", "_require_room", "deep_ensemble", 1),
        ("score", "_rows", "deep_ensemble", 0),
        ("write", "write_tensors", "deep_ensemble", 1),
    ],
)
def test_a_rank_that_fails_alone_does_not_let_the_others_wait(
    server: Server, tmp_path: Path, part: str, name: str, method: str, failing: int
) -> None:
    names = {"part": part, "name": name, "method": method, "failing": failing}
    assert server(2, ALONE, folder=str(tmp_path), **names) == [0, 0]
    message = "OSError: no room on this rank\nthe others heard of it\n"
    assert server.told[failing].endswith(message)
    other = server.told[1 - failing]
    assert f"rank {failing} failed: OSError: no room on this rank" in other.replace(" of 2", "")


def test_ranks_that_fail_alike_go_on_together(server: Server) -> None:
    script = """
post = fit("deep_ensemble")
for _ in range(2):
    try:
        post.predict(torch.zeros(3, 7))
    except ValueError as error:
        print("refused", error)
made = everything(post)
"""
    made = server.made(2, script)
    assert [told.count("refused") for told in server.told] == [2, 2]
    assert made["mean"].shape == (20, 2)


def test_after_failing_alone_a_rank_says_why_it_can_do_nothing(server: Server) -> None:
    script = """
from polymode.distributed import ranks
post = fit("deep_ensemble")
for again in range(2):
    try:
        with ranks.in_step():
            if rank == 1 and not again:
                raise OSError("no room")
            post.predict(task.test.x)
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
    assert ranks.place() == (rank, 2)  # not that of one who writes files
"""
    assert server(2, script) == [0, 0], server.told
    alone = "rank 1 of 2 has left the others since it failed alone: OSError: no room. What was kept"
    assert alone in server.told[1]
    assert server.told[0].count("waits for another that has ended (rank 1 failed: OSError") == 2


COMMAND = """
import sys
from polymode.report import page
page.report = lambda board, path, **_: path.touch()  # figures take longer than all the rest
from polymode.cli.app import main
sys.exit(main(words if "words" in globals() else sys.argv[1:]))
"""


@pytest.mark.parametrize("failing", [(1,), (0, 1)])
def test_a_run_ends_if_one_rank_fails_and_goes_on_if_all_do(
    server: Server, tmp_path: Path, failing: tuple[int, ...]
) -> None:
    """Two cells, the first of which cannot be scored."""
    script = """
from polymode.metrics import evaluation
rows, left = evaluation._rows, [1]
def broken(*given):
    if rank in failing and left:
        left.pop()
        raise ValueError("no scores here")
    return rows(*given)
evaluation._rows = broken
"""
    words = [
        "run", "--task", "two_moons", "--method", "map", "--seeds", "0-1", "--set", "epochs=1",
        "--set", "task.num_test=50", "--set", "num_modes=2", "-q", "--out", str(tmp_path),
    ]  # fmt: skip
    assert server(2, script + COMMAND, failing=failing, words=words) == [1, 1]
    if failing == (1,):
        assert "(rank 1 failed: ValueError: no scores here)" in server.told[0]
    assert len(RunFolder(tmp_path).results()) == (0 if failing == (1,) else 1)


KILLED_AT_FIRST = (
    """
import os
rank = int(os.environ["RANK"]) if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" else None
"""
    + KILLED
)


@pytest.mark.cpu_seconds(30)
def test_torchrun_brings_a_killed_rank_back(server: Server, tmp_path: Path) -> None:
    """The command line on two ranks, one of which is killed in training, ends as in one process."""
    words = [
        "run", "--task", "two_moons", "--method", "forde", "--set", "epochs=3", "--set",
        "net.hidden=[8]", "--set", "task.num_test=50", "--set", "num_modes=4", "-q", "--out",
    ]  # fmt: skip
    script, events = tmp_path / "command.py", tmp_path / "two" / "events.jsonl"
    script.write_text(KILLED_AT_FIRST + COMMAND)
    start = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    run = subprocess.run(
        [*start, "--max-restarts=1", str(script), *words, str(tmp_path / "two")],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=180,
    )
    told = run.stdout + run.stderr
    assert run.returncode == 0, told
    assert "waits for another that has ended" in told
    assert events.read_text().count('"kind": "run"') == 2
    assert server(1, COMMAND, words=[*words, str(tmp_path / "one")]) == [0], server.told
    (one,), (two,) = (RunFolder(tmp_path / name).results() for name in ("one", "two"))
    for a, b in zip(one.rows, two.rows, strict=True):
        assert (a.dataset, a.metric, a.n, a.note) == (b.dataset, b.metric, b.n, b.note)
        if a.unit != "s" and a.value is not None:
            assert b.value == pytest.approx(a.value, rel=1e-4, abs=1e-6), a.metric
