"""Several that save to one folder or read from it at once, and processes that are killed there."""

from __future__ import annotations

import errno
import multiprocessing
import os
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import filelock
import pytest
import torch

import polymode as pm
from polymode.core import safe_files as store
from polymode.core.safe_files import FileProblem, read_json
from polymode.posterior.files import Shards

from .made_up import X, made_up, net, posterior

FORK = multiprocessing.get_context("fork")  # no second import of torch
BOTH = {seed: posterior(made_up("gaussian", modes=2, seed=seed)) for seed in (1, 2)}
VALUES = {seed: post.weights.tensors()["network/0.weight"] for seed, post in BOTH.items()}


def which(folder: Path) -> int:
    """Return the seed of the posterior in a folder: it is one of the two, with all it holds."""
    loaded = pm.load(folder, net=net).weights[:]
    (seed,) = (s for s, v in VALUES.items() if torch.equal(v, loaded.tensors()["network/0.weight"]))
    for name, tensor in BOTH[seed].weights.tensors().items():
        assert torch.equal(tensor, loaded.tensors()[name]), name
    return seed


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def named(folder: Path) -> list[str]:
    """Return what the manifest names, and itself: all that a folder should hold."""
    entries = read_json(folder / "posterior.json", 3)["tensors"]
    return sorted([*(entry["file"] for entry in entries), "posterior.json"])


def unsupported(*_: object, **__: object) -> bool:
    raise OSError(errno.ENOLCK, "No locks available")


def save_again_and_again(folder: Path, seed: int, start, rounds: int) -> None:
    for number in range(rounds):
        start.wait(30)
        BOTH[seed].save(folder / str(number))


