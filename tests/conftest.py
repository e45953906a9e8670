"""Settings of every test: no cache of the user's is read or written."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYMODE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def float64() -> torch.dtype:
    return torch.float64
