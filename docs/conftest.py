"""A page named after a framework runs with that framework's tests, under its marker, and only where it is installed."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

DOCS = Path(__file__).parent
FRAMEWORKS = ("jax", "torch")
collect_ignore = [page for name in FRAMEWORKS if find_spec(name) is None for page in DOCS.rglob(f"{name}.md")]


@pytest.hookimpl(tryfirst=True)  # before the markers select
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if DOCS in item.path.parents and item.path.stem in FRAMEWORKS:
            item.add_marker(item.path.stem)


@pytest.fixture(autouse=True)
def _folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages may write files."""
    monkeypatch.chdir(tmp_path)