@pytest.mark.cpu_seconds(8)
@pytest.mark.parametrize("locks", [True, False])
def test_two_processes_save_to_one_folder_at_once(locks, tmp_path, monkeypatch) -> None:
    """60 folders, each written by both at the same moment: one of the two is there, whole. Where
    the file system has locks, nothing else is."""
    if not locks:
        monkeypatch.setattr(filelock, "lock_descriptor", unsupported)
    rounds, start = 60, FORK.Barrier(2)
    workers = [
        FORK.Process(target=save_again_and_again, args=(tmp_path, seed, start, rounds))
        for seed in BOTH
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
        assert worker.exitcode == 0
    for number in range(rounds):
        assert which(tmp_path / str(number)) in BOTH
        if locks:
            assert files(tmp_path / str(number)) == named(tmp_path / str(number))


def save_until(folder: Path, stop, sizes: list[int | None]) -> None:
    number = 0
    while not stop.is_set():
        BOTH[1 + number % 2].save(folder, modes_per_file=sizes[number % len(sizes)])
        number += 1


@pytest.mark.cpu_seconds(10)
@pytest.mark.parametrize("sizes", [[None], [None, 1, 1]])
def test_a_reader_meanwhile_gets_the_old_or_the_new_one(sizes, tmp_path) -> None:
    """A hundred loads, while another process saves the one and the other in turn."""
    BOTH[2].save(tmp_path)
    stop, seen = FORK.Event(), []
    writer = FORK.Process(target=save_until, args=(tmp_path, stop, sizes))
    writer.start()
    try:
        for _ in range(100):
            try:
                seen.append(which(tmp_path))
            except FileProblem as problem:  # the files of a posterior that is loaded in parts
                assert len(sizes) > 1
                assert "since this one was loaded; load it again" in str(problem)
    finally:
        stop.set()
        writer.join(60)
    assert writer.exitcode == 0
    assert set(seen) == {1, 2}
    if len(sizes) == 1:
        assert len(seen) == 100


def test_threads_save_and_load_at_once(tmp_path) -> None:
    BOTH[1].save(tmp_path)
    failures: list[BaseException] = []

    def tried(work: Callable[[], object]) -> None:
        try:
            for _ in range(8):
                work()
        except BaseException as error:  # told by the test, not lost with the thread
            failures.append(error)

    work = [lambda: BOTH[1].save(tmp_path), lambda: BOTH[2].save(tmp_path)]
    work += [lambda: which(tmp_path)] * 8
    threads = [threading.Thread(target=tried, args=(each,)) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert files(tmp_path) == named(tmp_path)


def test_files_that_no_manifest_names_stay(tmp_path) -> None:
    """Also those of a name that `save` might have given, and one that is to be its next."""
    BOTH[1].save(tmp_path)
    strange = ["members-0.safetensors", "members-1-7.safetensors", "members-x.safetensors"]
    for name in [*strange, "members-²-1.safetensors", "notes.txt"]:
        shutil.copy(tmp_path / "members-1.safetensors", tmp_path / name)
    kept = [name for name in files(tmp_path) if name not in named(tmp_path)]
    assert len(kept) == 5
    for _ in range(3):
        BOTH[2].save(tmp_path, modes_per_file=1)
        assert which(tmp_path) == 2
        assert files(tmp_path) == sorted([*kept, *named(tmp_path)])


def test_an_old_manifest_cannot_have_other_files_removed(tmp_path) -> None:
    BOTH[1].save(tmp_path / "post")
    (tmp_path / "thesis.txt").write_text("years")
    (tmp_path / "post" / "thesis.txt").write_text("years")
    manifest = read_json(tmp_path / "post" / "posterior.json", 3)
    for name in ("../thesis.txt", "thesis.txt", "posterior.json", 3, None):
        manifest["tensors"].append({"file": name, "digest": "", "modes": [2, 3]})
    store.write_json(tmp_path / "post" / "posterior.json", manifest)
    BOTH[2].save(tmp_path / "post")
    assert (tmp_path / "thesis.txt").exists()
    assert files(tmp_path / "post") == ["members-2.safetensors", "posterior.json", "thesis.txt"]


CALLS = ("replace", "fsync", "open", "close", "unlink")


def killed_at(folder: Path, number: int, size: int | None) -> bool:
    """Save in a process that is killed before its call `number` of the file system; return whether
    it got so far."""
    process = os.fork()
    if process == 0:
        left = [number]

        def counted(call: Callable[..., object]) -> Callable[..., object]:
            def stop_or_call(*given: object, **options: object) -> object:
                left[0] -= 1
                if left[0] < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*given, **options)

            return stop_or_call

        for name in CALLS:
            setattr(os, name, counted(getattr(os, name)))
        try:
            BOTH[2].save(folder, modes_per_file=size)
        finally:
            os._exit(0)
    _, status = os.waitpid(process, 0)
    return os.WIFSIGNALED(status)


@pytest.mark.cpu_seconds(8)
@pytest.mark.parametrize("size", [None, 1])
def test_killed_at_any_moment(size, tmp_path) -> None:
    """The folder holds the old posterior or the new one, and the next that saves leaves no
    remainder of the one that was killed."""
    number, seen = 0, []
    while True:
        folder = tmp_path / str(number)
        BOTH[1].save(folder, modes_per_file=size)
        shutil.copy(next(folder.glob("members-1*")), folder / "members-0.safetensors")
        if not killed_at(folder, number, size):
            break
        seen.append(which(folder))
        BOTH[1].save(folder)
        assert which(folder) == 1
        assert files(folder) == sorted(["members-0.safetensors", *named(folder)]), number
        number += 1
    assert seen == sorted(seen)
    assert set(seen) == {1, 2}
    assert number > 10


@pytest.mark.parametrize("way", ["link", "relative", "dotted"])
def test_modes_in_files_saved_onto_themselves_by_another_path(way, tmp_path, monkeypatch) -> None:
    """The posterior is then read from the new files."""
    folder = tmp_path / "post"
    BOTH[1].save(folder, modes_per_file=1)
    expected = BOTH[1].predict(X).loc
    loaded = pm.load(folder, net=net)
    assert isinstance(loaded.weights, Shards)
    if way == "link":
        (tmp_path / "link").symlink_to(folder)
        loaded.save(tmp_path / "link", modes_per_file=1)
    elif way == "relative":
        monkeypatch.chdir(tmp_path)
        loaded.save("post", modes_per_file=1)
    else:
        loaded.save(folder / ".." / "post", modes_per_file=1)
    torch.testing.assert_close(loaded.predict(X).loc, expected)
    assert which(folder) == 1
    assert files(folder) == named(folder)


def test_modes_in_files_are_found_wherever_the_process_goes(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    BOTH[1].save("post", modes_per_file=1)
    loaded = pm.load("post", net=net)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    torch.testing.assert_close(loaded.predict(X).loc, BOTH[1].predict(X).loc)


def test_a_file_in_the_place_of_the_folder_and_one_without_rights(tmp_path, monkeypatch) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(FileProblem, match="a file is in its place; give another"):
            BOTH[1].save(folder)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(FileProblem, match="cannot be written to: Permission denied; give another"):
        BOTH[1].save(tmp_path / "post")


def test_a_folder_that_cannot_be_written_to_is_loaded(tmp_path) -> None:
    BOTH[1].save(tmp_path)
    tmp_path.chmod(0o555)
    try:
        assert which(tmp_path) == 1
    finally:
        tmp_path.chmod(0o755)


@pytest.mark.parametrize("size", [None, 1])
def test_a_name_that_another_took_meanwhile_is_not_taken_again(size, tmp_path, monkeypatch) -> None:
    """As without locks, where two may look for a free number at the same time."""
    BOTH[1].save(tmp_path, modes_per_file=size)
    last = "members-2.safetensors" if size is None else "members-2-1.safetensors"
    (tmp_path / last).write_bytes(b"of another")
    monkeypatch.setattr("polymode.posterior.folder._next_number", lambda _: 1)
    BOTH[2].save(tmp_path, modes_per_file=size)
    assert which(tmp_path) == 2
    assert (tmp_path / last).read_bytes() == b"of another"
    assert named(tmp_path)[0].startswith("members-3")  # until then the old files were whole
    assert files(tmp_path) == sorted([last, *named(tmp_path)])
