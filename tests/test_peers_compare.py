"""The page that compares peers is made from the script; what it says of polymode is so."""

from __future__ import annotations

import importlib
import json

import pytest

import polymode as pm
from benchmarks.peers import compare

HOMES = ("conformal", "recalibration", "chains", "sklearn", "plots")


def test_the_page_is_what_the_script_writes() -> None:
    stored = json.loads(compare.STORED.read_text())
    assert compare.PAGE.read_text() == compare.page(stored["versions"])


@pytest.mark.parametrize("name", sorted({ours for ours, _, _ in compare.ROWS.values() if ours}))
def test_what_polymode_is_said_to_have_is_there(name) -> None:
    rooms = [importlib.import_module(f"polymode.{room}") for room in HOMES]
    assert name in pm.list_methods() or any(hasattr(room, name) for room in [pm, *rooms])


def test_a_wrong_claim_is_found(monkeypatch) -> None:
    """json stands for a peer: it has a JSONDecoder and no SWAG."""
    monkeypatch.setattr(compare, "PEERS", {"json": ("pip", "json")})
    monkeypatch.setattr(compare.metadata, "version", lambda name: "1")
    for yes, pattern in (({"json": "SWAG"}, "^swag"), ({}, "^jsondecoder$")):
        monkeypatch.setattr(compare, "ROWS", {"a feature": ("", pattern, yes)})
        with pytest.raises(SystemExit, match="a feature"):
            compare.look_up()
    monkeypatch.setattr(compare, "ROWS", {"a feature": ("", "decoder", {"json": "JSONDecoder"})})
    assert compare.look_up() == {"json": "1"}
