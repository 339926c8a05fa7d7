"""The tests of pullback.torch are collected only where PyTorch is installed (make test-torch)."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

collect_ignore_glob = [] if find_spec("torch") else ["test_*.py"]


@pytest.fixture
def nothing_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small layers and calls go to our kernels too, so that small tests reach them."""
    from pullback.torch import choice

    monkeypatch.setattr(choice, "SMALL_WORK", 0)
    monkeypatch.setattr(choice, "SMALL_POOL", dict.fromkeys(choice.SMALL_POOL, 0))
    monkeypatch.setattr(choice, "FEW_CHANNELS", 0)
