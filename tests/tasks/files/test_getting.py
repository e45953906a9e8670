"""Downloads resume, are checked and bounded; the data folder holds whole files or none."""

from __future__ import annotations

import shutil
import socket
from dataclasses import replace

import numpy as np
import pytest

from polymode.core.safe_files import FileProblem
from polymode.tasks.files import DownloadProblem, get, load
from polymode.tasks.files import download as module

IMAGES, LABELS = "t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"


@pytest.fixture
def small(server, register, make_digits):
    return register("small", make_digits(server.address))


def assert_whole(data, arrays) -> None:
    """The packed file is right, and nothing else is left."""
    assert [path.name for path in data.iterdir()] == ["small.npz"]
    found = load("small")
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)


def parts(data) -> dict[str, int]:
    """Return the files of the data folder and their sizes; there is no folder without one."""
    for path in data.rglob("*"):
        assert path.is_file() or any(path.rglob("*.*"))
    return {path.name: path.stat().st_size for path in data.rglob("*") if path.is_file()}


def test_download_checks_packs_and_cleans_up(server, small, data, arrays):
    steps = []
    path = get("small", observer=steps.append)
    assert path == data / "small.npz"
    assert_whole(data, arrays)
    assert load("small")["y_test"].dtype == np.int64
    kinds = list(dict.fromkeys(step.kind for step in steps))
    assert kinds == ["start", "download", "read", "write"]
    done = [step.done for step in steps if step.kind == "download"]
    assert done == sorted(done)
    assert done[-1] == steps[1].total == small.download_size
    assert get("small", observer=steps.append) == path
    assert steps[-1].kind == "here"
    assert len(server.asked) == 2


def test_a_broken_connection_is_resumed_where_it_broke(server, small, data, arrays):
    server.faults[IMAGES] = ["cut", "cut"]
    get("small")
    assert_whole(data, arrays)
    size = len(server.files[IMAGES])
    spans = [span for name, span in server.asked if name == IMAGES]
    assert spans == ["", f"bytes={size // 2}-", f"bytes={size // 2 + (size - size // 2) // 2}-"]


def test_a_later_call_resumes_too(server, small, data, arrays):
    server.faults[IMAGES] = ["cut", 503]
    with pytest.raises(DownloadProblem, match="HTTP 503 .* bytes are kept; the same command") as at:
        get("small")
    assert f"{server.address}{IMAGES}" in str(at.value)
    half = len(server.files[IMAGES]) // 2
    assert parts(data) == {f"{IMAGES}.part": half}
    get("small")
    assert server.asked[2] == (IMAGES, f"bytes={half}-")
    assert_whole(data, arrays)


def test_a_file_that_came_whole_is_not_asked_again(server, small, data, arrays):
    server.faults[LABELS] = [404]
    with pytest.raises(DownloadProblem, match=f"{LABELS}: HTTP 404 Not Found at http"):
        get("small")
    assert list(parts(data)) == [IMAGES]
    get("small")
    assert [name for name, _ in server.asked] == [IMAGES, LABELS, LABELS]
    assert_whole(data, arrays)


def test_a_server_without_ranges_starts_anew(server, small, data, arrays):
    server.faults[IMAGES] = ["cut", "no range"]
    get("small")
    assert server.asked[1][1] != ""
    assert_whole(data, arrays)


def test_a_part_that_is_not_of_this_file_is_thrown_away(server, small, data, arrays):
    """Bytes of another version that lie there: the checksum fails, and all is asked for anew."""
    part = data / "downloads" / "small" / f"{IMAGES}.part"
    part.parent.mkdir(parents=True)
    for length in (100, len(server.files[IMAGES]), len(server.files[IMAGES]) + 7):
        shutil.rmtree(data)
        part.parent.mkdir(parents=True)
        part.write_bytes(bytes(length))
        get("small")
        assert_whole(data, arrays)


def test_a_wrong_checksum_keeps_nothing(server, small, data):
    server.faults[IMAGES] = ["other"]
    with pytest.raises(DownloadProblem, match=r"wrong sha256: \w{12}\.\.\., not \w{12}"):
        get("small")
    assert parts(data) == {}


def test_md5_is_checked_too(server, register, make_digits, data):
    import hashlib

    facts = make_digits(server.address)
    by_md5 = tuple(
        replace(file, sha256="", md5=hashlib.md5(server.files[file.name]).hexdigest())
        for file in facts.originals
    )
    dataset = register("small", replace(facts, originals=by_md5))
    assert dataset.checksums == "md5"
    server.faults[IMAGES] = ["other"]
    with pytest.raises(DownloadProblem, match="wrong md5"):
        get("small")
    get("small")


def test_without_a_checksum_the_content_is_still_checked(server, register, make_digits, data):
    facts = make_digits(server.address)
    bare = tuple(replace(file, sha256="") for file in facts.originals)
    dataset = register("small", replace(facts, originals=bare))
    assert dataset.checksums == "none"
    server.faults[IMAGES] = ["other"]
    with pytest.raises(FileProblem, match="is not an idx file"):
        get("small")
    assert not (data / "small.npz").exists()


