"""Several threads at once: the same bits as one, and no trace of it in the rest of the process."""

import os
import random
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import polymode as pm
from polymode.core.memory import count_saved, saved_bytes
from polymode.core.quiet import without_warning
from polymode.core.rng import global_stream, private_stream
from polymode.core.threads import PerThread, for_each_member
from polymode.stack.execution import limit_threads
from polymode.stack.stack import Stack
from polymode.tracing.graph import trace
from polymode.tracing.network import Network

SIX = ("deep_ensemble", "dropout", "sghmc", "vi", "swag", "laplace")
X = torch.linspace(-2, 2, 10).reshape(5, 2)


class Remembers(nn.Module):
    """Keeps a result between two layers, as code for attention maps often does."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(2, 16), nn.Linear(16, 2)

    def forward(self, x):
        self.h = torch.tanh(self.a(x))
        for _ in range(3):  # time for other threads
            torch.relu(self.h)
        return self.b(self.h)


def net():
    return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 2))


def at_once(jobs):
    """Run jobs in as many threads, which start together; errors are raised here."""
    ready = threading.Barrier(len(jobs))

    def work(job):
        ready.wait(20)
        return job()

    with ThreadPoolExecutor(len(jobs)) as pool:
        return [future.result() for future in [pool.submit(work, job) for job in jobs]]


class Foreign:
    """A thread that calls modules of its own and draws from every global stream meanwhile."""

    def __enter__(self):
        self._stop, self.errors, self.calls = threading.Event(), [], 0
        self._thread = threading.Thread(target=self._call)
        self._thread.start()
        return self

    def _call(self):
        module = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.ReLU(), nn.Linear(4, 1))
        while not self._stop.is_set():
            try:
                module(torch.rand(2, 3)).sum().backward()
                random.random(), np.random.rand()  # noqa: NPY002
                self.calls += 1
            except BaseException as error:
                self.errors.append(error)

    def __exit__(self, *error):
        self._stop.set()
        self._thread.join()
        if error[0] is None:
            assert self.errors == []


def fitted(method, seed=0):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pm.fit(
            method, net=net, task=pm.task("two_moons"), seed=seed, num_modes=2, epochs=2,
            progress="silent",
        )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Posteriors of six methods on disk."""
    place = tmp_path_factory.mktemp("posteriors")
    for method in SIX:
        fitted(method).save(place / method)
    return place


def bits(post):
    return post.predict(X).log_probs


@pytest.mark.cpu_seconds(15)
@pytest.mark.filterwarnings("ignore")
def test_the_first_requests_of_eight_threads_have_the_bits_of_one(folder) -> None:
    for method in SIX:
        alone = bits(pm.load(folder / method, net=net))
        post = pm.load(folder / method, net=net)
        with Foreign():
            made = at_once([lambda post=post: bits(post)] * 8)
        assert all(torch.equal(each, alone) for each in made), method


@pytest.mark.cpu_seconds(15)
@pytest.mark.filterwarnings("ignore")
def test_fits_at_once_have_the_bits_of_fits_one_after_another() -> None:
    jobs = [(method, seed) for method in ("deep_ensemble", "dropout") for seed in (0, 1)]
    alone = [bits(fitted(*job)) for job in jobs]
    with Foreign():
        made = at_once([lambda job=job: bits(fitted(*job)) for job in jobs])
    assert all(torch.equal(a, b) for a, b in zip(alone, made, strict=True))


@pytest.mark.cpu_seconds(15)
@pytest.mark.filterwarnings("ignore")
def test_many_requests_leave_no_files_and_no_memory_behind(folder) -> None:
    posts = [pm.load(folder / method, net=net) for method in SIX]
    expected = [bits(post) for post in posts]

    def requests():
        for number in range(18):
            place = number % len(posts)
            assert torch.equal(bits(posts[place]), expected[place])

    at_once([requests] * 8)
    handles, held = len(os.listdir("/proc/self/fd")), threading.active_count()
    size = sum(len(post.stack._views._values) for post in posts)
    for _ in range(2):
        at_once([requests] * 8)
    assert len(os.listdir("/proc/self/fd")) <= handles
    assert threading.active_count() == held
    assert sum(len(post.stack._views._values) for post in posts) <= size  # of threads that live


