"""A page named after a framework runs with that framework's tests, under its marker, and only where it is installed."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

FRAMEWORKS = ("jax", "torch")
collect_ignore = [f"{name}.md" for name in FRAMEWORKS if find_spec(name) is None]


@pytest.hookimpl(tryfirst=True)  # before the markers select
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent and item.path.stem in FRAMEWORKS:
            item.add_marker(item.path.stem)
