"""The tests of pullback.torch are collected only where PyTorch is installed (make test-torch)."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

collect_ignore_glob = [] if find_spec("torch") else ["test_*.py"]


@pytest.fixture
def nothing_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small layers and calls go to our kernels too, so that small tests reach them."""
    from pullback.torch import choice

    for work in ("SMALL_WORK", "TINY_WORK", "TINY_POOL"):
        monkeypatch.setattr(choice, work, 0)
    monkeypatch.setattr(choice, "SMALL_POOL", dict.fromkeys(choice.SMALL_POOL, 0))
    monkeypatch.setattr(choice, "FEW_CHANNELS", 0)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """For small models: the threads of PyTorch and ours wait for each other longer than they work."""
    import torch

    import pullback

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with pullback.threads(1):
            yield
    finally:
        torch.set_num_threads(before)