@pytest.mark.parametrize("execution", ["loop", "batched"])
def test_members_that_remember_do_so_for_their_thread_alone(execution) -> None:
    stack = Stack(Remembers, 3, execution=execution)
    inputs = [torch.randn(4, 2, generator=torch.Generator().manual_seed(k)) for k in range(8)]
    with torch.no_grad():
        alone = [stack(x) for x in inputs]

    def work(k):
        with torch.no_grad():
            return all(torch.equal(stack(inputs[k]), alone[k]) for _ in range(25))

    assert all(at_once([lambda k=k: work(k) for k in range(8)]))


def test_functional_calls_of_several_threads_do_not_mix_their_tensors() -> None:
    """`Remembers` has no graph, so that `vmap` puts each thread's weights into a template."""
    stacks = [Stack(Remembers, 2, seed=k, execution="batched") for k in range(6)]
    for stack in stacks[1:]:
        stack.network = stacks[0].network
        stack._renew()
    alone = [stack(X).detach() for stack in stacks]

    def work(stack, expected):
        return all(torch.equal(stack(X), expected) for _ in range(20))

    jobs = [lambda s=s, e=e: work(s, e) for s, e in zip(stacks, alone, strict=True)]
    assert all(at_once(jobs))


def test_programs_are_made_once_for_all_threads() -> None:
    network, made = Network(net()), []

    def make(template):
        made.append(template)
        return len(made)

    assert at_once([lambda: network.program("p", "eval", make)] * 8) == [1] * 8
    templates = at_once([lambda: network.template_in("train")] * 4)
    assert len({id(each) for each in templates}) == 4


def test_a_plan_is_chosen_once_for_all_threads(monkeypatch) -> None:
    chosen = []
    from polymode.stack import execution

    real = execution.choose
    monkeypatch.setattr(execution, "choose", lambda *a: (chosen.append(1), real(*a))[1])
    stack = Stack(net, 2)
    with torch.no_grad():
        made = at_once([lambda: stack(X).detach()] * 6)
    assert len(chosen) == 1 and all(torch.equal(each, made[0]) for each in made)


def test_a_mode_that_was_set_elsewhere_is_followed() -> None:
    stack = Stack(lambda: nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)), 1, execution="loop")
    stack.train()
    with ThreadPoolExecutor(1) as worker, torch.no_grad():
        assert worker.submit(lambda: stack.module(0).training).result()
        stack.eval()
        assert not worker.submit(lambda: stack.module(0).training).result()
        first, second = (worker.submit(lambda: stack.module(0)(X)).result() for _ in range(2))
    assert torch.equal(first, second)


def test_other_threads_that_draw_do_not_cost_a_network_its_graph() -> None:
    template = Network(nn.Sequential(nn.Linear(2, 4), nn.ReLU())).template
    with Foreign():
        assert all(trace(template) is not None for _ in range(20))


def test_draws_from_global_streams_are_noticed_also_while_others_draw() -> None:
    class Draws(nn.Module):
        def forward(self, x):
            return x * np.random.rand()  # noqa: NPY002

    with Foreign():
        assert all(trace(Draws()) is None for _ in range(3))


def _dropout(x):
    return torch.nn.functional.dropout(x, 0.5)


DRAWS = {
    "rand": lambda: torch.rand(3),
    "randn": lambda: torch.randn(2, 2),
    "randperm": lambda: torch.randperm(7),
    "randint": lambda: torch.randint(3, 9, (4,)),
    "like": lambda: torch.randn_like(torch.ones(3)) + torch.rand_like(torch.ones(3)),
    "normal": lambda: torch.normal(torch.zeros(3), 1.0),
    "init": lambda: nn.Linear(3, 4).weight.detach(),
    "dropout": lambda: _dropout(torch.ones(9)),
    "multinomial": lambda: torch.multinomial(torch.ones(5), 3),
    "seeded": lambda: (torch.rand(2), torch.manual_seed(3), torch.rand(2))[2],
    "seeded twice": lambda: [torch.manual_seed(3) and torch.rand(2) for _ in range(2)][1],
}


def _forked():
    first = torch.rand(2)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        torch.rand(3)
    return torch.cat([first, torch.rand(2)])