@pytest.mark.parametrize("fault", ["more", "announce more"])
def test_too_many_bytes_are_stopped(server, small, data, fault):
    server.faults[IMAGES] = [fault]
    with pytest.raises(DownloadProblem, match="more than the expected|bytes announced"):
        get("small")
    assert parts(data) == {}


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/x"])
def test_a_redirect_to_another_protocol_is_refused(server, small, data, target):
    server.faults[IMAGES] = [target]
    with pytest.raises(DownloadProblem, match="not allowed|neither http nor https"):
        get("small")
    assert parts(data) == {}


def test_a_redirect_to_http_is_followed(server, small, data, arrays):
    server.files["elsewhere"] = server.files[IMAGES]
    server.faults[IMAGES] = [f"{server.address}elsewhere"]
    get("small")
    assert_whole(data, arrays)


def test_a_file_address_in_the_catalogue_is_refused(tmp_path, register, make_digits, data):
    register("small", make_digits(f"file://{tmp_path}/"))
    with pytest.raises(DownloadProblem, match="unknown url type"):
        get("small")


def test_mirrors_are_tried_in_turn(server, register, make_digits, data, arrays):
    register("small", make_digits(f"{server.address}gone/", server.address))
    get("small")
    assert server.asked[0] == (f"gone/{IMAGES}", "")
    assert_whole(data, arrays)


def test_all_causes_are_said(server, register, make_digits, data):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{free.getsockname()[1]}/"
        register("small", make_digits(f"{server.address}gone/", closed))
        with pytest.raises(DownloadProblem, match="HTTP 404 .*; Connection refused .*--from"):
            get("small")


def test_a_silent_server_ends_in_time(server, small, data, monkeypatch):
    monkeypatch.setattr(module, "_TIMEOUT", 0.2)
    server.faults[IMAGES] = ["stall", "stall", "stall", "stall", "stall"]
    with pytest.raises(DownloadProblem, match="timed out"):
        get("small")
    assert list(parts(data)) == [f"{IMAGES}.part"]


@pytest.mark.parametrize("fault", ["drip", "drip headers"])
def test_a_server_that_always_gives_a_little_ends_in_time(server, small, data, monkeypatch, fault):
    """No pause is longer than what is allowed, but all of them together are."""
    monkeypatch.setattr(module, "_LEAST", 0.3)
    monkeypatch.setattr(module, "_SLOWEST", 1e9)
    server.faults[IMAGES] = [fault] * 5
    with pytest.raises(DownloadProblem, match=r"stopped after 0 s in which [\d]+ of [\d,]+ bytes"):
        get("small")


@pytest.mark.parametrize("length", ["-1", "abc", "9" * 5000, "²", "1e3", "0x10", "1 2"])
def test_odd_lengths_end_in_a_whole_file_or_a_sentence(server, small, data, arrays, length):
    server.faults[IMAGES] = [f"length: {length}"]
    try:
        get("small")
    except DownloadProblem as problem:
        assert "expected" in str(problem)
    else:
        assert_whole(data, arrays)


@pytest.mark.parametrize(
    "target", ["http://[::1/x", "http://127.0.0.1:port/", "http://127.0.0.1:99999999/"]
)
def test_odd_redirects_are_said(server, small, data, target):
    server.faults[IMAGES] = [target]
    with pytest.raises(DownloadProblem, match=f"{IMAGES}: .* at http"):
        get("small")


def test_a_server_gives_no_commands_to_the_terminal(server, small, data):
    server.faults[IMAGES] = ["evil"]
    with pytest.raises(DownloadProblem, match=f"{IMAGES}: HTTP 404 gone at http"):
        get("small")


def test_an_interrupt_leaves_a_part_that_is_continued(server, small, data, arrays):
    def stop(step):
        if step.kind == "download" and step.done > 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        get("small", observer=stop)
    assert list(parts(data)) == [f"{IMAGES}.part"]
    get("small")
    assert_whole(data, arrays)


def test_a_full_disk_is_said_first(server, small, data, monkeypatch):
    usage = shutil.disk_usage("/")._replace(free=10_000)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: usage)
    with pytest.raises(DownloadProblem, match="has 10 kB free, .* is needed; make room or set"):
        get("small")
    assert server.asked == []


def test_a_disk_that_fills_up_is_no_matter_of_the_network(server, small, data):
    def full(step):
        if step.kind == "download" and step.done:
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left on device"):
        get("small", observer=full)


def test_a_failing_write_leaves_nothing(server, small, data, monkeypatch):
    def full(file, **arrays):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OSError, match="No space left"):
        get("small")
    assert not list(data.glob("*.npz")) and not list(data.glob(".*"))


def test_what_is_damaged_in_the_folder_is_got_again(server, small, data, arrays):
    data.mkdir()
    (data / "small.npz").write_bytes(b"half a file")
    with pytest.raises(FileProblem, match="small.npz is truncated .*; remove the file and get it"):
        load("small")
    get("small")
    assert_whole(data, arrays)