@pytest.mark.parametrize("name", [*DRAWS, "forked"])
def test_a_private_stream_draws_what_the_global_one_would(name) -> None:
    draw = {**DRAWS, "forked": _forked}[name]
    with global_stream(11):
        expected = draw()
    before, obeys = torch.get_rng_state(), name in ("seeded", "seeded twice", "forked")
    with nullcontext() if obeys else Foreign():
        for _ in range(5):
            with global_stream(11), private_stream(11, follows=True):
                assert torch.equal(draw(), expected)
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(before)
        with private_stream(11):
            if not obeys:
                assert torch.equal(draw(), expected)
                assert torch.equal(torch.get_rng_state(), before)


def test_a_stream_goes_on_where_it_was_left() -> None:
    stream, own = global_stream(5), torch.Generator().manual_seed(1)
    with global_stream(5):
        expected = torch.rand(4)
    both = global_stream(2, own)
    parts = []
    for _ in range(2):
        with stream:
            parts.append(torch.rand(2))
        with both:
            torch.rand(1, generator=own)
    assert torch.equal(torch.cat(parts), expected)
    assert torch.equal(own.get_state(), torch.Generator().manual_seed(1).get_state())


def test_a_warning_is_left_out_and_other_filters_stay() -> None:
    before = list(warnings.filters)
    first, second = (without_warning("slow there") for _ in range(2))
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        first.__enter__()
        second.__enter__()
        first.__exit__()
        warnings.warn("slow there, but right", stacklevel=1)
        warnings.warn("another", stacklevel=1)
        second.__exit__()
        warnings.warn("slow there again", stacklevel=1)
    assert [str(each.message) for each in shown] == ["another", "slow there again"]
    assert list(warnings.filters) == before


@pytest.mark.threads_of_torch
def test_threads_that_begin_while_one_is_limited_use_as_many_as_before() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(torch.get_num_threads).result()  # somebody else is there
            with limit_threads(2):
                assert torch.get_num_threads() == 2
                time.sleep(0.2)
                with ThreadPoolExecutor(1) as later:
                    assert later.submit(torch.get_num_threads).result() == 3
            assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


class Single(nn.Module):
    """A parameter that enters in a way of its own, so that Laplace takes single examples."""

    def __init__(self):
        super().__init__()
        self.a, self.w = nn.Linear(2, 4), nn.Parameter(torch.full((4, 2), 0.3))

    def forward(self, x):
        return torch.tanh(self.a(x)) @ self.w.sin().mul(2)


@pytest.mark.cpu_seconds(10)
@pytest.mark.filterwarnings("ignore")
def test_laplace_predicts_other_inputs_in_other_threads() -> None:
    post = pm.fit(
        "laplace", net=Single, task=pm.task("two_moons"), num_modes=1, epochs=1, progress="silent"
    )
    assert post.weights.survey.singles
    inputs = [X + 0.1 * k for k in range(6)]
    alone = [post.predict(x).log_probs for x in inputs]

    def work(k):
        return all(torch.equal(post.predict(inputs[k]).log_probs, alone[k]) for _ in range(6))

    assert all(at_once([lambda k=k: work(k) for k in range(6)]))


@pytest.mark.filterwarnings("ignore")
def test_threads_may_ask_for_different_numbers_of_samples(folder) -> None:
    post = pm.load(folder / "sghmc", net=net)
    most = post.weights.samples_per_mode
    numbers = [most, max(1, most // 2), 1]
    alone = [post.predict(X, samples_per_mode=n).log_probs for n in numbers]

    def work(place):
        made = (post.predict(X, samples_per_mode=numbers[place]).log_probs for _ in range(8))
        return all(torch.equal(each, alone[place]) for each in made)

    assert all(at_once([lambda k=k: work(k % 3) for k in range(6)]))


def test_workers_share_what_belongs_to_their_caller() -> None:
    mine, before = PerThread(list), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        own, seen = mine(), []
        for_each_member(6, lambda k: seen.append(mine() is own))
        assert seen == [True] * 6
        with ThreadPoolExecutor(1) as other:
            assert other.submit(lambda: mine() is own).result() is False
    finally:
        torch.set_num_threads(before)


def test_memory_is_counted_for_the_thread_that_asks() -> None:
    def work():
        count_saved(torch.ones(5))
        with ThreadPoolExecutor(1) as other:
            other.submit(lambda: count_saved(torch.ones(100))).result()

    assert saved_bytes(work) == 20
